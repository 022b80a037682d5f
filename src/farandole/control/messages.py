"""All messages of the control plane, as typed structs; only ``encode`` and ``decode`` convert them to and from bytes.

>>> decode(encode(Leave(generation=3)))
Leave(generation=3, reason='', following=False, ending=False, worker_id=-1, kind='AbortError', told=False)

The docstring of a message describes what it reports or orders. A message about "the worker" is about its sender.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias, final

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
"""Size that a relay may add when it wraps such a message; frames up to the sum of both limits are accepted."""

_LETTER_BYTES = 16
"""Upper bound of the bytes that the encoding adds to the identity and the frame of an ``Envelope``."""


# -- a worker to the controller ---------------------------------------------------------------------------------------


@final
class Hello(Message, frozen=True):
    """A worker called ``init()``. ``worker_id`` is the rank that its environment gives it (-1: none).

    ``engines`` are the engines that work on its host. On ``stack_signal``, ``faulthandler`` writes to ``stack_fd``.
    ``process_sets`` are the global ranks of the static process sets passed to ``init``; they must agree between ranks.
    In an elastic job a ``worker_id`` is never reused. A worker that is not ``ready`` gets a generation 0 of its own
    while others train, and sends ``Hello`` again later. ``step_s`` is the longest of its recent steps; ``state``
    describes what its state contains ("": not known yet). ``state_step`` is the step from which the others can continue
    with its state (0: also from the initial state; -1: it has no state, or an incomplete one).
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
    """A rank's part of an all-gather of few bytes among ``ranks``; ``Exchanged`` answers it when all parts are in."""

    generation: int
    key: str
    ranks: list[int]
    payload: bytes


@final
class Submit(Message, frozen=True):
    """A rank is ready for the collective ``entry``; a small enough ``contribution`` (its input) is sent along."""

    generation: int
    entry: Entry
    contribution: bytes = b""


@final
class Leave(Message, frozen=True):
    """A worker called ``shutdown()``; the generation ends for the other ranks when they next need it.

    With a ``reason`` the worker failed inside a collective, and the generation ends for all ranks at once; they raise
    the class ``kind``. ``following``: it leaves because of another rank's failure, whose message may arrive later.
    ``ending``: its process is about to exit and sends no further ``Hello``. ``told``: it was ordered to exit, and the
    job does not wait for that. ``worker_id`` names it to a controller that did not form the generation.
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
    """A worker was ordered to exit while it was in no generation; the controller ignores its ``Hello``, if any."""

    worker_id: int


@final
class HostSilent(Message, frozen=True):
    """A rank that waits in a collective has received nothing from ``host``, where other members run, for too long."""

    generation: int
    host: str


@final
class ControllerLost(Message, frozen=True):
    """A worker lost its controller and is still in this generation. ``wait``: it waits for a controller's answer.

    The new controller answers with ``ChangeDue`` or ``Abort``; it never continues a generation of the previous one.
    """

    generation: int
    worker_id: int
    wait: bool = False


@final
class Blocked(Message, frozen=True):
    """A rank has been inside a collective for ``seconds``: the ``sequence``-th of ``lane``; ``what`` describes it.

    First sent after ``stall_warning_s``, then at least twice per ``stall_warning_s`` while it lasts. ``step_s`` is the
    longest of the rank's recent steps: the time between two planned collectives.
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
    """A rank closed the planned ``lane`` after ``sequence`` collectives: the script dropped the object that used it."""

    generation: int
    process_set: int
    lane: str
    sequence: int


@final
class GroupMade(Message, frozen=True):
    """A rank is in a group of ``ranks``; its members chose the number ``process_set``, which is at least 2^32."""

    generation: int
    process_set: int
    ranks: list[int]


@final
class ThreadWait(msgspec.Struct, frozen=True, array_like=True):
    """A collective that one thread waits for; ``token`` is new each time that a thread begins to wait.

    With a ``lane`` it is the ``sequence``-th collective of that planned lane, with a ``grant`` the ``sequence``-th
    round of that grant; both need all members of the process set. Otherwise it is the negotiated collective ``name``,
    which the controller orders. ``what`` describes the collective.
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
    """Waits of all threads of a worker that could start a collective; empty if one of these threads does not wait.

    Until one of ``waits`` ends, the worker starts no other collective. ``submitted`` are the announced and unfinished
    collectives, by process set and name. ``reached`` are the planned lanes used so far, by process set and label, with
    the number of collectives done there. ``given`` are the open grants with the number of rounds contributed to. A
    worker sends this when the waits last, and in answer to the ``question`` of an ``AskWaits``.
    """

    generation: int
    waits: list[ThreadWait] = msgspec.field(default_factory=list)
    submitted: list[tuple[int, str]] = msgspec.field(default_factory=list)
    reached: list[tuple[int, str, int]] = msgspec.field(default_factory=list)
    given: list[tuple[int, int]] = msgspec.field(default_factory=list)
    question: int = 0


@final
class Progress(Message, frozen=True):
    """A rank's answer to ``AskProgress``: the last collective it finished, and the active ones ("" for none).

    ``inside`` equals ``Blocked.what`` where a ``Blocked`` was sent. In an elastic job workers also send it unasked, as
    a heartbeat; ``work`` is the number of collectives entered plus the seconds of processor time used.
    """

    generation: int
    last: str
    inside: str
    work: float = 0.0


@final
class SetTimeline(Message, frozen=True):
    """Write the timeline to ``path`` from now on ("" ends it): rank 0 to the controller, which sends it to the others.

    Each rank answers with ``TimelineSet``; rank 0 receives one when all ranks still in the generation have answered.
    """

    generation: int
    number: int
    path: str
    mark_cycles: bool = False


@final
class TimelineSet(Message, frozen=True):
    """``SetTimeline`` is done: by this rank (message to the controller), by all ranks (message to rank 0)."""

    generation: int
    number: int


# -- the controller to a worker ---------------------------------------------------------------------------------------


@final
class Welcome(Message, frozen=True):
    """A generation is formed: the receiver's rank, the host of each rank, the engine, why, and the time of sending."""

    generation: int
    rank: int
    hosts: list[str]
    engine: str
    reason: str
    sent: Stamp | None = None


