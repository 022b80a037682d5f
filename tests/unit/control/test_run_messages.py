"""Messages of runs with leases on the wire: what is sent is what comes, and nothing else is understood."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from farandole.control.agent_messages import AgentHello, LeaseOffer, Leaving, Started
from farandole.control.exits import WorkerExited
from farandole.control.message import Message
from farandole.control.messages import decode, encode
from farandole.control.run_messages import (
    AdviceView,
    HostView,
    LeaseView,
    Progressed,
    RunOrder,
    RunQuestion,
    RunReply,
    RunView,
)
from farandole.errors import ControlError

whole = st.integers(-(2**31), 2**31)
text = st.text(max_size=8)
times = st.floats(allow_nan=False)
metrics = st.dictionaries(text, times, max_size=3)
terms = st.builds(LeaseOffer, text, whole, whole, text, text, whole, times)
advice = st.builds(AdviceView, whole, times, times, times, times, text)
hosts = st.lists(st.builds(HostView, text, st.lists(whole, max_size=3), whole, text, times), max_size=2)
leases = st.lists(st.builds(LeaseView, text, text, whole, times, times, text), max_size=2)
said: st.SearchStrategy[Message] = st.one_of(
    st.builds(
        AgentHello, text, whole, text, st.just(("tcp://a:1",)) | st.just(()),
        st.lists(st.builds(Started, whole, whole), max_size=2).map(tuple),
        st.lists(st.builds(WorkerExited, whole, whole), max_size=2).map(tuple),
        st.none() | terms,
    ),
    st.just(Leaving()),
    st.just(RunQuestion()),
    st.builds(RunOrder, text, whole),
    st.builds(RunReply, st.booleans(), text),
    st.builds(RunView, times, times, whole, hosts, leases, whole, whole, metrics, st.lists(text, max_size=2)),
    st.builds(Progressed, metrics, st.none() | advice),
)  # fmt: skip


@given(said)
def test_what_is_sent_is_what_comes(message: Message) -> None:
    assert decode(encode(message)) == message


@given(said, st.data())
def test_a_frame_that_was_cut_is_no_message(message: Message, data: st.DataObject) -> None:
    frame = encode(message)
    cut = frame[: data.draw(st.integers(0, len(frame) - 1))]
    try:
        decode(cut)
    except ControlError:
        return
    raise AssertionError(cut)
