"""Routes of messages to the workers below: directly, or through the relay that their own messages came through.

    downlink = Downlink(router.send)
    downlink.learn(b"7f3au", via=b"relay-b")                   # as a switch learns, from what passes on its way up
    downlink.begin(welcome, process_sets, members)             # a generation: who has which rank, and is below whom
    downlink.tell(GLOBAL, None, b"o", orders)                  # one message per child, however many ranks are below it

The controller has a downlink and so has every relay: each sends to its own children, and to the workers that it serves
itself.
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
"""Last bytes of the identities of a worker's sockets: two receive, and what it has to say it sends from the third."""

Send: TypeAlias = Callable[[bytes, Message], object]
"""Queues a message for a socket by its identity; may drop what is for a peer that is gone."""


@final
class Downlink:
    """Routes of the latest generation; messages leave by ``send``."""

    def __init__(self, send: Send) -> None:
        self.sent = 0
        """Messages sent."""
        self.generation = 0
        self.sets: dict[int, RankSet] = {}
        """Every process set there has been in this generation, by its id."""
        self.branches: dict[bytes, RankSet] = {}
        """The ranks below each child."""
        self.direct: dict[bytes, int] = {}
        """The ranks of workers that are served here, by the identity their sockets share."""
        self.ranks = RankSet()
        """All ranks below."""
        self._uids: dict[int, bytes] = {}
        self._own = RankSet()
        self._via: dict[bytes, bytes] = {}
        self._send = send

    def learn(self, identity: bytes, via: bytes) -> None:
        """Note that the messages of the socket ``identity`` come from the child ``via``."""
        self._via[identity] = via

    def is_relayed(self, uid: bytes) -> bool:
        """True if the messages of this worker come through a child."""
        return uid + UP in self._via

    def opened(self, via: bytes, letters: Envelopes) -> Iterator[tuple[bytes, Any]]:
        """Messages that the child ``via`` passes on, each with the socket it came from; ``None`` for no message."""
        for letter in letters.letters:
            self.learn(letter.identity, via)
            try:
                yield letter.identity, decode(letter.frame)
            except ControlError:
                yield letter.identity, None

    def begin(
        self, welcome: Welcome, process_sets: Sequence[Sequence[int]], members: Sequence[tuple[int, bytes]]
    ) -> None:
        """Begin a generation: learn its ranks and process sets, and send every member its ``Welcome``."""
        below: dict[bytes, list[tuple[int, bytes]]] = {}
        self.generation, self._uids, self.direct = welcome.generation, {}, {}
        for rank, uid in members:
            via = self._via.get(uid + UP)
            if via is None:
                self._uids[rank], self.direct[uid] = uid, rank
            else:
                below.setdefault(via, []).append((rank, uid))
        # The ways to sockets of no member are forgotten. Workers that wait for a later generation would need them: that
        # is one reason why elastic jobs, the only ones with such workers, have no relays.
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
        """Learn the process set that ``order`` makes, if it makes one."""
        if order.kind == Kind.ADD_SET and not order.error:
            self.sets[order.value] = RankSet.of(order.signatures[0].splits)

    def members(self, process_set: int, spans: Sequence[int]) -> RankSet:
        """Ranks that ``spans`` name, or without any all of the set; nobody where the spans are impossible."""
        if not spans:
            return self.sets.get(process_set, RankSet())
        return RankSet.of_spans(spans, len(self.sets[GLOBAL])) if self.sets else RankSet()

    def tell(self, process_set: int, ranks: RankSet | None, suffix: bytes, message: Message) -> None:
        """Send ``message`` to one socket of each of ``ranks``, or of all members of ``process_set``."""
        whom = self.sets.get(process_set, RankSet()) if ranks is None else ranks
        children = [child for child, branch in self.branches.items() if not whom.isdisjoint(branch)]
        if children:
            whole = ranks is None or ranks == self.sets.get(process_set)
            spans = [] if whole or ranks is None else ranks.spans()
            self._fan(children, Multicast(self.generation, process_set, spans, suffix, encode(message)))
        self._serve(whom, suffix, message)

    def pass_on(self, multicast: Multicast, message: Message) -> RankSet:
        """Forward a ``multicast`` from above, with ``message`` in it; returns the ranks below that it is for."""
        whom = self.members(multicast.process_set, multicast.ranks) & self.ranks
        self._fan([child for child, branch in self.branches.items() if not whom.isdisjoint(branch)], multicast)
        self._serve(whom, multicast.suffix, message)
        return whom

    def post(self, identities: Iterable[bytes], message: Message) -> None:
        """Send ``message`` to these sockets, whether they have a rank or not."""
        frame = b""
        relayed: dict[bytes, list[Envelope]] = {}
        for identity in identities:
            # Ways are learnt from messages on their way up, and sockets that receive send none: the third one tells.
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
