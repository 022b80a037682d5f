"""Every message of the control plane, as typed structs; ``encode`` and ``decode`` are the only way on and off the wire.

>>> decode(encode(Leave(generation=3)))
Leave(generation=3, reason='', following=False, ending=False, worker_id=-1, kind='AbortError', told=False)

The docstring of a message speaks for its sender: *I* send it, *you* receive it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias, cast, final

import msgspec

from farandole.control import (
    agent_messages,
    entries,
    run_messages,
    search_messages,
    slot_messages,
    task_messages,
    watch_messages,
)
from farandole.control.clock import Stamp
from farandole.control.message import Message
from farandole.control.os_text import pack, unpack
from farandole.errors import ControlError

Signature: TypeAlias = entries.Signature
Entry: TypeAlias = entries.Entry
Order: TypeAlias = entries.Order

LIMIT_BYTES = 64 * 2**20
"""Largest message of one process (a pickled function or a state dict travels in one)."""

ENVELOPE_BYTES = 1024
"""Room for what a relay puts around such a message; a frame of both is accepted."""

_LETTER_BYTES = 16
"""More than the encoding adds to the identity and the frame of a letter."""


# -- a worker to the controller ---------------------------------------------------------------------------------------


@final
class Hello(Message, frozen=True):
    """I called ``init()``. ``worker_id`` is the rank my environment gave me (-1: none).

    ``engines`` are those usable here.
    ``stack_fd`` is where ``faulthandler`` writes when ``stack_signal`` comes. ``process_sets`` are the global ranks of
    the static sets asked for in ``init``; they must agree between ranks. In an elastic job no other worker ever has
    this ``worker_id``, and one that is not ``ready`` is alone in a generation 0, if others train, and comes again;
    ``step_s`` is the longest of its recent steps, and ``state`` says what its state consists of ("": not known yet);
    ``state_step`` from which step of the job's state others can go on with it (0: also from the initial one), -1 that
    it is none, as it was torn or never there.
    """

    worker: str
    worker_id: int
    expected: int
    host: str
    pid: int
    version: str
    engines: list[str]
    stack_fd: int
    stack_signal: int
    process_sets: list[list[int]]
    ready: bool = True
    step_s: float = 0.0
    state: str = ""
    state_step: int = 0


@final
class Exchange(Message, frozen=True):
    """My part of an all-gather of small bytes among ``ranks``; answered by ``Exchanged`` when all have come."""

    generation: int
    key: str
    ranks: list[int]
    payload: bytes


@final
class Submit(Message, frozen=True):
    """I am ready for this; ``contribution`` is what I give to it, if that is small enough to come along."""

    generation: int
    entry: Entry
    contribution: bytes = b""


@final
class Leave(Message, frozen=True):
    """I called ``shutdown()``; the generation ends for the others when they next need me.

    With a ``reason`` I could not go on in the middle of a collective, and it ends for all at once: they wait for me
    there. ``following`` says that I leave because others did, whose news may come later than mine; ``ending`` that I
    shall not come again: my process is about to end. I was ``told`` to end, and nobody need wait for that. A controller
    that has not formed the generation knows me only by my ``worker_id``. ``kind`` is what the others should raise.
    """

    generation: int
    reason: str = ""
    following: bool = False
    ending: bool = False
    worker_id: int = -1
    kind: str = "AbortError"
    told: bool = False


@final
class Withdraw(Message, frozen=True):
    """I was told to end while I was in no generation: whether I have said ``Hello`` or not, I shall not come."""

    worker_id: int


@final
class HostSilent(Message, frozen=True):
    """I wait in a collective, and nothing has come from ``host``, where other members are, for too long."""

    generation: int
    host: str


@final
class ControllerLost(Message, frozen=True):
    """My controller is gone, and I am in this generation still. If I ``wait``, it is for what only a controller can do.

    Answered by ``ChangeDue`` or ``Abort``: no controller goes on with a generation of another.
    """

    generation: int
    worker_id: int
    wait: bool = False


@final
class Blocked(Message, frozen=True):
    """I have been inside a collective for ``seconds``: the ``sequence``-th of ``lane``; ``what`` describes it.

    Sent from ``stall_warning_s`` on, and again at least twice in every such time while it lasts. ``step_s`` is the
    longest of my recent steps: the time between two planned collectives.
    """

    generation: int
    process_set: int
    lane: str
    sequence: int
    what: str
    seconds: float
    step_s: float = 0.0


@final
class LaneClosed(Message, frozen=True):
    """I have closed the planned ``lane`` after ``sequence`` of its collectives: the script has dropped what used it."""

    generation: int
    process_set: int
    lane: str
    sequence: int


@final
class GroupMade(Message, frozen=True):
    """I am in a group of ``ranks`` with the number ``process_set``, which its members have given it: 2^32 or more."""

    generation: int
    process_set: int
    ranks: list[int]


@final
class ThreadWait(msgspec.Struct, frozen=True, array_like=True):
    """A collective that one thread waits for; ``token`` is another one each time that a thread begins to wait.

    With a ``lane`` it is the ``sequence``-th collective of that planned lane, with a ``grant`` the ``sequence``-th
    round of that (both need all members of the process set), else the one called ``name``, which the controller
    orders. ``what`` describes it.
    """

    token: int
    process_set: int
    what: str
    name: str = ""
    lane: str = ""
    grant: int = 0
    sequence: int = 0


@final
class Waits(Message, frozen=True):
    """Every thread of mine that could begin a collective waits for one: ``waits``. Empty if some thread does not.

    Until one of these has ended I come to no other collective. ``submitted`` are those that I have announced and not
    finished, by process set and name; ``reached`` are the planned lanes that I have been in, by process set and label,
    and how far I have come there; ``given`` are my open grants, and the number of rounds that I have contributed to. I
    say so unasked when it lasts, and in answer to the ``question`` of an ``AskWaits``.
    """

    generation: int
    waits: list[ThreadWait] = msgspec.field(default_factory=list)
    submitted: list[tuple[int, str]] = msgspec.field(default_factory=list)
    reached: list[tuple[int, str, int]] = msgspec.field(default_factory=list)
    given: list[tuple[int, int]] = msgspec.field(default_factory=list)
    question: int = 0


@final
class Progress(Message, frozen=True):
    """My answer to ``AskProgress``: the last collective I finished, and what I am inside of now ("" for nothing).

    ``inside`` is spelt as ``Blocked.what`` where that was sent. In an elastic job also a sign of life, unasked;
    ``work`` is what I have done: the collectives that I have come to, plus seconds of processor time.
    """

    generation: int
    last: str
    inside: str
    work: float = 0.0


@final
class SetTimeline(Message, frozen=True):
    """Write the timeline to ``path`` from now on ("" ends it): rank 0 to the controller, which tells the others.

    Each of them answers with ``TimelineSet``, and rank 0 gets one when all have that are still there.
    """

    generation: int
    number: int
    path: str
    mark_cycles: bool = False


@final
class TimelineSet(Message, frozen=True):
    """``SetTimeline`` has been obeyed: by me (to the controller), by everybody (to rank 0)."""

    generation: int
    number: int


# -- the controller to a worker ---------------------------------------------------------------------------------------


@final
class Welcome(Message, frozen=True):
    """The generation is formed: your rank, everybody's host, the engine and why, and when this was said."""

    generation: int
    rank: int
    hosts: list[str]
    engine: str
    reason: str
    sent: Stamp | None = None


