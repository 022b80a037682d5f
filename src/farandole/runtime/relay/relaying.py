"""Relaying of messages: combined or unchanged upwards, and downwards; without any I/O.

    relaying = Relaying(send=router.send, up=dealer.send, clock=time.monotonic)
    relaying.from_below(identity, message)
    relaying.from_above(message)
    relaying.flush()                           # after all messages are handled, and at deadline_s

Upwards, submissions and exchanges are combined, and all other messages are put unchanged into envelopes; a turn of the
loop sends one message of each kind, or several if one would be too large. Downwards, a message for many ranks stays one
message until it reaches their host.

Gathering of parts of exchanges on their way up: one message for all ranks below; without any I/O.

    gathering = Gathering(downlink)
    gathering.submit("shm.0", (4, 5, 9), {4: b"..."}, now)
    gathering.submit("shm.0", (4, 5, 9), {5: b"..."}, now)       # now all of these ranks below
    gathering.pop_due(now)                                       # [GatheredParts("shm.0", ...)]

Like ``Combining`` for collectives, but a rank has only one part of each exchange.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

from farandole.control.message import Message
from farandole.control.messages import (
    Abort,
    Envelope,
    Envelopes,
    Exchange,
    FormedGeneration,
    GatheredParts,
    Hello,
    Multicast,
    Orders,
    Ready,
    Refuse,
    Resend,
    Submit,
    bags,
    decode,
    encode,
)
from farandole.runtime.coordination.downlink import CONTROL, ORDERS, Downlink, Send
from farandole.runtime.coordination.process_groups import GLOBAL
from farandole.runtime.coordination.rank_set import RankSet
from farandole.runtime.relay.combining import HOLD_S, Combining

_Key: TypeAlias = tuple[str, tuple[int, ...]]


@final
@dataclass(slots=True)
class _Held:
    """Exchange on its way up: the ranks below whose parts are missing, and the parts not passed on yet."""

    missing: RankSet
    due_s: float
    parts: dict[int, bytes] = field(default_factory=dict)


@final
class Gathering:
    """Exchanges that a relay holds; ``downlink`` knows the ranks below."""

    def __init__(self, downlink: Downlink, hold_s: float = HOLD_S) -> None:
        self._downlink, self._hold_s = downlink, hold_s
        self._held: dict[_Key, _Held] = {}

    def begin(self) -> None:
        """Drop all exchanges: a generation begins or ends."""
        self._held = {}

    def accepts(self, ranks: Sequence[int]) -> bool:
        """True if an exchange among ``ranks`` is possible in this generation."""
        everybody = self._downlink.sets.get(GLOBAL, RankSet())
        return bool(ranks) and min(ranks) >= 0 and max(ranks) <= everybody.last()

    def submit(self, key: str, ranks: tuple[int, ...], parts: Mapping[int, bytes], now: float) -> None:
        """Record ``parts``, by rank, of an exchange among ``ranks``."""
        held = self._held.get((key, ranks))
        if held is None:
            held = _Held(RankSet.of(ranks) & self._downlink.ranks, now + self._hold_s)
            self._held[key, ranks] = held
        elif not held.parts:
            held.due_s = now + self._hold_s
        held.parts.update(parts)
        held.missing -= RankSet.of(parts)

    @property
    def deadline_s(self) -> float | None:
        """Time at which ``pop_due`` has incomplete exchanges to pass on."""
        return min((held.due_s for held in self._held.values() if held.parts), default=None)

    def pop_due(self, now: float) -> list[GatheredParts]:
        """Remove and return the parts to pass on now."""
        taken: list[GatheredParts] = []
        for (key, ranks), held in list(self._held.items()):
            if held.parts and (not held.missing or held.due_s <= now):
                taken.append(GatheredParts(self._downlink.generation, key, list(ranks), list(held.parts.items())))
                held.parts = {}
            if not held.missing:
                del self._held[key, ranks]
        return taken


@final
class Relaying:
    """State machine of one relay; one thread. No message from below can make it raise."""

    def __init__(
        self, send: Send, up: Callable[[Message], object], clock: Callable[[], float], hold_s: float = HOLD_S
    ) -> None:
        self._counts: Counter[str] = Counter()
        self._downlink = Downlink(send)
        self._combining = Combining(self._downlink, hold_s)
        self._gathering = Gathering(self._downlink, hold_s)
        self._up, self._clock = up, clock
        self._letters: list[Envelope] = []
        self._hopeful: set[bytes] = set()
        self._over = False

    @property
    def deadline_s(self) -> float | None:
        """Time at which ``flush`` has something to do even without messages."""
        moments = [self._combining.deadline_s, self._gathering.deadline_s]
        return min((moment for moment in moments if moment is not None), default=None)

    def from_below(self, identity: bytes, message: Message) -> None:
        """Handle a message of a worker of this host, or of a child relay."""
        self._counts["from_below"] += 1
        if isinstance(message, Ready | GatheredParts):
            branch = self._downlink.branches.get(identity)
            if branch is not None and self._is_current(message.generation):
                self._merge(branch, message)
        elif isinstance(message, Envelopes):
            for letter in message.letters:
                self._downlink.learn(letter.identity, via=identity)
            self._letters += message.letters
        elif not self._combine(self._downlink.direct.get(identity[:-1]), message):
            if isinstance(message, Hello):
                self._hopeful.add(identity[:-1])
            self._letters.append(Envelope(identity, encode(message)))

    def from_above(self, message: Any) -> None:
        """Handle a message of the parent."""
        self._counts["from_above"] += 1
        if isinstance(message, FormedGeneration):
            self._over = False
            self._hopeful.difference_update(uid for _, uid in message.members)
            self._forget()
            self._downlink.begin(message.welcome, message.process_sets, message.members)
        elif isinstance(message, Multicast) and message.generation == self._downlink.generation:
            inner = decode(message.frame)
            self._learn(inner, self._downlink.pass_on(message, inner))
        elif isinstance(message, Envelopes):
            for letter in message.letters:
                self._downlink.post([letter.identity], decode(letter.frame))

    def flush(self) -> None:
        """Send up all messages that need not wait any longer."""
        if shares := self._combining.pop_due(self._clock()):
            self._send_up(Ready(self._downlink.generation, shares))
        for parts in self._gathering.pop_due(self._clock()):
            self._send_up(parts)
        letters, self._letters = self._letters, []
        for bag in bags(letters):
            self._send_up(bag)

    def abort(self, reason: str) -> None:
        """End the generation for all below, and refuse workers that wait for one, because the parent is lost."""
        if self._is_current(self._downlink.generation):
            over = Abort(self._downlink.generation, reason)
            for suffix in (CONTROL, ORDERS):
                self._downlink.send_to_ranks(GLOBAL, None, suffix, over)
            self._end()
        self._downlink.post([uid + CONTROL for uid in self._hopeful], Refuse(reason))
        self._hopeful = set()
        self._letters = []  # hellos of refused workers, and messages of the ended generation

    def statistics(self) -> dict[str, int]:
        """Numbers of messages from and to workers and child relays, and from and to the parent."""
        names = ("from_below", "from_above", "to_above")
        return {**{name: self._counts[name] for name in names}, "to_below": self._downlink.sent}

    def _combine(self, rank: int | None, message: Message) -> bool:
        """Combine a message of a worker with others; False if it must be sent up alone."""
        if rank is None or not isinstance(message, Submit | Exchange) or not self._is_current(message.generation):
            return False
        now = self._clock()
        if isinstance(message, Submit):
            self._combining.submit(RankSet.of([rank]), message.entry, now)
            return True
        if not self._gathering.accepts(message.ranks):
            return False
        self._gathering.submit(message.key, tuple(message.ranks), {rank: message.payload}, now)
        return True

    def _merge(self, branch: RankSet, message: Ready | GatheredParts) -> None:
        """Combine a message that a child relay has combined with others."""
        now = self._clock()
        if isinstance(message, Ready):
            for share in message.shares:
                ranks = self._downlink.members(share.entry.process_set, share.ranks) & branch
                self._combining.submit(ranks, share.entry, now)
        elif self._gathering.accepts(message.ranks):
            parts = {rank: payload for rank, payload in message.parts if rank in branch}
            self._gathering.submit(message.key, tuple(message.ranks), parts, now)

    def _learn(self, message: Message, whom: RankSet) -> None:
        """Learn, from a message on its way down, the process sets, and which ranks may submit which names again."""
        if isinstance(message, Orders):
            for order in message.orders:
                self._combining.ordered(order, whom)
                self._downlink.note(order)
        elif isinstance(message, Resend):
            for name in message.names:
                self._combining.forget((message.process_set, name), whom)
        elif isinstance(message, Abort):
            self._end()

    def _end(self) -> None:
        self._over = True
        self._forget()

    def _forget(self) -> None:
        self._combining.begin()
        self._gathering.begin()

    def _is_current(self, generation: int) -> bool:
        return 0 < generation == self._downlink.generation and not self._over

    def _send_up(self, message: Message) -> None:
        self._counts["to_above"] += 1
        self._up(message)
