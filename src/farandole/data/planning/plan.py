"""Staging plan: for each piece the host that reads it, and the hosts that copy, keep and drop it.

    hosts = [HostSpec("node0", 200 * 10**9), HostSpec("node1", 200 * 10**9, holds=[0, 1, 5])]
    staging = plan(pieces.sizes, hosts)
    staging.reads == 0                             # pieces that node0 reads from the shared storage, alone in the job
    staging.copies[piece_of_rows]                  # holders, for ``share_out``

One rule decides about the number of copies: as many whole copies of the data as all caches hold together, at least one,
at most one on each host. With room for less than one copy, what fits is kept, and the rest is read in every epoch: each
host keeps and reads pieces of its own group, because ``WindowOrder`` takes pieces from all groups in turn.
Present copies stay in place, unless another host would get less than its share: so a host more or less moves about the
minimum. The plan depends on the arguments alone, but not on the order of hosts: equal arguments need no communication.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple, final

import msgspec
import numpy as np
import numpy.typing as npt

from farandole.data.planning.keyed import mix
from farandole.data.planning.order import group_of
from farandole.data.planning.placement import Bools, Ints, Placement, level_for
from farandole.errors import UsageError

_SOURCE_SALT: Final = np.uint64(0x5EED)
_CELLS: Final = 1 << 21


@final
class HostSpec(msgspec.Struct, frozen=True):
    """A host in a plan: the bytes of its cache, and the numbers of the pieces that it holds already.

    A ``leaving`` host delivers the pieces that it holds, and takes none.
    """

    name: str
    capacity: int
    holds: Collection[int] | npt.NDArray[Any] = ()
    leaving: bool = False


class Sends(NamedTuple):
    """Copies between hosts: piece by piece in chains, each from a host that has the piece or gets it earlier."""

    pieces: Ints
    sources: Ints
    targets: Ints


class Drops(NamedTuple):
    """Copies to drop, because other pieces need their room: of ``pieces[i]`` on ``hosts[i]``."""

    pieces: Ints
    hosts: Ints


@final
class StagingPlan(NamedTuple):
    """Copies of pieces on hosts, and how they get there; hosts are numbers into ``names``, which are sorted."""

    names: tuple[str, ...]
    capacities: Ints
    sizes: Ints
    replicas: int
    copies: Bools
    """Pieces x hosts: true if the host holds the piece after staging."""
    reads: Ints
    """Host that reads each piece from the shared storage; -1 if some host holds it already."""
    streamed: Bools
    """Pieces that no cache keeps: read in each epoch, by the host in ``reads``."""
    sends: Sends
    drops: Drops

    @property
    def data_bytes(self) -> int:
        """Bytes of all pieces."""
        return int(self.sizes.sum())

    @property
    def streamed_bytes(self) -> int:
        """Bytes that no cache keeps."""
        return int(self.sizes[self.streamed].sum())

    @property
    def read_bytes(self) -> int:
        """Bytes that the whole job reads from the shared storage in its first epoch."""
        return int(self.sizes[self.reads >= 0].sum())

    @property
    def sent_bytes(self) -> int:
        """Bytes that hosts copy from each other until all is staged."""
        return int(self.sizes[self.sends.pieces].sum())

    def shared_bytes(self, epochs: int) -> int:
        """Bytes that the whole job reads from the shared storage in ``epochs`` epochs."""
        return self.read_bytes + (epochs - 1) * self.streamed_bytes if epochs else 0

    def least_bytes(self, epochs: int) -> int:
        """Least bytes that ``epochs`` epochs can read: pieces that no host holds, then the excess over all caches."""
        beyond = max(0, self.data_bytes - sum(self.capacities.tolist()))
        return self.read_bytes + (epochs - 1) * beyond if epochs else 0

    def loads(self) -> Ints:
        """Bytes that each host keeps."""
        return np.array([self.sizes[column].sum() for column in self.copies.T], dtype=np.int64)


def plan(sizes: npt.ArrayLike, hosts: Sequence[HostSpec], reserve: int = 0) -> StagingPlan:
    """Plan the staging of pieces of ``sizes`` bytes on ``hosts``, of which some may hold pieces already.

    If not all data fit, each host keeps ``reserve`` bytes of its cache free for pieces that stream through it. Raises
    ``UsageError`` for hosts with the same name, if no host stays, and for pieces that do not exist.
    """
    nbytes = np.asarray(sizes, dtype=np.int64)
    ordered = sorted(hosts, key=lambda host: host.name)
    _check(nbytes, ordered)
    data = int(nbytes.sum())
    capacities = [0 if host.leaving else min(host.capacity, data) for host in ordered]
    names = tuple(host.name for host in ordered)
    replicas = max(1, sum(capacities) // data if data else sum(not host.leaving for host in ordered))
    held = np.zeros((len(nbytes), len(ordered)), dtype=np.bool_)
    for column, host in enumerate(ordered):
        held[np.fromiter(host.holds, dtype=np.int64), column] = True
    placement = Placement(nbytes, names, np.array(capacities, dtype=np.int64))
    is_stream = sum(capacities) < data
    if not is_stream:
        readers = _place(placement, held, replicas, replicas * data)
        _keep_more(placement, held)
        is_stream = bool((placement.counts == 0).any())  # pieces can be too large for the rooms that are left
    if is_stream:
        replicas, rooms = 1, [max(0, capacity - reserve) for capacity in capacities]
        placement = Placement(nbytes, names, np.array(rooms, dtype=np.int64))
        readers = _place_some(placement, held, [not host.leaving for host in ordered])
    streamed = placement.counts == 0
    dropped = np.nonzero(held & ~placement.copies)
    return StagingPlan(
        names=names,
        capacities=np.array([0 if host.leaving else host.capacity for host in ordered], dtype=np.int64),
        sizes=nbytes,
        replicas=replicas,
        copies=placement.copies,
        reads=readers,
        streamed=streamed,
        sends=_sends(placement, held, readers),
        drops=Drops(*dropped),
    )


def _check(sizes: Ints, hosts: Sequence[HostSpec]) -> None:
    names = [host.name for host in hosts]
    if len({*names}) < len(names):
        raise UsageError(f"two hosts have one name: {', '.join(names)}")
    if all(host.leaving for host in hosts):
        raise UsageError("a plan needs a host that stays: give one, or more")
    if sizes.ndim != 1 or (sizes < 1).any():
        raise UsageError("sizes of pieces must be one row of numbers from 1 on")
    for host in hosts:
        if host.capacity < 0:
            raise UsageError(f"{host.name} has a capacity of {host.capacity} bytes: it must be 0 or more")
        numbers = np.fromiter(host.holds, dtype=np.int64)
        if numbers.size and (numbers.min() < 0 or numbers.max() >= len(sizes)):
            raise UsageError(
                f"{host.name} holds pieces from {numbers.min()} to {numbers.max()}, and the data have {len(sizes)}: "
                "its cache is of other data"
            )


def _place(placement: Placement, held: Bools, replicas: int, total: int) -> Ints:
    """Place the copies that the rule requires, and choose a reader for pieces that no host holds; -1 for the rest."""
    somewhere = held.any(axis=1)
    old, new, every = np.flatnonzero(somewhere), np.flatnonzero(~somewhere), np.arange(len(held))
    level, capacities, sizes = level_for(total, placement.capacities), placement.capacities, placement.sizes
    mean, largest = (int(sizes.mean()), int(sizes.max())) if sizes.size else (0, 0)
    levels = np.full_like(capacities, level)
    everywhere = replicas > 1 and int((capacities > 0).sum()) == replicas  # so each of these has room for all
    if everywhere:  # no choice
        placement.add(*np.nonzero(held & (capacities > 0)))
    else:  # move one copy of many pieces, not all copies of few: a host can take only one of each
        for wanted in sorted({1, max(1, replicas - 1), replicas}):
            placement.place(old, wanted, levels + mean, held)
    poor = _make_room(placement, level, total)
    fill = level_for(int(sizes[new].sum()), np.maximum(0, np.minimum(poor, capacities) - placement.loads))
    even = np.where(poor > 0, placement.loads + fill, 0)
    free = (poor, poor + (poor > 0) * mean, levels, levels + mean, levels + largest)
    passes = (*((bounds, None) for bounds in free), (capacities, held), (capacities, None))
    for bounds, among in ((even, None), (even + mean, None), *passes):
        placement.place(every, 1, bounds, among)
    readers = np.where(somewhere | (placement.counts == 0), -1, placement.copies.argmax(axis=1))
    if everywhere:
        placement.add(*np.nonzero(~placement.copies & (capacities > 0)))
    for bounds, among in passes:
        placement.place(every, replicas, bounds, among)
    return readers


def _make_room(placement: Placement, level: int, total: int) -> Ints:
    """Remove copies from the fullest hosts, one after the other, to make up for hosts that would stay poor.

    Returns the level to which each host is to be filled: 0 for hosts that are nearly full.
    """
    loads, sizes = placement.loads, placement.sizes
    missing = np.minimum(level, placement.capacities) - loads
    poor = missing > max(int(sizes.mean()) if sizes.size else 0, level // 20)
    wanted = int(missing[poor].sum()) - (total - int(loads.sum()))
    fullest = [(-load, host) for host, load in enumerate(loads.tolist()) if load > level]
    heapq.heapify(fullest)
    ascending: dict[int, list[int]] = {}
    taken: dict[int, list[int]] = {}
    while wanted > 0 and fullest:
        load, host = heapq.heappop(fullest)
        if host not in ascending:
            pieces = np.flatnonzero(placement.copies[:, host])
            ascending[host] = pieces[np.argsort(~placement.scores(pieces)[:, host])].tolist()
        piece = ascending[host].pop()
        size = int(sizes[piece])
        taken.setdefault(host, []).append(piece)
        wanted -= size
        if -load - size > level:
            heapq.heappush(fullest, (load + size, host))
    for host, some in taken.items():
        placement.remove(np.array(some, dtype=np.int64), host)
    return np.where(poor, level, 0)


def _keep_more(placement: Placement, held: Bools) -> None:
    """Keep copies beyond the rule as long as there is room: a later plan may need them."""
    for host in range(held.shape[1]):
        pieces = np.flatnonzero(held[:, host] & ~placement.copies[:, host])
        pieces = pieces[np.argsort(~placement.scores(pieces)[:, host], kind="stable")]
        fits = np.cumsum(placement.sizes[pieces]) <= placement.capacities[host] - placement.loads[host]
        placement.add(pieces[fits], np.full(int(fits.sum()), host, dtype=np.int64))


def _place_some(placement: Placement, held: Bools, stays: Sequence[bool]) -> Ints:
    """Place what fits of data that are larger than all caches, and choose the reader of each piece that no host holds.

    A present copy stays in place. What is not kept is read by the host of its group.
    """
    hosts = np.flatnonzero(stays)
    owners = hosts[group_of(len(held), len(hosts))]
    own = owners[:, None] == np.arange(len(stays))[None, :]
    for among in (own & held, held, own, None):
        placement.place(np.arange(len(held)), 1, placement.capacities, among)
    kept = placement.counts > 0
    return np.where(kept, np.where(held.any(axis=1), -1, placement.copies.argmax(axis=1)), owners)


def _sends(placement: Placement, held: Bools, readers: Ints) -> Sends:
    """Chains of copies, a ring of hosts for each piece: from its reader, or a holder, to the next host that gets it."""
    new = placement.copies & ~held
    kept = np.flatnonzero(readers >= 0)
    new[kept, readers[kept]] = False
    pieces, targets = np.nonzero(new)
    heads = np.flatnonzero(np.diff(pieces, prepend=-1))
    lengths = np.diff(heads, append=len(pieces))
    first = pieces[heads]
    origins = readers[first]
    for asking in np.array_split(np.flatnonzero(origins < 0), 1 + held.size // _CELLS):
        scores = mix(placement.scores(first[asking]) ^ _SOURCE_SALT) | np.uint64(1)
        origins[asking] = np.where(held[first[asking]], scores, np.uint64(0)).argmax(axis=1)
    sources = np.roll(targets, 1)
    sources[heads] = targets[heads + lengths - 1]
    before = np.add.reduceat(targets < np.repeat(origins, lengths), heads) if len(heads) else lengths
    sources[heads + before % lengths] = origins
    return Sends(pieces, sources, targets)
