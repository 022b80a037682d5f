"""A relay by its messages: who is told what, and that nothing from below can break it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.control import messages
from farandole.control.message import Message
from farandole.control.messages import (
    Abort,
    Envelopes,
    Exchange,
    FormedGeneration,
    GatheredParts,
    Hello,
    Ready,
    Refuse,
    Submit,
    Welcome,
)
from farandole.control.task_messages import TaskResult
from farandole.runtime.relay.combining import HOLD_S
from farandole.runtime.relay.relaying import Relaying
from tests.unit.runtime.test_controller import letters, peers, small

HELLO = Hello("", 0, 4, "b", 100, "1", ["tcp"], 2, 40, [])
CHILD = b"relay-c"


class Relay:
    """A relay with the workers ``x`` and ``y`` (ranks 0 and 1), and a child with ranks 2 and 3."""

    def __init__(self) -> None:
        self.now = 0.0
        self.down: list[tuple[bytes, Message]] = []
        self.up: list[Message] = []
        self.relaying = Relaying(self.send, self.send_up, lambda: self.now)

    def send(self, identity: bytes, message: Message) -> None:
        messages.encode(message)
        self.down.append((identity, message))

    def send_up(self, message: Message) -> None:
        messages.encode(message)
        self.up.append(message)

    def begin(self) -> None:
        greetings = [messages.Envelope(uid + b"u", messages.encode(HELLO)) for uid in (b"p", b"q")]
        self.relaying.from_below(CHILD, Envelopes(greetings))
        welcome = Welcome(1, -1, ["b", "b", "c", "c"], "tcp", "")
        self.relaying.from_above(FormedGeneration(welcome, [[0, 2]], [(0, b"x"), (1, b"y"), (2, b"p"), (3, b"q")]))
        self.relaying.flush()


def test_workers_are_welcomed_with_their_rank_and_children_with_theirs() -> None:
    relay = Relay()
    relay.begin()
    (child, begin), *welcomes = relay.down
    assert isinstance(begin, FormedGeneration)
    assert (child, begin.members) == (CHILD, [(2, b"p"), (3, b"q")])
    assert [(to, message.rank) for to, message in welcomes if isinstance(message, Welcome)] == [(b"xc", 0), (b"yc", 1)]


def test_those_who_wait_to_be_let_in_are_refused_when_nobody_is_above() -> None:
    relay = Relay()
    relay.relaying.from_below(b"xu", HELLO)
    relay.relaying.abort("the controller is gone")
    assert relay.down == [(b"xc", Refuse("the controller is gone"))]


def test_all_below_are_told_once_when_nobody_is_above() -> None:
    relay = Relay()
    relay.begin()
    relay.down.clear()
    relay.relaying.abort("the controller is gone")
    relay.relaying.abort("the controller is gone")
    over = Abort(1, "the controller is gone")
    frames = [message.frame for to, message in relay.down if to == CHILD and isinstance(message, messages.Multicast)]
    assert [messages.decode(frame) for frame in frames] == [over, over]
    assert [(to, m) for to, m in relay.down if to != CHILD] == [(to, over) for to in (b"xc", b"yc", b"xo", b"yo")]


@given(st.lists(st.integers(0, 900), max_size=8), st.booleans())
def test_what_is_too_long_for_one_message_goes_up_in_several(sizes: list[int], from_child: bool) -> None:
    """Up to the longest message that a worker may send, which gets an envelope on top."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(messages, "LIMIT_BYTES", 1000)
        relay = Relay()
        said = [
            messages.Envelope(b"w%du" % n, messages.encode(TaskResult(0, True, bytes(size))))
            for n, size in enumerate(sizes)
        ]
        longest = TaskResult(0, True, b"")
        room = 1000 - len(messages.encode(TaskResult(0, True, bytes(900)))) + 900
        said.append(
            messages.Envelope(b"longestu", messages.encode(msgspec.structs.replace(longest, payload=bytes(room))))
        )
        for letter in said:
            if from_child:
                relay.relaying.from_below(CHILD, Envelopes([letter]))
            else:
                relay.relaying.from_below(letter.identity, messages.decode(letter.frame))
        relay.relaying.flush()
        assert [letter for bag in relay.up if isinstance(bag, Envelopes) for letter in bag.letters] == said
        assert len(relay.up) <= 2 + len(sizes)


moves = st.one_of(
    st.tuples(
        st.sampled_from([b"xu", b"yu", b"zu", b"", b"\xff", CHILD]),
        st.one_of(peers)
        | letters.map(Envelopes)
        | st.builds(
            GatheredParts, small, st.just("k"), st.lists(small), st.lists(st.tuples(small, st.binary(max_size=2)))
        ),
    ),
    st.tuples(st.just(None), st.floats(0, 1)),
)


@given(st.lists(moves, max_size=25), st.booleans())
def test_nothing_that_comes_from_below_can_break_it(job_events: list[tuple[Any, Any]], begun: bool) -> None:
    relay = Relay()
    if begun:
        relay.begin()
    for who, what in job_events:
        if who is None:
            relay.now += what
        else:
            relay.relaying.from_below(who, what)
        relay.relaying.flush()
    relay.now += HOLD_S
    relay.relaying.flush()
    assert relay.relaying.deadline_s is None
    if begun:
        relay.up.clear()
        for uid in (b"xu", b"yu"):
            relay.relaying.from_below(uid, Submit(1, messages.Entry(1, "new", 9)))
            relay.relaying.from_below(uid, Exchange(1, "new", [0, 1], b""))
        relay.now += HOLD_S
        relay.relaying.flush()
        assert {type(message) for message in relay.up} == {Ready, GatheredParts}
