"""Rank of the model: the product's ``PeerProtocol`` and ``Submissions``, a program, and the lane around them.

Each ``turn`` is one uninterrupted piece of a thread's work, with a lock or alone: an event goes in, and messages are
returned. The product's threads can be interleaved between turns: one enters a collective (``act``) and offers it to its
peers later (``offer``), while the lane's leader processes arrivals (``receive_bytes``, ``take``, ``obey``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, final

from farandole.collective import DType, Kind
from farandole.control import messages
from farandole.control.messages import Entry, Order, Orders, Resend, Signature, Submit
from farandole.errors import DuplicateNameError
from farandole.runtime.lanes.announcement import Announcement, Key
from farandole.runtime.lanes.peer_protocol import PeerProtocol
from farandole.runtime.lanes.submissions import Submissions, offer
from workbench.peers.program import BIG, GIVE, JOIN, REFUSE, WAIT, Program, ProgramStep

OVER, LEFT = "over", "left"
"""Ends of a rank: its generation has ended, or it has left in good order.

It is ``early`` if the others do not know yet what it refused: they may need it, and it has left.
"""

TO_PEERS, TO_CONTROLLER, TO_MEETING = "peers", "controller", "meeting"
Said: TypeAlias = tuple[str, bytes]
Event: TypeAlias = tuple[Hashable, ...]

BIG_ELEMENTS, TAG_BYTES = 100, 4
MOST_OCCURRENCES = 40
"""Most occurrences of a name in an epoch: a byte of the tag is the number of the occurrence."""


@final
@dataclass
class SimulatedCall:
    """Collective in flight; ``tag`` identifies its contribution."""

    announcement: Announcement
    step: ProgramStep
    tag: bytes
    known: Entry | None = None
    to_announce: bool = False
    is_offered: bool = False


@final
class View(NamedTuple):
    """Possible turns of a rank: ``act`` continues its program, ``offers`` are calls that its threads have begun."""

    act: bool
    at: int
    offers: tuple[Key, ...]
    made: bool
    meeting: bytes
    missed: int
    end: str
    early: bool
    connected: bool
    outcomes: tuple[tuple[object, ...], ...]


@final
class Rank:
    """Rank in one generation. ``outcomes`` are by epoch (number of complete joins), name and occurrence."""

    def __init__(self, rank: int, size: int, generation: int, program: Program, capacity: int) -> None:
        self.rank, self.size, self.generation, self.program = rank, size, generation, program
        self.peer = PeerProtocol(rank, size, generation)
        self.submissions: Submissions[SimulatedCall] = Submissions(capacity)
        self.capacity = capacity
        self.at = self.epoch = 0
        self.is_connected = self.is_joining = False
        self.meeting = b""
        self.end = ""
        self.refused: set[Key] = set()
        self.orders: list[Order] = []
        self.occurrences: Counter[tuple[int, str]] = Counter()
        self.outcomes: list[tuple[object, ...]] = []
        self.said: list[Said] = []

    def turn(self, event: Event) -> list[Said]:
        """Take a turn; returns the messages to send."""
        getattr(self, f"_on_{event[0]}")(*event[1:])
        if self.is_connected:
            self.said += [(TO_PEERS, frame) for frame in self.peer.outbox]
        else:
            assert not self.peer.outbox, "there is nobody to send it to"
        self.peer.outbox.clear()
        self.peer.ended.clear()
        said, self.said = self.said, []
        return said

    def view(self) -> View:
        """Possible turns in this state."""
        offers = tuple(key for key, pending in self.submissions.inflight.items() if not pending.is_offered)
        missed = -1 if self.peer.made else self.peer.missed()
        act = not self.end and self._may_act()
        return View(
            act,
            self.at,
            offers,
            bool(self.peer.made),
            self.meeting,
            missed,
            self.end,
            bool(self.end == LEFT and self.refused),
            self.is_connected,
            tuple(self.outcomes),
        )

    # -- what its threads do ------------------------------------------------------------------------------------------

    def _may_act(self) -> bool:
        submissions = self.submissions
        if self.at == len(self.program):
            return not submissions.inflight
        step = self.program[self.at]
        if step.kind == WAIT:
            return not submissions.inflight
        if self.is_joining:
            return False
        if step.kind == JOIN:
            return submissions.may_join()
        return submissions.current((step.process_set, step.name)) not in submissions.inflight

    def _on_act(self) -> None:
        if self.at == len(self.program):
            self.end = LEFT
            return
        step = self.program[self.at]
        self.at += 1
        if step.kind == WAIT:
            return
        if step.kind == REFUSE:
            self._tag(step)
            announcement = Announcement(step.process_set, step.name, Kind.ALLREDUCE, (), refusal="it has no memory")
            assert self.submissions.refuse(announcement)
            self.refused.add(announcement.key)
            self.peer.withdraw(announcement.key)
            self._announce(announcement.entry())
            return
        self.is_joining = step.kind == JOIN
        kind = Kind.JOIN if self.is_joining else Kind.ALLREDUCE
        announcement = Announcement(step.process_set, step.name or JOIN, kind, ())
        announcement.fingerprint = step.kind, step.shape
        pending = SimulatedCall(announcement, step, b"" if self.is_joining else self._tag(step))
        try:
            pending.known = self.submissions.enter(pending)
        except DuplicateNameError:
            raise AssertionError("its program does not do that") from None

    def _tag(self, step: ProgramStep) -> bytes:
        name = step.meant, step.name
        self.occurrences[name] += 1
        which = MOST_OCCURRENCES * (ord(step.name.lower()) - ord("a")) + self.occurrences[name]
        return bytes([self.generation, self.rank, self.epoch, which]) * step.shape

    def _on_offer(self, key: Key) -> None:
        pending = self.submissions.inflight[key]
        pending.is_offered = True
        if not offer(self, pending.announcement, pending.known):
            self._announce(pending.known or self._entry(pending), pending)

    def _entry(self, pending: SimulatedCall) -> Entry:
        step = pending.step
        if step.kind == JOIN:
            return pending.announcement.entry()
        elements = BIG_ELEMENTS if step.kind == BIG else step.shape
        return Entry(*pending.announcement.key, signature=Signature(Kind.ALLREDUCE, [DType.FLOAT32], [[elements]]))

    def _announce(self, entry: Entry, pending: SimulatedCall | None = None) -> None:
        part = pending.tag if pending is not None and pending.step.kind == GIVE else b""
        self.said.append((TO_CONTROLLER, messages.encode(Submit(self.generation, entry, part))))
        if pending is not None:
            pending.to_announce = False

    def contribute(self, announcement: Announcement) -> bool:
        """Contribute like the product's ``Peers``."""
        grant = self.peer.find(announcement.key)
        if grant is None:
            return False
        self.peer.contribute(grant, self.submissions.inflight[announcement.key].tag, 0.0)
        return True

    def withdraw(self, key: Key) -> None:
        """Withdraw like the product's ``Peers``."""
        self.peer.withdraw(key)

    def withdraw_all(self) -> None:
        """Leave like the product's ``Peers``."""
        self.peer.withdraw_all()

    # -- what its leader does -----------------------------------------------------------------------------------------

    def _on_hear(self, rank: int, data: bytes) -> None:
        if data:
            self.peer.receive_bytes(rank, data)
        else:
            self.peer.lose(rank)

    def _on_take(self) -> None:
        self._take(self.peer.made.pop(0))

    def _on_obey(self, frame: bytes) -> None:
        self._take(messages.decode(frame))

    def _take(self, message: object) -> None:
        if not isinstance(message, Orders | Resend) or message.generation != self.generation:
            return
        if isinstance(message, Orders):
            self.orders += message.orders
            self._execute()
            return
        for name in message.names:
            pending = self.submissions.forget((message.process_set, name))
            if pending is not None:
                assert pending.is_offered, "it has been said"
                self._announce(self._entry(pending), pending)

    def _execute(self) -> None:
        """Execute orders, up to the first for which the ranks must meet."""
        while self.orders and not self.meeting:
            order = self.orders[0]
            if order.direct and not self.is_connected:
                self._meet(b"connect %d" % self.generation)
            elif not order.error and order.kind != Kind.JOIN and not order.contributions:
                self._meet(b"order %d.%d.%d" % (self.generation, order.process_set, order.sequence))
            else:
                self._finish(self.orders.pop(0), order.contributions)

    def _meet(self, where: bytes) -> None:
        tags = b""
        if not where.startswith(b"connect"):
            mine = [self.submissions.find(self.orders[0], name) for name in self.orders[0].names]
            tags = b"".join(b"" if pending is None else pending.tag for pending in mine)
        self.meeting = where
        self.said.append((TO_MEETING, where + b"|" + tags))

    def _on_part(self, tags: tuple[bytes, ...]) -> None:
        """Continue after a meeting that all ranks have reached."""
        where, self.meeting = self.meeting, b""
        if where.startswith(b"connect"):
            self.is_connected = True
        else:
            self._finish(self.orders.pop(0), list(tags))
        self._execute()

    def _finish(self, order: Order, parts: list[bytes]) -> None:
        mine = [self.submissions.find(order, name) for name in order.names]
        if order.direct:
            self.peer.open(order)
        for i, pending in enumerate(mine):
            if pending is None:
                continue
            self._note(pending, order.error_kind if order.error else self._check(pending, parts, i))
            self.submissions.finish(pending)
            if pending.step.kind == JOIN:
                self._come_back()
            number = order.cached[i] if order.cached else -1
            if number >= 0:
                self.submissions.remember(pending.announcement, number)
        if order.error:
            self.submissions.note_refusal(order)
            self.refused.difference_update((order.process_set, name) for name in order.names)

    def _come_back(self) -> None:
        self.peer.come_back()
        self.is_joining = False
        self.epoch += 1
        self.occurrences.clear()

    def _check(self, pending: SimulatedCall, parts: list[bytes], i: int) -> str:
        """Check that each part of a result was contributed to this occurrence, and to no other."""
        if pending.step.kind == JOIN:
            return "joined"
        assert len({len(part) for part in parts if part}) <= 1, f"{parts} cannot be reduced"
        own = [part[i * TAG_BYTES : (i + 1) * TAG_BYTES] for part in parts]
        for part in own:
            assert not part or (part[0], *part[2:]) == (pending.tag[0], *pending.tag[2:TAG_BYTES]), (
                f"{pending.announcement.key} of {pending.tag!r} has {part!r}, which is of another round"
            )
        return f"{sorted(own)}"

    def _note(self, pending: SimulatedCall, outcome: str) -> None:
        step = pending.step
        if step.kind != JOIN:
            self.outcomes.append((self.generation, pending.tag[2], step.meant, step.name, pending.tag[3], outcome))

    def _on_end(self) -> None:
        """End the generation: everything in flight here fails."""
        self.end = OVER
        for pending in list(self.submissions.inflight.values()):
            self._note(pending, "AbortError")
            self.submissions.finish(pending)
        self.orders.clear()
        self.meeting = b""

    def _on_rejoin(self, program: Program) -> None:
        """Begin another session of the same process."""
        outcomes = self.outcomes
        fresh = Rank(self.rank, self.size, self.generation + 1, program, self.capacity)
        self.__dict__.update(fresh.__dict__)
        self.outcomes = outcomes
