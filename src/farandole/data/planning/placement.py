"""Copies of pieces on hosts: rendezvous hashing with bounded loads.

Each piece orders all hosts by a keyed hash of both, and goes to the first host that has room. So an additional host
changes little: it takes the pieces that prefer it, from all hosts. Hosts first accept the pieces that score highest
with them (a stable matching, in rounds over whole arrays), up to a level that is the same for all hosts with enough
room (Mirrokni, Thorup and Zadimoghaddam, arXiv 1608.01350, with a bound of a piece above the mean).
"""

from __future__ import annotations

from typing import Final, final

import numpy as np
import numpy.typing as npt

from farandole.data.planning.keyed import UInts, key_of, mix

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_CELLS: Final = 1 << 21
"""Scores that are in memory at a time."""


@final
class Placement:
    """Bounded rendezvous of pieces of ``sizes`` bytes on hosts of ``capacities`` bytes; ``copies``: what is placed."""

    def __init__(self, sizes: Ints, names: tuple[str, ...], capacities: Ints) -> None:
        self.sizes, self.names, self.capacities = sizes, names, capacities
        self.copies: Bools = np.zeros((len(sizes), len(names)), dtype=np.bool_)
        self.loads = np.zeros(len(names), dtype=np.int64)
        self.counts = np.zeros(len(sizes), dtype=np.int64)
        self._keys = np.array([key_of("host", name) for name in names], dtype=np.uint64)

    def scores(self, pieces: Ints) -> UInts:
        """Score of each host with each of ``pieces``; two scores are equal with probability 2**-64."""
        return mix(mix(pieces.astype(np.uint64) + np.uint64(1))[:, None] ^ self._keys[None, :])

    def place(self, pieces: Ints, wanted: int, bounds: Ints, among: Bools | None = None) -> None:
        """Add copies of ``pieces`` until each has ``wanted``, on hosts whose load stays within ``bounds``.

        ``among`` limits each piece to some hosts. A piece without room gets fewer copies.
        """
        bounds = np.minimum(bounds, self.capacities)
        pieces = pieces[self.counts[pieces] < wanted]
        while pieces.size:
            asking, hosts, scores = self._proposals(pieces, wanted, bounds, among)
            by_host = np.lexsort((~scores, hosts))
            self._accept(asking[by_host], hosts[by_host], bounds)
            pieces = np.unique(asking)
            pieces = pieces[self.counts[pieces] < wanted]

    def _proposals(self, pieces: Ints, wanted: int, bounds: Ints, among: Bools | None) -> tuple[Ints, Ints, UInts]:
        """Pairs of a piece and a host that it prefers among all hosts with room, with their scores."""
        found = [(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.uint64))]
        step = max(1, _CELLS // len(self.loads))
        for start in range(0, len(pieces) if (self.loads < bounds).any() else 0, step):
            some = pieces[start : start + step]
            fits = self.sizes[some, None] <= (bounds - self.loads)[None, :]
            fits &= ~self.copies[some]
            if among is not None:
                fits &= among[some]
            scores = np.where(fits, self.scores(some) | np.uint64(1), np.uint64(0))
            rows, hosts = _largest(scores, wanted - self.counts[some])
            found.append((some[rows], hosts, scores[rows, hosts]))
        asking, columns, best = zip(*found, strict=True)
        return np.concatenate(asking), np.concatenate(columns), np.concatenate(best)

    def _accept(self, asking: Ints, hosts: Ints, bounds: Ints) -> None:
        """Accept proposals, sorted by host and preference, until the next one would exceed the bound of its host."""
        sizes = self.sizes[asking]
        total = np.cumsum(sizes)
        heads = np.searchsorted(hosts, hosts)
        taken = self.loads[hosts] + total - (total[heads] - sizes[heads]) <= bounds[hosts]
        self.add(asking[taken], hosts[taken])

    def add(self, pieces: Ints, hosts: Ints) -> None:
        """Record new copies: of ``pieces[i]`` on ``hosts[i]``."""
        self.copies[pieces, hosts] = True
        np.add.at(self.counts, pieces, 1)
        np.add.at(self.loads, hosts, self.sizes[pieces])

    def remove(self, pieces: Ints, host: int) -> None:
        """Remove copies from one host."""
        self.copies[pieces, host] = False
        self.counts[pieces] -= 1
        self.loads[host] -= self.sizes[pieces].sum()


def _largest(scores: UInts, wanted: Ints) -> tuple[Ints, Ints]:
    """Places of the ``wanted`` largest scores above 0 of each row; no two are equal, so the order is determined."""
    most = min(int(wanted.max(initial=0)), scores.shape[1])
    if most == 1:
        ranked = scores.argmax(axis=1)[:, None]
    elif most < scores.shape[1]:
        ranked = np.argpartition(~scores, most - 1, axis=1)[:, :most]
        ranked = np.take_along_axis(ranked, np.argsort(~np.take_along_axis(scores, ranked, axis=1), axis=1), axis=1)
    else:
        ranked = np.argsort(~scores, axis=1)
    chosen = np.arange(most)[None, :] < wanted[:, None]
    chosen &= np.take_along_axis(scores, ranked, axis=1) > 0
    rows, ranks = np.nonzero(chosen)
    return rows, ranked[rows, ranks]


def level_for(nbytes: int, rooms: Ints) -> int:
    """Lowest level up to which hosts with ``rooms`` together hold ``nbytes``; the largest room if none suffices."""
    filled = 0
    ascending = np.sort(rooms).tolist()
    for number, room in enumerate(ascending):
        level = -(-(nbytes - filled) // (len(ascending) - number))
        if level <= room:
            return max(0, level)
        filled += room
    return ascending[-1] if ascending else 0
