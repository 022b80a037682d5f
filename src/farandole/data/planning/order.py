"""Orders of an epoch's samples, computed position by position: 10⁸ samples need no list.

    order = ExactOrder(length=100_000_000, seed=1, epoch=3)
    order[7], order[256:512], order.take(places)        # int, NumPy array, NumPy array
    SampleCursor(length, order=ExactOrder)              # as the order of a cursor

``ExactOrder`` is a global shuffle. ``WindowOrder`` takes the pieces of a data set in random order, and shuffles the
samples of ``window`` pieces at a time, so the first batch needs ``window`` pieces and not all of them. Both are Feistel
networks on pairs of numbers (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002, method 3): a position
is a pair, each round adds a keyed hash of one half to the other, and a result beyond the end is permuted again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Final, final, overload

import numpy as np
import numpy.typing as npt

from farandole.data.planning.keyed import UInts, key_of, mix
from farandole.errors import UsageError

Ints = npt.NDArray[np.int64]

_ROUNDS: Final = 18
_CHUNK: Final = 1024
"""Positions that are computed together if they are requested one by one."""
_KNOWN: Final = 4
"""Number of windows whose order stays in memory."""
_STEPS: Final = np.arange(1, _ROUNDS + 1, dtype=np.uint64)[:, None] * np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIER: Final = np.uint64(0xD6E8FEB86659FD93)
_HALF: Final = np.uint64(32)


class SampleOrder(Sequence[int], ABC):
    """A permutation of the sample numbers below ``len(order)``. Any thread may read it."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._chunk: tuple[int, list[int]] = (-1, [])

    @property
    @abstractmethod
    def name(self) -> str:
        """Kind, version and parameters: two orders with equal name, length, seed and epoch are equal for ever."""

    @abstractmethod
    def take(self, positions: npt.ArrayLike) -> Ints:
        """The samples at ``positions``, an array of any shape of numbers from 0 on."""

    def __len__(self) -> int:
        return self._length

    @overload  # type: ignore[override]  # an array is no Sequence by its type
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Ints: ...
    def __getitem__(self, index: int | slice) -> int | Ints:
        if isinstance(index, slice):
            return self.take(np.arange(*index.indices(self._length)))
        place = index + self._length if index < 0 else index
        if not 0 <= place < self._length:
            raise IndexError(f"place {index} of an order of {self._length} samples")
        chunk = self._chunk  # one reference: another thread may replace it meanwhile
        if chunk[0] != place // _CHUNK:
            start = place - place % _CHUNK
            chunk = place // _CHUNK, self[start : start + _CHUNK].tolist()
            self._chunk = chunk
        return chunk[1][place % _CHUNK]

    def __iter__(self) -> Iterator[int]:
        for start in range(0, self._length, 64 * _CHUNK):
            yield from self[start : start + 64 * _CHUNK].tolist()

    def _checked(self, positions: npt.ArrayLike) -> Ints:
        places = np.asarray(positions, dtype=np.int64)
        if places.size and (places.min() < 0 or places.max() >= self._length):
            raise IndexError(f"places from {places.min()} to {places.max()} of an order of {self._length} samples")
        return places


@final
class ExactOrder(SampleOrder):
    """Global shuffle of ``length`` samples: all orders are about equally likely."""

    name = "exact-1"

    def __init__(self, length: int, seed: int = 0, epoch: int = 0) -> None:
        super().__init__(length)
        self._key = key_of("exact-1", seed, epoch)

    def take(self, positions: npt.ArrayLike) -> Ints:
        places = self._checked(positions)
        lengths, keys = np.array([self._length], np.uint64), np.array([self._key], np.uint64)
        return _permuted(places.reshape(-1).astype(np.uint64), lengths, keys).astype(np.int64).reshape(places.shape)


