"""``HostPlan``: what one host is to hold, and where it gets each piece, by the plan of all hosts.

    ours = HostPlan(request, "node1", pieces.sizes)
    ours.route(3)                       # ["node2", "", "node3"]: ask node2, read it yourself, ask node3

Every stager and every worker makes the same plan of the same entries; nothing is sent but these. The hosts that are to
have a piece form a chain: the first reads it from shared storage, each of the others asks the one before it, then those
before that, reads it itself if they cannot give it, and then asks those after it. So hosts that all want one piece
never wait for each other. A host that is leaving is in no chain: who is first in one asks it before all others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

import numpy as np
import numpy.typing as npt

from farandole.data.planning.plan import HostSpec, StagingPlan, plan
from farandole.data.staging.board import SHARED, Board
from farandole.data.staging.protocol import Assign, HostEntry
from farandole.data.storage.fields import Integers

Bools = npt.NDArray[np.bool_]

STREAM_PIECES = 3
"""Pieces for which a host keeps room, where not all data fit: those that are used, and one that comes next."""

STREAM_WINDOW = STREAM_PIECES - 1
"""Pieces that are used together there."""


HELPERS = 2
"""Other hosts that are asked for a piece when all that are to have it have failed."""


TAKERS = 4
"""Hosts with most room left, which are asked to keep what another one has no room for."""


@final
class HostPlan:
    """The plan of a generation, as ``host`` is to follow it."""

    def __init__(self, request: Assign, host: str, sizes: Integers) -> None:
        self.request, self.generation, self._host = request, request.generation, host
        self.plan = planned(request.hosts, sizes)
        self._entries = {entry.name: entry for entry in request.hosts}
        self.capacity = self._entries[host].capacity
        self._me = self.plan.names.index(host)
        streamed = np.flatnonzero(self.plan.streamed & (self.plan.reads == self._me))
        self._streamed = set(streamed.tolist())
        self._kept = set(np.flatnonzero(self.plan.copies[:, self._me]).tolist())
        held = {entry.name: pieces_in(entry.holds, len(sizes)) for entry in request.hosts}
        self._holds = np.stack([held[name] for name in self.plan.names])
        self._leaving = {entry.name for entry in request.hosts if entry.leaving}
        stays = np.array([name not in self._leaving for name in self.plan.names])
        self._last = set(np.flatnonzero(self._holds.any(axis=0) & ~self._holds[stays].any(axis=0)).tolist())
        self.gone: set[str] = set()
        """Hosts that have failed to give: one that is leaving is asked no more."""
        rooms = self.plan.capacities - self.plan.loads()
        roomy = [self.plan.names[at] for at in np.argsort(-rooms, kind="stable")[:TAKERS]]
        self._roomy = [] if self.plan.streamed.any() else [name for name in roomy if name not in self._leaving]

    @property
    def kept(self) -> set[int]:
        """Pieces that this host is to have for good."""
        return self._kept

    @property
    def sole(self) -> set[int]:
        """Pieces that this host is to have, and no other."""
        return set(np.flatnonzero(self.plan.copies[:, self._me] & (self.plan.copies.sum(axis=1) == 1)).tolist())

    def is_ours(self, piece: int) -> bool:
        """True if this host is to have a piece in its cache."""
        return piece in self._kept or piece in self._streamed

    def addresses(self, host: str) -> list[str]:
        """Addresses of the stager of another host."""
        return self._entries[host].addresses if host in self._entries else []

    def route(self, piece: int) -> list[str]:
        """Sources of a piece, in the order in which this host asks them."""
        chain = self._chain(piece)
        if self._host not in chain:  # another one has no room for it
            return [*chain, SHARED]
        mine = chain.index(self._host)
        first = [*reversed(chain[:mine])] if mine else self._givers(piece)
        return [*first, SHARED, *chain[mine + 1 :], *self._helpers(chain)]

    def elsewhere(self, piece: int) -> list[str]:
        """Sources of a piece that is not to be here, or has no room here: whoever has it, or else has room to keep it.

        The latter are asked in the same order by all, so that it is read again once where its own host's disk is full.
        """
        chain, others = self._chain(piece), self._roomy
        turn, first = self._me % max(1, len(chain)), piece % max(1, len(others))
        every = dict.fromkeys([*chain[turn:], *chain[:turn], *others[first:], *others[:first]])
        return [*(name for name in every if name != self._host), SHARED]

    def _givers(self, piece: int) -> list[str]:
        """Hosts that are leaving, and have a piece that no other has."""
        some = sorted(self._leaving - self.gone) if piece in self._last else []
        return [name for name in some if self._holds[self.plan.names.index(name), piece]]

    def _helpers(self, chain: list[str]) -> list[str]:
        """Hosts that are not to have a piece, and may have a way to shared storage where those that are have none."""
        names = [*self.plan.names[self._me :], *self.plan.names[: self._me]]  # not all to one
        return [name for name in names if name not in chain and name not in self._leaving][:HELPERS]

    def tell(self, board: Board, order: Iterable[int] = ()) -> None:
        """Give the board what this host is to fetch, in the ``order`` of first use, and what may go again."""
        every = list(order) or sorted(self._kept)  # what is not kept is of use in its turn alone
        wanted = [piece for piece in every if self.is_ours(piece)]
        if self._last:
            wanted.sort(key=lambda piece: piece not in self._last)  # these first, while somebody gives them
        streamed = {piece: place for place, piece in enumerate(every) if piece in self._streamed}
        board.assign(self.route, wanted, self._kept, streamed, STREAM_WINDOW)

    def _chain(self, piece: int) -> list[str]:
        """Hosts that are to have a piece, as the plan sends it: its holder or reader first, then the others in turn."""
        names, sends, reader = self.plan.names, self.plan.sends, int(self.plan.reads[piece])
        begin, end = np.searchsorted(sends.pieces, [piece, piece + 1])
        sources, targets = sends.sources[begin:end].tolist(), sends.targets[begin:end].tolist()
        following, origins = dict(zip(sources, targets, strict=True)), {*sources} - {*targets}
        sent = [reader if reader >= 0 else next(iter(origins), -1)]
        while sent[-1] in following:
            sent.append(following[sent[-1]])
        had = np.flatnonzero(self._holds[:, piece]).tolist()
        chain = [names[host] for host in dict.fromkeys([*sent[:1], *had, *sent[1:]]) if host >= 0]
        return [name for name in chain if name not in self._leaving]


def planned(entries: Iterable[HostEntry], sizes: Integers) -> StagingPlan:
    """The plan for hosts with this room, which have these pieces already; what streams has room for some pieces."""
    hosts = [
        HostSpec(each.name, each.capacity, np.flatnonzero(pieces_in(each.holds, len(sizes))), each.leaving)
        for each in entries
    ]
    sizes = np.maximum(sizes, 1)  # the piece of data without bytes
    return plan(sizes, hosts, reserve=STREAM_PIECES * int(sizes.max(initial=0)))


def pieces_in(bits: bytes, count: int) -> Bools:
    """Pieces that a host has, of ``count``; none, where it has not said so."""
    if not bits:
        return np.zeros(count, bool)
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=count).astype(bool)
