"""Rows of a batch go to ranks that hold them: exact counts, and no assignment lets fewer rows cross."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.data.planning.order import ExactOrder
from farandole.data.planning.plan import HostSpec, plan
from farandole.data.planning.shares import Ints, crossing, share_out
from farandole.elastic.worker.sampler import GlobalBatch
from farandole.errors import UsageError

HOLDERS = st.integers(1, 6).flatmap(
    lambda hosts: st.lists(st.lists(st.booleans(), min_size=hosts, max_size=hosts), max_size=24).map(
        lambda rows: np.array(rows, dtype=np.bool_).reshape(-1, hosts)
    )
)


def most_at_home(holders: np.ndarray, wanted: list[int]) -> int:
    """Size of the largest matching, by augmenting paths of rows: slow, and from a book."""
    of_host: list[list[int]] = [[] for _ in wanted]

    def placed(row: int, seen: set[int]) -> bool:
        for host in np.flatnonzero(holders[row]).tolist():
            if host in seen:
                continue
            seen.add(host)
            if len(of_host[host]) < wanted[host]:
                of_host[host].append(row)
                return True
            for other in of_host[host]:
                if placed(other, seen):
                    of_host[host].remove(other)
                    of_host[host].append(row)
                    return True
        return False

    return sum(placed(row, set()) for row in range(len(holders)))


@given(HOLDERS, st.data())
def test_counts_are_exact_and_as_few_rows_cross_as_can_be(holders: np.ndarray, data: st.DataObject) -> None:
    rows, hosts = holders.shape
    host_of_rank = data.draw(st.lists(st.integers(-1, hosts - 1), min_size=1, max_size=8))
    counts = GlobalBatch(0, rows).counts(len(host_of_rank))
    if data.draw(st.booleans()):  # and any others, as weights may want them
        counts = [rows, *[0] * (len(counts) - 1)]
    shares = share_out(holders, host_of_rank, counts)
    assert [len(share) for share in shares] == counts
    assert sorted(row for share in shares for row in share.tolist()) == list(range(rows))
    assert all((np.diff(share) > 0).all() for share in shares)
    wanted = [sum(c for c, h in zip(counts, host_of_rank, strict=True) if h == host) for host in range(hosts)]
    assert crossing(holders, host_of_rank, shares) == rows - most_at_home(holders, wanted)


def test_ranks_of_a_host_share_its_rows() -> None:
    holders = np.array([[True, False], [False, True], [True, False], [False, True]])
    shares = share_out(holders, [0, 1, 0, 1], [1, 1, 1, 1])
    assert [share.tolist() for share in shares] == [[0], [1], [2], [3]]


def test_what_all_hosts_hold_makes_way() -> None:
    """Rows that are everywhere fill up what the others leave, and one that nobody holds goes where nothing is held."""
    holders = np.array([[True, True], [True, True], [True, False], [True, False], [False, False]])
    shares = share_out(holders, [0, 1, -1], [2, 2, 1])
    assert [share.tolist() for share in shares] == [[2, 3], [0, 1], [4]]


@pytest.mark.parametrize(("hosts", "rows", "most"), [(4, 64, 0.06), (16, 64, 0.06), (4, 1024, 0.02)])
def test_few_rows_of_an_exact_shuffle_cross_hosts(hosts: int, rows: int, most: float) -> None:
    """One copy of each piece, as a plan places it; with two copies, nearly none cross."""
    pieces, samples = 400, 400_000
    sizes = np.random.default_rng(5).integers(4 << 20, 64 << 20, pieces)
    bounds = np.arange(pieces + 1) * (samples // pieces)
    order = ExactOrder(samples, seed=1)
    found: list[float] = []
    for copies in (1, 2):
        room = int(sizes.sum()) * copies * 5 // 4 // hosts
        staging = plan(
            np.full(pieces, sizes.mean(), dtype=np.int64), [HostSpec(f"h{h:02}", room) for h in range(hosts)]
        )
        assert staging.replicas == copies
        crossed = 0
        for step in range(20):
            taken = order[step * hosts * rows : (step + 1) * hosts * rows]
            holders = staging.copies[np.searchsorted(bounds, taken, side="right") - 1]
            crossed += crossing(holders, range(hosts), share_out(holders, range(hosts), [rows] * hosts))
        found.append(crossed / (20 * hosts * rows))
    assert 0 < found[0] <= most
    assert found[1] <= 0.001


def test_the_same_everywhere() -> None:
    holders = np.random.default_rng(1).random((512, 8)) < 0.2
    first, second = (share_out(holders.copy(order=way), range(8), [64] * 8) for way in ("C", "F"))
    assert all((one == other).all() for one, other in zip(first, second, strict=True))


def test_counts_of_other_batches_are_refused() -> None:
    holders = np.ones((3, 2), dtype=np.bool_)
    for ranks, counts in (([0, 1], [1, 1]), ([0], [1, 2]), ([0, 1], [4, -1])):
        with pytest.raises(UsageError, match="of 3 rows"):
            share_out(holders, ranks, counts)
    empty: list[Ints] = share_out(np.zeros((0, 2), dtype=np.bool_), [0, 1], [0, 0])
    assert [len(share) for share in empty] == [0, 0]