@final
class Refuse(Message, frozen=True):
    """``init()`` cannot succeed; ``reason`` says why and what to do. If that is ``orderly``, the process should end."""

    reason: str
    orderly: bool = False


@final
class Exchanged(Message, frozen=True):
    """The payloads of an ``Exchange``, in the order of its ranks."""

    generation: int
    key: str
    payloads: list[bytes]


@final
class Orders(Message, frozen=True):
    """Collectives in the order in which every member executes them."""

    generation: int
    orders: list[Order]


@final
class Resend(Message, frozen=True):
    """The cached numbers of these names are forgotten: submit them again in full."""

    generation: int
    process_set: int
    names: list[str]


@final
class Abort(Message, frozen=True):
    """Order to stop what waits in this generation, by an error of the class ``kind`` (``AbortError``, ``StallError``).

    The fact is ``exits.GenerationEnded``. A relay that is cut off gives this order on its own, without knowing more;
    and it is given again to each rank that comes late.
    """

    generation: int
    reason: str
    kind: str = "AbortError"


@final
class ChangeDue(Message, frozen=True):
    """Workers are to join or leave: end the generation when your state allows it."""

    generation: int
    reason: str


@final
class Notice(Message, frozen=True):
    """Something has gone wrong lately: report your waits from a second on, for ``alert_s`` seconds.

    Where people wait for each cell, show them ``text``, as you wait for others; "" for nothing.
    """

    generation: int
    alert_s: float
    text: str = ""


