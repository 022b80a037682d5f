"""``HostPlan``: pieces that one host is to hold, and the sources of each, from the plan of all hosts.

    ours = HostPlan(request, "node1", pieces.sizes)
    ours.route(3)                       # ["node2", "", "node3"]: ask node2, read it yourself, ask node3

Every stager and every worker computes the same plan from the same entries; only the entries are sent. The hosts that
are to hold a piece form a chain. The first host reads the piece from shared storage. Each other host asks its
predecessor, then the hosts before that, reads the piece itself if they do not deliver it, and then asks its successors.
So hosts that all need one piece never wait for each other. A leaving host is in no chain; the first host asks it first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

import numpy as np
import numpy.typing as npt

from farandole.data.planning.plan import HostSpec, StagingPlan, plan
from farandole.data.staging.board import SHARED, Board
from farandole.data.staging.protocol import Assign, HostEntry
from farandole.data.storage.fields import Integers

Bools = npt.NDArray[np.bool_]

STREAM_SHARE, STREAM_PIECES = 1 / 64, (4, 16)
"""Room that each host reserves for pieces that do not stay, if not all data fit: this share of the largest cache, but
at least and at most so many pieces."""

STREAM_WINDOW = 2
"""Pieces of each host that are in use together if not all data fit."""

HELPERS = 2
"""Number of other hosts that are asked for a piece after all hosts of its chain have failed."""


TAKERS = 4
"""Number of hosts, with the most room left, that are asked to keep a piece for which its own host has no room."""


@final
class HostPlan:
    """The plan of a generation, for one ``host``."""

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
        """Hosts that failed to deliver; a leaving host among them is not asked again."""
        rooms = self.plan.capacities - self.plan.loads()
        roomy = [self.plan.names[at] for at in np.argsort(-rooms, kind="stable")[:TAKERS]]
        self._roomy = [] if self.plan.streamed.any() else [name for name in roomy if name not in self._leaving]

    @property
    def kept(self) -> set[int]:
        """Pieces that this host is to hold for the whole job."""
        return self._kept

    @property
    def sole(self) -> set[int]:
        """Pieces that only this host is to hold."""
        return set(np.flatnonzero(self.plan.copies[:, self._me] & (self.plan.copies.sum(axis=1) == 1)).tolist())

    def is_ours(self, piece: int) -> bool:
        """True if this host is to hold a piece in its cache."""
        return piece in self._kept or piece in self._streamed

    def addresses(self, host: str) -> list[str]:
        """Addresses of the stager of another host."""
        return self._entries[host].addresses if host in self._entries else []

    def route(self, piece: int) -> list[str]:
        """Sources of a piece, in the order in which this host asks them."""
        chain = self._chain(piece)
        if self._host not in chain:  # fetched for a host that has no room for it
            return [*chain, SHARED]
        mine = chain.index(self._host)
        first = [*reversed(chain[:mine])] if mine else self._givers(piece)
        return [*first, SHARED, *chain[mine + 1 :], *self._helpers(chain)]

    def elsewhere(self, piece: int) -> list[str]:
        """Sources of a piece that is not to be here, or has no room here: its chain, then hosts with room to keep it.

        The latter, of which this host may be one, come in one order for all hosts: if the disk of its own host is full,
        one other host reads and keeps it.
        """
        chain, others = self._chain(piece), self._roomy
        turn, first = self._me % max(1, len(chain)), piece % max(1, len(others))
        every = dict.fromkeys([*chain[turn:], *chain[:turn], *others[first:], *others[:first]])
        return [*(name for name in every if name != self._host or self._host not in chain), SHARED]

    def _givers(self, piece: int) -> list[str]:
        """Leaving hosts that hold a piece which no other host holds."""
        some = sorted(self._leaving - self.gone) if piece in self._last else []
        return [name for name in some if self._holds[self.plan.names.index(name), piece]]

    def _helpers(self, chain: list[str]) -> list[str]:
        """Hosts outside the chain of a piece: they may reach shared storage when the hosts of the chain cannot."""
        names = [*self.plan.names[self._me :], *self.plan.names[: self._me]]  # spreads the requests
        return [name for name in names if name not in chain and name not in self._leaving][:HELPERS]

    def assign_to(self, board: Board, order: Iterable[int] = ()) -> None:
        """Pass the plan to the board: pieces to fetch in the ``order`` of first use, and pieces that may be dropped."""
        every = list(order) or sorted(self._kept)  # streamed pieces are fetched only in this order
        wanted = [piece for piece in every if self.is_ours(piece)]
        if self._last:
            wanted.sort(key=lambda piece: piece not in self._last)  # first, while the leaving host still delivers
        streamed = {piece: place for place, piece in enumerate(every) if piece in self._streamed}
        window = STREAM_WINDOW * (len(self.plan.names) - len(self._leaving))
        board.assign(self.route, wanted, self._kept, streamed, window)

    def _chain(self, piece: int) -> list[str]:
        """Hosts that are to hold a piece, in the order in which it is sent: holder or reader first, then the others."""
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
    """The plan for hosts with their room and their present pieces."""
    hosts = [
        HostSpec(each.name, each.capacity, np.flatnonzero(pieces_in(each.holds, len(sizes))), each.leaving)
        for each in entries
    ]
    return plan_with_stream(sizes, hosts)


def plan_with_stream(sizes: Integers, hosts: Sequence[HostSpec]) -> StagingPlan:
    """The plan of ``sizes`` on ``hosts``, with room for pieces that stream if not all data fit."""
    sizes = np.maximum(sizes, 1)  # data without bytes have one empty piece
    largest, room = int(sizes.max(initial=1)), max((host.capacity for host in hosts), default=0)
    least, most = STREAM_PIECES
    return plan(sizes, hosts, reserve=largest * min(most, max(least, int(room * STREAM_SHARE) // largest)))


def pieces_in(bits: bytes, count: int) -> Bools:
    """Decode which of ``count`` pieces a host holds; none if the host did not report them."""
    if not bits:
        return np.zeros(count, bool)
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=count).astype(bool)