@final
class WindowOrder(SampleOrder):
    """Pieces in random order, and the samples of at most ``window`` pieces at a time in random order.

    Piece ``i`` has the samples ``bounds[i]`` to ``bounds[i + 1]``; if its samples are not consecutive, it has
    ``members`` at these positions. ``pieces`` are the pieces in the order of their first use. If there are several
    ``groups``, pieces come from each group of ``group_of`` in turn, and so do the samples of a window: if a window is a
    multiple of ``groups``, each batch has about as many samples of each group.
    """

    def __init__(
        self,
        bounds: npt.ArrayLike,
        window: int,
        seed: int = 0,
        epoch: int = 0,
        members: npt.ArrayLike | None = None,
        groups: int = 1,
    ) -> None:
        edges = np.asarray(bounds, dtype=np.int64)
        if edges.ndim != 1 or not edges.size or edges[0] != 0 or (np.diff(edges) < 0).any():
            raise UsageError("bounds must be numbers of samples that begin with 0 and never fall, one more than pieces")
        if window < 1:
            raise UsageError(f"window={window}: it must be 1 piece or more")
        super().__init__(int(edges[-1]))
        count = len(edges) - 1
        self.bounds, self.window = edges, window
        pieces = ExactOrder(count, key_of("pieces", seed), epoch)[:]
        group = group_of(count, groups)
        self.pieces = pieces[_in_turn(group[pieces])]
        self._group = group[self.pieces] if groups > 1 else None
        self._mixed: dict[int, Ints] = {}
        self._members = None if members is None else np.asarray(members, dtype=np.int64)
        self._first = edges[self.pieces]
        self._slots = np.concatenate(([0], np.cumsum(np.diff(edges)[self.pieces])))
        windows = max(1, -(-count // window))
        self._firsts = np.arange(windows + 1) * count // windows
        self._starts = self._slots[self._firsts]
        self._keys = mix(np.arange(windows, dtype=np.uint64) ^ np.uint64(key_of("window-1", seed, epoch)))

    @property
    def name(self) -> str:
        return f"window-1:{self.window}"

    def windows(self, positions: npt.ArrayLike) -> Ints:
        """Number of the window that contains each position."""
        return np.searchsorted(self._starts, self._checked(positions), side="right") - 1

    def passed(self, position: int) -> tuple[int, int]:
        """Number of pieces, the first of ``pieces``, that are used before ``position``; and until which position."""
        window = int(self.windows([position])[0])
        return int(self._firsts[window]), int(self._starts[window + 1])

    def take(self, positions: npt.ArrayLike) -> Ints:
        places = self._checked(positions)
        flat = places.reshape(-1)
        windows = np.searchsorted(self._starts, flat, side="right") - 1
        if self._group is None:
            slots = self._shuffled(flat, windows)
        else:
            slots = np.empty_like(flat)
            by_window = np.argsort(windows, kind="stable")
            found, begins = np.unique(windows[by_window], return_index=True)
            for window, here in zip(found.tolist(), np.split(by_window, begins)[1:], strict=True):
                slots[here] = self._in_groups(window, self._group)[flat[here] - self._starts[window]]
        pieces = np.searchsorted(self._slots, slots, side="right") - 1
        samples: Ints = self._first[pieces] + slots - self._slots[pieces]
        if self._members is not None:
            samples = self._members[samples]
        return samples.reshape(places.shape)

    def _shuffled(self, places: Ints, windows: Ints) -> Ints:
        """Permute positions within their windows."""
        starts = self._starts[windows]
        lengths = (self._starts[windows + 1] - starts).astype(np.uint64)
        return starts + _permuted((places - starts).astype(np.uint64), lengths, self._keys[windows]).astype(np.int64)

    def _in_groups(self, window: int, group: Ints) -> Ints:
        """Positions of a window, permuted, of each group in turn; those of the last windows are kept."""
        known = self._mixed  # one reference: another thread may replace it meanwhile
        if window not in known:
            places = np.arange(self._starts[window], self._starts[window + 1])
            slots = self._shuffled(places, np.full_like(places, window))
            of_slots = group[np.searchsorted(self._slots, slots, side="right") - 1]
            known = {**dict([*known.items()][1 - _KNOWN :]), window: slots[_in_turn(of_slots)]}
            self._mixed = known
        return known[window]


def group_of(pieces: int, groups: int) -> Ints:
    """Group of each piece: a random division into groups that differ by one piece at most, the same for ever."""
    found = np.empty(pieces, dtype=np.int64)
    found[ExactOrder(pieces, key_of("groups", groups))[:]] = np.arange(pieces) % groups
    return found


def _in_turn(group: Ints) -> Ints:
    """Permutation that takes values of each ``group`` in turn; those of one group stay in their order."""
    by_group = np.argsort(group, kind="stable")
    sizes = np.bincount(group)
    turns = np.arange(len(group)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    shares = (2 * turns + 1) / np.repeat(2 * sizes, sizes)  # where in its group: the same for groups of one size
    return by_group[np.lexsort((group[by_group], shares))]


def _permuted(places: UInts, lengths: UInts, keys: UInts) -> UInts:
    """Permute positions below ``lengths`` by ``keys``; both may have one element, for all positions.

    A position is a pair below (rows, columns), with rows about the root of the length: about one pair in ``rows`` lies
    beyond the end, and is permuted again. Rows are even, because rotations of an odd length are even permutations.
    """
    if not places.size:
        return places
    rows = np.ceil(np.sqrt(lengths.astype(np.float64)) / 2).astype(np.uint64) * np.uint64(2)
    columns = (lengths + rows - np.uint64(1)) // rows
    round_keys = mix(keys + _STEPS)
    found = _rounds(places, rows, columns, round_keys)
    beyond = np.flatnonzero(found >= lengths)
    while beyond.size:
        some = beyond if len(keys) > 1 else np.zeros(1, dtype=np.int64)
        again = _rounds(found[beyond], rows[some], columns[some], round_keys[:, some])
        found[beyond] = again
        beyond = beyond[again >= lengths[some]]
    return found


def _rounds(places: UInts, rows: UInts, columns: UInts, keys: UInts) -> UInts:
    left = places // columns
    right = places - left * columns
    for number, key in enumerate(keys):
        if number % 2:
            right += _below(left ^ key, columns)
            right -= columns * (right >= columns)
        else:
            left += _below(right ^ key, rows)
            left -= rows * (left >= rows)
    left *= columns
    left += right
    return left


def _below(values: UInts, limits: UInts) -> UInts:
    """Keyed hash of each value, below ``limits``: the upper half of 64 bits, scaled."""
    values ^= values >> _HALF
    values *= _MULTIPLIER
    values ^= values >> _HALF
    values *= _MULTIPLIER
    values >>= _HALF
    values *= limits
    values >>= _HALF
    return values
