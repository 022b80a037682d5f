"""Routes of messages down to workers: directly, or through the relay that forwarded the worker's own messages.

    downlink = Downlink(router.send)
    downlink.learn(b"7f3au", via=b"relay-b")                   # as a network switch learns, from upward messages
    downlink.begin(welcome, process_sets, members)             # a generation: the rank of each worker, and its route
    downlink.send_to_ranks(GLOBAL, None, b"o", orders)         # one message per child, however many ranks are below it

The controller and every relay have a downlink: each sends to its child relays, and to the workers connected to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, final

import msgspec

from farandole.collective import Kind
from farandole.control.message import Message
from farandole.control.messages import (
    Envelope,
    Envelopes,
    FormedGeneration,
    Multicast,
    Order,
    Welcome,
    bags,
    decode,
    encode,
)
from farandole.errors import ControlError
from farandole.runtime.coordination.process_groups import GLOBAL
from farandole.runtime.coordination.rank_set import RankSet

CONTROL, ORDERS, UP = b"c", b"o", b"u"
"""Last bytes of the identities of a worker's sockets: two receive, the third sends."""

Send: TypeAlias = Callable[[bytes, Message], object]
"""Queues a message for a socket by its identity; may drop it if the peer has disconnected."""


@final
class Downlink:
    """Routes of the latest generation; ``send`` sends each message."""

    def __init__(self, send: Send) -> None:
        self.sent = 0
        """Messages sent."""
        self.generation = 0
        self.sets: dict[int, RankSet] = {}
        """All process sets of this generation, removed ones too, by id."""
        self.branches: dict[bytes, RankSet] = {}
        """Ranks below each child relay."""
        self.direct: dict[bytes, int] = {}
        """Ranks of directly connected workers, by the identity prefix of their sockets."""
        self.ranks = RankSet()
        """All ranks below."""
        self._uids: dict[int, bytes] = {}
        self._own = RankSet()
        self._via: dict[bytes, bytes] = {}
        self._send = send

    def learn(self, identity: bytes, via: bytes) -> None:
        """Record that the messages of the socket ``identity`` arrive through the child ``via``."""
        self._via[identity] = via

    def is_relayed(self, uid: bytes) -> bool:
        """True if the messages of this worker arrive through a child."""
        return uid + UP in self._via

    def opened(self, via: bytes, letters: Envelopes) -> Iterator[tuple[bytes, Any]]:
        """Unpack the messages that child ``via`` forwards, each with its sender's socket; ``None`` if undecodable."""
        for letter in letters.letters:
            self.learn(letter.identity, via)
            try:
                yield letter.identity, decode(letter.frame)
            except ControlError:
                yield letter.identity, None

    def begin(
        self, welcome: Welcome, process_sets: Sequence[Sequence[int]], members: Sequence[tuple[int, bytes]]
    ) -> None:
        """Begin a generation: store its ranks and process sets, and send every member its ``Welcome``."""
        below: dict[bytes, list[tuple[int, bytes]]] = {}
        self.generation, self._uids, self.direct = welcome.generation, {}, {}
        for rank, uid in members:
            via = self._via.get(uid + UP)
            if via is None:
                self._uids[rank], self.direct[uid] = uid, rank
            else:
                below.setdefault(via, []).append((rank, uid))
        # Routes to sockets of non-members are dropped. Workers that wait for a later generation would need them: that
        # is one reason why elastic jobs, the only jobs with such workers, have no relays.
        self._via = {uid + UP: via for via, own in below.items() for _, uid in own}
        self._own = RankSet.of(self._uids)
        self.branches = {via: RankSet.of(rank for rank, _ in own) for via, own in below.items()}
        self.ranks = RankSet.of(rank for rank, _ in members)
        self.sets = {GLOBAL: RankSet.span(0, len(welcome.hosts))}
        self.sets.update((number, RankSet.of(ranks)) for number, ranks in enumerate(process_sets, 1))
        for via, own in below.items():
            self._post(via, FormedGeneration(welcome, [list(ranks) for ranks in process_sets], own))
        for rank, uid in self._uids.items():
            self._post(uid + CONTROL, msgspec.structs.replace(welcome, rank=rank))

    def note(self, order: Order) -> None:
        """Add the process set that ``order`` makes, if it makes one."""
        if order.kind == Kind.ADD_SET and not order.error:
            self.sets[order.value] = RankSet.of(order.signatures[0].splits)

    def members(self, process_set: int, spans: Sequence[int]) -> RankSet:
        """Ranks in ``spans``, or all members of the set if there are none; no ranks if the spans are invalid."""
        if not spans:
            return self.sets.get(process_set, RankSet())
        return RankSet.of_spans(spans, len(self.sets[GLOBAL])) if self.sets else RankSet()

    def send_to_ranks(self, process_set: int, ranks: RankSet | None, suffix: bytes, message: Message) -> None:
        """Send ``message`` to one socket of each of ``ranks``, or of all members of ``process_set``."""
        whom = self.sets.get(process_set, RankSet()) if ranks is None else ranks
        children = [child for child, branch in self.branches.items() if not whom.isdisjoint(branch)]
        if children:
            whole = ranks is None or ranks == self.sets.get(process_set)
            spans = [] if whole or ranks is None else ranks.spans()
            self._fan(children, Multicast(self.generation, process_set, spans, suffix, encode(message)))
        self._serve(whom, suffix, message)

    def pass_on(self, multicast: Multicast, message: Message) -> RankSet:
        """Forward a ``multicast`` of the parent, which contains ``message``; returns the receiving ranks below."""
        whom = self.members(multicast.process_set, multicast.ranks) & self.ranks
        self._fan([child for child, branch in self.branches.items() if not whom.isdisjoint(branch)], multicast)
        self._serve(whom, multicast.suffix, message)
        return whom

    def post(self, identities: Iterable[bytes], message: Message) -> None:
        """Send ``message`` to these sockets, whether they have a rank or not."""
        frame = b""
        relayed: dict[bytes, list[Envelope]] = {}
        for identity in identities:
            # Routes are learned from upward messages; receiving sockets send none, so the route of ``UP`` is used.
            via = self._via.get(identity) or self._via.get(identity[:-1] + UP)
            if via is None:
                self._post(identity, message)
            else:
                frame = frame or encode(message)
                relayed.setdefault(via, []).append(Envelope(identity, frame))
        for via, letters in relayed.items():
            for bag in bags(letters):
                self._post(via, bag)

    def _fan(self, children: Iterable[bytes], message: Message) -> None:
        for child in children:
            self._post(child, message)

    def _serve(self, whom: RankSet, suffix: bytes, message: Message) -> None:
        if self._uids:
            for rank in whom & self._own:
                self._post(self._uids[rank] + suffix, message)

    def _post(self, identity: bytes, message: Message) -> None:
        self.sent += 1
        self._send(identity, message)