@final
class AskProgress(Message, frozen=True):
    """Tell me your progress."""

    generation: int


@final
class AskWaits(Message, frozen=True):
    """Tell me if all your threads still wait, and for what: others seem to wait for you, and you for them."""

    generation: int
    question: int


# -- a relay to its parent (another relay, or the controller), and back ------------------------------------------------


@final
class SharedEntry(msgspec.Struct, frozen=True, array_like=True):
    """An entry that several ranks below the sender have submitted.

    ``ranks`` are pairs of the first one and the one after the last; none at all stands for every rank below the sender
    that is in the entry's process set.
    """

    entry: Entry
    ranks: list[int] = []


@final
class Ready(Message, frozen=True):
    """Ranks below me are ready for these entries, which are in the order in which any of them said so."""

    generation: int
    shares: list[SharedEntry]


@final
class GatheredParts(Message, frozen=True):
    """The parts, by rank, that ranks below me have in an ``Exchange`` among ``ranks``."""

    generation: int
    key: str
    ranks: list[int]
    parts: list[tuple[int, bytes]]


@final
class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """A message from, or for, one worker's socket below the relay, as it was encoded."""

    identity: bytes
    frame: bytes


@final
class Envelopes(Message, frozen=True):
    """Messages that are passed on as they are: up with the socket that each came from, down with the one it is for."""

    letters: list[Envelope]


@final
class FormedGeneration(Message, frozen=True):
    """A generation is formed: what every worker below you is to be welcomed with, but for its rank.

    ``members`` are the ranks below you and the identities that their sockets share.
    """

    welcome: Welcome
    process_sets: list[list[int]]
    members: list[tuple[int, bytes]]


@final
class Multicast(Message, frozen=True):
    """One message for many workers: those in ``process_set`` (of these only ``ranks``, if any are given).

    ``ranks`` are pairs as in ``SharedEntry``. ``suffix`` is the last byte of the identities of the sockets it is for.
    """

    generation: int
    process_set: int
    ranks: list[int]
    suffix: bytes
    frame: bytes


AnyMessage: TypeAlias = (
    Hello | Exchange | Submit | Leave | Withdraw | LaneClosed | GroupMade | ControllerLost | HostSilent | Blocked
    | Waits | Progress | SetTimeline | TimelineSet | Welcome | Refuse | Exchanged | Orders | Resend | Abort | ChangeDue
    | Notice | AskProgress | AskWaits | Ready | GatheredParts | Envelopes | FormedGeneration | Multicast
    | agent_messages.AgentMessage | task_messages.TaskMessage | run_messages.RunMessage | search_messages.SearchMessage
    | slot_messages.SlotMessage | watch_messages.WatchMessage
)  # fmt: skip

_FOR_PROGRAMS = agent_messages.StartWorkers | search_messages.TrialOrder
"""What programs are started with; other texts are for people, or those of the operating system are none."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyMessage)


def encode(message: Message) -> bytes:
    """Message to frame; raises ``ControlError`` above ``LIMIT_BYTES``, to which an envelope adds its own."""
    frame = pack(_encoder.encode, message, exact=isinstance(message, _FOR_PROGRAMS))
    limit = LIMIT_BYTES + ENVELOPE_BYTES * isinstance(message, Envelopes | Multicast)
    if len(frame) > limit:
        raise ControlError(f"a {type(message).__name__} of {len(frame)} bytes exceeds the limit of {limit}")
    return frame


def bags(letters: Iterable[Envelope]) -> Iterator[Envelopes]:
    """All letters, in their order, in as few messages as their size allows."""
    bag: list[Envelope] = []
    nbytes = 0
    for letter in letters:
        own = len(letter.identity) + len(letter.frame) + _LETTER_BYTES
        if bag and nbytes + own > LIMIT_BYTES:
            yield Envelopes(bag)
            bag, nbytes = [], 0
        bag.append(letter)
        nbytes += own
    if bag:
        yield Envelopes(bag)


def decode(frame: bytes) -> AnyMessage:
    """Frame to message; raises ``ControlError`` for anything that is not exactly one known message."""
    try:
        return cast("AnyMessage", unpack(_decoder.decode, frame))
    except (msgspec.DecodeError, RecursionError) as error:
        raise ControlError(f"a frame of {len(frame)} bytes is no message of this version: {error}") from error
