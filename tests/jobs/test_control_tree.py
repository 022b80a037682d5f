"""The control plane in virtual time, on a small scale; docs/design/control-tree.md has what it says of large jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import control_tree
from benchmarks.control_simulation import Costs, World, stall_report_s, steps

PER_HOST = 3
COSTS = Costs(receive_s=14e-6, send_s=8e-6, latency_s=25e-6)


@pytest.mark.parametrize("radix", [2, 3, 8])
@pytest.mark.parametrize("ranks", [12, 40, 200])
def test_no_process_handles_more_messages_than_it_has_neighbours(ranks: int, radix: int) -> None:
    world = World(ranks, PER_HOST, radix, COSTS)
    world.begin()
    children = min(radix, -(-ranks // PER_HOST))
    for step in steps(world, "loss", count=3, spread_s=1e-3):
        assert (step.root_received, step.root_sent) == (children, children)
        assert step.busiest_relay <= 2 * (radix + PER_HOST + 1)


def test_flat_takes_as_long_as_there_are_ranks_and_a_tree_as_it_is_deep() -> None:
    taken = {}
    for ranks in (60, 600):
        for radix in (None, 4):
            world = World(ranks, PER_HOST, radix, COSTS)
            world.begin()
            (step,) = steps(world, "loss", count=1, spread_s=0.0)
            taken[ranks, radix] = step.order_s
    assert taken[600, None] > 8 * taken[60, None]
    assert taken[600, 4] < 2 * taken[60, 4]
    assert taken[600, 4] < taken[600, None] / 8


@pytest.mark.parametrize("radix", [None, 2, 8])
def test_a_rank_that_does_not_come_is_named_in_time_and_one_that_is_late_costs_little(radix: int | None) -> None:
    world = World(60, PER_HOST, radix, COSTS, stall_warning_s=10.0)
    world.begin()
    world.collective("loss")
    late = world.collective("loss", late_s=2.0)
    assert late.order_s < 2e-3
    assert late.root_received <= 60
    assert 10.0 <= stall_report_s(world, "loss") < 10.1
    (report,) = world.reports
    assert "missing: rank 30 on h10; ready: ranks 0-2 on h0, " in report


def test_results_become_a_table_and_a_picture(tmp_path: Path) -> None:
    results = [control_tree.simulate(24, radix, count=1) for radix in (None, 2)]
    assert "| 24 | radix 2 | 2 | 2 + 2 | " in control_tree.table(results)
    control_tree.draw(results, results, tmp_path / "control-tree.png")
    assert (tmp_path / "control-tree.png").read_bytes().startswith(b"\x89PNG")


def test_what_a_message_costs_is_measured() -> None:
    costs = control_tree.measure(ranks=20, rounds=3)
    assert costs.send_s > 0
    assert costs.receive_s > 0
