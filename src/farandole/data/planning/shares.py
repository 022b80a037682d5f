"""Assignment of the rows of a global batch to ranks whose host holds them.

    holders = plan.copies[piece_of(order.take(positions))]      # rows x hosts: who holds the piece of each row
    shares = share_out(holders, host_of_rank=[0, 0, 1, 1], counts=batch.counts(4))
    positions[shares[rank]]                                     # the rows of one rank

Every rank gets exactly as many rows as in contiguous slices, so weights and steps stay the same. No other assignment
lets fewer rows cross hosts: it is a maximum matching of rows and hosts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from farandole.errors import UsageError

Ints = npt.NDArray[np.int64]


def share_out(holders: npt.NDArray[np.bool_], host_of_rank: Sequence[int], counts: Sequence[int]) -> list[Ints]:
    """Rows of each rank, ascending: ``counts[rank]`` of them, as many as possible from those that its host holds.

    ``holders`` has a row per sample and a column per host; ``host_of_rank`` are columns, -1 for a host that holds
    nothing. Raises ``UsageError`` if the counts do not add up to the rows.
    """
    rows, hosts = holders.shape
    if sum(counts) != rows or len(counts) != len(host_of_rank) or (len(counts) and min(counts) < 0):
        raise UsageError(f"{len(counts)} counts of {sum(counts)} rows for {len(host_of_rank)} ranks, of {rows} rows")
    of_rank = np.asarray(host_of_rank, dtype=np.int64) % (hosts + 1)  # -1 is the column after the last
    wanted = np.zeros(hosts + 1, dtype=np.int64)
    np.add.at(wanted, of_rank, np.asarray(counts, dtype=np.int64))
    everywhere: npt.NDArray[np.bool_] = np.all(holders, axis=1)
    host_of_row = _matched(holders & ~everywhere[:, None], wanted[:hosts])
    left = wanted - np.bincount(host_of_row[host_of_row >= 0], minlength=hosts + 1)
    loose = np.flatnonzero(host_of_row < 0)
    loose = loose[np.argsort(~everywhere[loose], kind="stable")]  # rows that not all hosts hold go last
    host_of_row[loose] = np.repeat(np.arange(hosts + 1), left)
    by_host = np.argsort(host_of_row, kind="stable")
    by_rank = np.argsort(of_rank, kind="stable")
    cuts = np.cumsum(np.asarray(counts, dtype=np.int64)[by_rank])
    shares: list[Ints] = [np.zeros(0, dtype=np.int64)] * len(counts)
    for rank, stop in zip(by_rank.tolist(), cuts.tolist(), strict=True):
        shares[rank] = by_host[stop - counts[rank] : stop]
    return shares


def crossing(holders: npt.NDArray[np.bool_], host_of_rank: Sequence[int], shares: Sequence[Ints]) -> int:
    """Number of rows that are not on the host of their rank."""
    return sum(
        len(share) - (int(holders[share, host].sum()) if host >= 0 else 0)
        for host, share in zip(host_of_rank, shares, strict=True)
    )


def _matched(holders: npt.NDArray[np.bool_], room: Ints) -> Ints:
    """Host of each row, -1 for none: a maximum matching of rows to their holders, at most ``room`` rows on a host."""
    host_of_row, room = np.full(len(holders), -1, dtype=np.int64), room.copy()
    held_rows, held_hosts = np.nonzero(holders)  # an edge for each copy of a row, by rows
    by_need = np.argsort(np.bincount(held_rows, minlength=len(holders))[held_rows], kind="stable")
    held_rows, held_hosts = held_rows[by_need], held_hosts[by_need]  # rows with the fewest holders come first
    asking, at = held_rows, held_hosts
    while asking.size:
        _choose(host_of_row, room, asking, at)
        still = (host_of_row[asking] < 0) & (room[at] > 0)
        asking, at = asking[still], at[still]
    _augment(host_of_row, room, held_rows, held_hosts)
    return host_of_row


def _choose(host_of_row: Ints, room: Ints, rows: Ints, hosts: Ints) -> None:
    """Give each row to the emptiest of its hosts, some rows at a time, then take back rows beyond the room."""
    starts = np.flatnonzero(np.diff(rows, prepend=-1))
    asking = rows[starts]
    together = max(64, len(asking) // 16)
    for first in range(0, len(asking), together):
        heads = starts[first : first + together + 1]
        edges = slice(heads[0], heads[together] if len(heads) > together else None)
        scores = room[hosts[edges]] * len(room) + hosts[edges]
        emptiest = np.maximum.reduceat(scores, heads[:together] - heads[0]) % len(room)
        host_of_row[asking[first : first + together]] = emptiest
        room -= np.bincount(emptiest, minlength=len(room))
    for host in np.flatnonzero(room < 0).tolist():
        host_of_row[asking[host_of_row[asking] == host][room[host] :]] = -1
        room[host] = 0


def _augment(host_of_row: Ints, room: Ints, rows: Ints, hosts: Ints) -> None:
    """Place more rows along a path of hosts: each passes one row on to the next, up to a host that has room."""
    while True:
        loose = host_of_row[rows] < 0
        if not loose.any() or not room.any():
            return
        at = host_of_row[rows]
        movable = np.zeros((len(room), len(room)), dtype=bool)  # from a host to another that also holds a row of it
        movable[at[~loose], hosts[~loose]] = True
        onward = _towards_room(movable, room)
        startable = np.flatnonzero(loose & (onward[hosts] >= 0))
        if not startable.size:
            return
        for edge in startable.tolist():
            row, host = int(rows[edge]), int(hosts[edge])
            if host_of_row[row] < 0 and not _passed_on(row, host, onward, host_of_row, room, rows, hosts):
                break  # the paths are older than the last move: compute them anew


def _towards_room(movable: npt.NDArray[np.bool_], room: Ints) -> Ints:
    """Next host on a shortest path to room: the host itself if it has room, -1 if no path exists."""
    onward = np.where(room > 0, np.arange(len(room)), -1)
    while True:
        reachable = movable & (onward >= 0)[None, :]
        new = (onward < 0) & reachable.any(axis=1)
        if not new.any():
            return onward
        onward[new] = reachable[new].argmax(axis=1)


def _passed_on(row: int, host: int, onward: Ints, host_of_row: Ints, room: Ints, rows: Ints, hosts: Ints) -> bool:
    """Give ``row`` to ``host``, and a row of each full host on the path to the next; False if the path is blocked."""
    moves = [(row, host)]
    while room[host] <= 0:
        following = int(onward[host])
        if following == host:
            return False
        passing = np.flatnonzero((hosts == following) & (host_of_row[rows] == host))
        if not passing.size:
            return False
        host = following
        moves.append((int(rows[passing[0]]), host))
    for moved, target in moves:
        host_of_row[moved] = target
    room[host] -= 1
    return True