@final
class Refuse(Message, frozen=True):
    """``init()`` fails; ``reason`` says why and what to do. ``orderly``: nothing is wrong, the process should exit."""

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
    """The controller dropped the cached numbers of these names: submit them again in full."""

    generation: int
    process_set: int
    names: list[str]


@final
class Abort(Message, frozen=True):
    """Order to end every wait in this generation with an error of class ``kind`` (``AbortError``, ``StallError``).

    The event behind it is ``exits.GenerationEnded``. A relay that lost its parent sends this order itself, and every
    rank that sends a message to an ended generation receives it again.
    """

    generation: int
    reason: str
    kind: str = "AbortError"


@final
class ChangeDue(Message, frozen=True):
    """Workers will join or leave: end the generation at the next commit."""

    generation: int
    reason: str


@final
class Notice(Message, frozen=True):
    """A fault occurred: for the next ``alert_s`` seconds report every wait that lasts longer than a second.

    An interactive session (notebook) shows ``text`` to its user, because it waits for other ranks; "" for nothing.
    """

    generation: int
    alert_s: float
    text: str = ""


@final
class AskProgress(Message, frozen=True):
    """Question for a rank's ``Progress``."""

    generation: int


@final
class AskWaits(Message, frozen=True):
    """Question for a rank's ``Waits``, sent when ranks seem to wait for each other (deadlock check)."""

    generation: int
    question: int


# -- a relay to its parent (another relay, or the controller), and back ------------------------------------------------


@final
class SharedEntry(msgspec.Struct, frozen=True, array_like=True):
    """An entry that several ranks below the sender have submitted.

    ``ranks`` are half-open ranges, as pairs of first rank and end; an empty list stands for every rank below the sender
    in the entry's process set.
    """

    entry: Entry
    ranks: list[int] = []


@final
class Ready(Message, frozen=True):
    """Ranks below the relay are ready for these entries, in the order in which the first rank submitted each."""

    generation: int
    shares: list[SharedEntry]


@final
class GatheredParts(Message, frozen=True):
    """Parts, by rank, of an ``Exchange`` among ``ranks``, from the ranks below the relay."""

    generation: int
    key: str
    ranks: list[int]
    parts: list[tuple[int, bytes]]


@final
class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """An encoded message from, or for, the socket ``identity`` of a worker below the relay."""

    identity: bytes
    frame: bytes


@final
class Envelopes(Message, frozen=True):
    """Messages that a relay forwards unchanged: upwards with the sender's socket, downwards with the receiver's."""

    letters: list[Envelope]


@final
class FormedGeneration(Message, frozen=True):
    """A generation is formed: the ``Welcome`` that the relay sends to every worker below it, each with its own rank.

    ``members`` are the ranks below the relay, each with the identity prefix that its sockets share.
    """

    welcome: Welcome
    process_sets: list[list[int]]
    members: list[tuple[int, bytes]]


@final
class Multicast(Message, frozen=True):
    """One message for many workers: the members of ``process_set``, or only its ``ranks`` if that list is not empty.

    ``ranks`` are pairs as in ``SharedEntry``. ``suffix`` is the last byte of the identities of the receiving sockets.
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
"""Messages whose texts become arguments of programs; in all others, bytes that are not UTF-8 are escaped for people."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyMessage)


def encode(message: Message) -> bytes:
    """Encode a message; raises ``ControlError`` above ``LIMIT_BYTES`` (a relay's message: plus ``ENVELOPE_BYTES``)."""
    frame = pack(_encoder.encode, message, exact=isinstance(message, _FOR_PROGRAMS))
    limit = LIMIT_BYTES + ENVELOPE_BYTES * isinstance(message, Envelopes | Multicast)
    if len(frame) > limit:
        raise ControlError(f"a {type(message).__name__} of {len(frame)} bytes exceeds the limit of {limit}")
    return frame


def bags(letters: Iterable[Envelope]) -> Iterator[Envelopes]:
    """Pack all envelopes, in order, into as few messages as the size limit allows."""
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
    """Decode a frame; raises ``ControlError`` for anything that is not exactly one known message."""
    try:
        message: AnyMessage = unpack(_decoder.decode, frame)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ControlError(f"a frame of {len(frame)} bytes is no message of this version: {error}") from error
    return message
