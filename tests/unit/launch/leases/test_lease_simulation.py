"""Leases in virtual time: traces, queues, the training, and the run as a whole."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farandole.errors import SettingsError, UsageError
from farandole.launch.leases.journal import replay
from farandole.launch.leases.limits import LeaseLimits
from farandole.launch.leases.rules import LeaseRule
from farandole.launch.leases.simulation.queues import Backfill, Holes
from farandole.launch.leases.simulation.simulate import Mode, simulate, simulate_static
from farandole.launch.leases.simulation.trace import Trace, TraceJob, most_used, read_trace
from farandole.launch.leases.simulation.training import SimulatedTraining, TrainingModel
from workbench.leases.synthetic_trace import lines, synthetic_trace

# -- traces ------------------------------------------------------------------------------------------------------------

SACCT = """\
JobID|User|Submit|Start|End|NNodes|State|Timelimit
7|a|2026-01-05T00:00:00|2026-01-05T00:01:00|2026-01-05T01:01:00|2|COMPLETED|1-02:00:00
7.batch|a|2026-01-05T00:00:00|2026-01-05T00:01:00|2026-01-05T01:01:00|1|COMPLETED|
8_3|b|2026-01-05T00:00:30|2026-01-05T00:30:00|2026-01-05T00:40:00|3|TIMEOUT|00:10:00
9|b|2026-01-05T00:00:30|None|2026-01-05T00:40:00|3|CANCELLED by 7|00:10:00
10|b|2026-01-05T00:02:00|Unknown|Unknown|1|PENDING|UNLIMITED
"""

SWF = """\
; Version: 2.2
; UnixStartTime: 1000000
; MaxNodes: 8
; MaxProcs: 32
1 10 5 100 8 -1 -1 8 200 -1 1 1 1 1 1 1 -1 -1
2 20 0 50 -1 -1 -1 5 60 -1 1 1 1 1 1 1 -1 -1
3 30 -1 -1 4 -1 -1 4 60 -1 5 1 1 1 1 1 -1 -1
"""


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_trace_of_sacct_is_read_by_its_header(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path / "sacct.txt", SACCT))
    zero = 1767571200.0
    assert trace.jobs == (
        TraceJob(zero, zero + 60, zero + 3660, 2, 26 * 3600.0),
        TraceJob(zero + 30, zero + 1800, zero + 2400, 3, 600.0),
    )
    assert trace.nodes == most_used(trace.jobs) == 5
    assert read_trace(tmp_path / "sacct.txt", nodes=9).nodes == 9


def test_a_trace_in_the_standard_workload_format_is_read(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path / "log.swf", SWF))
    assert trace.nodes == 8
    assert trace.jobs == (
        TraceJob(1000010.0, 1000015.0, 1000115.0, 2, 200.0),
        TraceJob(1000020.0, 1000020.0, 1000070.0, 2, 60.0),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("JobID|Submit|Start\n", "no field End, NNodes"),
        ("JobID|Submit|Start|End|NNodes\n", "no job of the trace"),
        ("hello world\n", "none of a trace"),
        ("1 10 5 100 8 -1 -1 8 200 -1 1 1 1 1 1 1 -1\n", "none of a trace"),
    ],
)
def test_a_file_that_is_no_trace_says_how_to_write_one(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"(?s){said}.*sacct -a -P"):
        read_trace(written(tmp_path / "trace", text))


def test_a_synthetic_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    trace = synthetic_trace(days=1, nodes=16, seed=3)
    text = "".join(f"{line}\n" for line in lines(trace))
    assert read_trace(written(tmp_path / "t.txt", text), nodes=16).jobs == tuple(sorted(trace.jobs))
    assert most_used(trace.jobs) <= 16
    assert synthetic_trace(days=1, nodes=16, seed=3) == trace != synthetic_trace(days=1, nodes=16, seed=4)


# -- queues ------------------------------------------------------------------------------------------------------------

JOBS = st.lists(
    st.builds(
        lambda submit, wait, run, nodes: TraceJob(submit, submit + wait, submit + wait + run, nodes, 2.0 * run),
        st.integers(0, 500).map(float),
        st.integers(0, 50).map(float),
        st.integers(1, 300).map(float),
        st.integers(1, 4),
    ),
    min_size=1,
    max_size=30,
).map(lambda jobs: tuple(sorted(jobs)))
LEASES = st.lists(st.tuples(st.integers(0, 500), st.integers(1, 3), st.integers(5, 200)), max_size=8).map(sorted)


@given(JOBS, LEASES)
@settings(max_examples=150, deadline=None)
def test_a_hole_has_room_for_all_of_a_lease(jobs: tuple[TraceJob, ...], leases: list[tuple[int, int, int]]) -> None:
    trace = Trace(jobs, max(4, most_used(jobs)))
    ran = run_leases(Holes(trace, 0.0), leases)
    together = [*jobs, *ran.values()]
    assert most_used(together) <= trace.nodes
    assert len(ran) == len(leases)


@given(JOBS, LEASES)
@settings(max_examples=150, deadline=None)
def test_backfill_uses_no_node_twice_and_delays_no_first_job(
    jobs: tuple[TraceJob, ...], leases: list[tuple[int, int, int]]
) -> None:
    trace = Trace(jobs, 4)
    queue = Backfill(trace, 0.0)
    ran = run_leases(queue, leases)
    starts = queue.starts()
    others = [job._replace(start_s=starts[i], end_s=starts[i] + job.end_s - job.start_s) for i, job in enumerate(jobs)]
    assert len(starts) == len(jobs)
    assert all(job.start_s >= job.submit_s for job in others)
    assert most_used([*others, *ran.values()]) <= 4


def test_backfill_passes_only_what_ends_in_time() -> None:
    """Four nodes: three are taken until 100; the first of the line wants all of them."""
    jobs = (TraceJob(0, 0, 100, 3, 100), TraceJob(1, 1, 51, 4, 50))
    queue = Backfill(Trace(jobs, 4), 2.0)
    queue.submit("long", 1, 99.0)
    queue.submit("short", 1, 98.0)
    assert queue.advance(2.0) == ["short"]
    assert queue.advance(120.0) == []
    assert queue.advance(150.0) == ["long"]
    assert queue.starts() == {0: 0.0, 1: 100.0}


def run_leases(queue: Holes | Backfill, leases: list[tuple[int, int, int]]) -> dict[str, TraceJob]:
    """Submit leases at their times; returns when and where they ran."""
    ran: dict[str, TraceJob] = {}
    todo = [(float(at_s), f"{i}", nodes, float(length)) for i, (at_s, nodes, length) in enumerate(leases)]
    asked = {job: (nodes, length_s) for _, job, nodes, length_s in todo}
    now_s = 0.0
    while todo or queue.next_s < math.inf:
        now_s = max(now_s, min(queue.next_s, todo[0][0] if todo else math.inf))
        for job in queue.advance(now_s):
            nodes, length_s = asked[job]
            ran[job] = TraceJob(now_s, now_s, now_s + length_s, nodes, length_s)
        while todo and todo[0][0] <= now_s:
            _, job, nodes, length_s = todo.pop(0)
            queue.submit(job, nodes, length_s)
    return ran


# -- training ----------------------------------------------------------------------------------------------------------


def test_a_training_takes_what_the_formula_says() -> None:
    """With a noise scale that stays: the time is the samples of E(B) over the throughput."""
    model = TrainingModel(samples=1e7, noise_scale=((0.0, 4000.0),), sync_s=0.01, overlap=1.0, noise_error=0.0)
    for workers in (1, 2, 8):
        batch = 64.0 * workers
        step_s = 0.08 + (0.01 + 0.0004 * max(workers - 2, 0)) * (workers > 1)
        expected = 1e7 * (4000 + batch) / (4000 + 256) / batch * step_s
        assert SimulatedTraining(model).alone_s(workers) == pytest.approx(expected, rel=1e-9)


def test_a_fixed_batch_is_shared() -> None:
    training = SimulatedTraining(TrainingModel(), "fixed")
    assert training.steps(4).global_batch(4) == training.steps(1).global_batch(1) == 256.0
    assert training.steps(4).pass_s == pytest.approx(training.steps(1).pass_s / 4)


def test_the_noise_scale_rises_between_its_points() -> None:
    model = TrainingModel(noise_scale=((0.0, 100.0), (0.5, 10000.0)))
    assert [model.phi(share) for share in (0.0, 0.25, 0.5, 0.9)] == pytest.approx([100, 1000, 10000, 10000])


@pytest.mark.parametrize("line", ["noise-scale = [[0.5, 1], [0.0, 1]]", "batch = 0", "sample = 3", "samples = 'x'"])
def test_a_training_that_cannot_be_names_its_file(tmp_path: Path, line: str) -> None:
    with pytest.raises(SettingsError, match=r"t.toml|noise-scale|must be above 0"):
        TrainingModel.read(written(tmp_path / "t.toml", line))


# -- runs --------------------------------------------------------------------------------------------------------------

EMPTY = Trace((TraceJob(0.0, 0.0, 1.0, 1, 1.0), TraceJob(1e7, 1e7, 1e7 + 1, 1, 1.0)), 64)
SHORT = TrainingModel(samples=2e7)
MODES: list[Mode] = ["holes", "backfill"]


@pytest.mark.parametrize("mode", MODES)
def test_a_static_size_in_an_empty_cluster_takes_its_time_and_the_warm_ups(mode: Mode) -> None:
    limits = LeaseLimits(batch="grow")
    run = simulate_static(limits, EMPTY, SHORT, workers=4, mode=mode)
    alone_s = SimulatedTraining(SHORT).alone_s(4)
    jobs = math.ceil(alone_s / (3600 - 20))
    assert run.seconds == pytest.approx(alone_s + 20 * jobs)
    assert run.node_hours == pytest.approx(4 * (alone_s + 20 * jobs) / 3600)
    assert run.waits_s == (0.0,) * jobs


@pytest.mark.parametrize("mode", MODES)
def test_leases_in_an_empty_cluster_come_close_to_the_best_size(mode: Mode) -> None:
    limits = LeaseLimits(max_np=16, batch="grow")
    run = simulate(limits, EMPTY, SHORT, mode=mode)
    best = min(simulate_static(limits, EMPTY, SHORT, workers=n, mode=mode).seconds or 0 for n in (1, 2, 4, 8, 16))
    assert run.seconds is not None
    assert best * 0.8 < run.seconds < best + 1800
    assert max(point.workers for point in run.points) <= 16


@pytest.mark.parametrize("mode", MODES)
def test_a_simulated_run_keeps_its_bounds_and_its_journal(mode: Mode) -> None:
    trace = synthetic_trace(days=2, nodes=16, seed=2)
    limits = LeaseLimits(max_np=8, most_leases=6, budget_node_hours=20.0, lease_lengths_s=(1800.0,), batch="grow")
    journal: list[str] = []
    run = simulate(limits, trace, TrainingModel(), mode=mode, own=1, write=journal.append)
    assert max(point.workers for point in run.points) <= 7
    assert run.node_hours <= 20.0 + (trace.end_s - trace.begin_s) / 3600  # the lead's own are beside the budget here
    assert not list(replay(journal))
    assert simulate(limits, trace, TrainingModel(), mode=mode, own=1) == run


def test_a_rule_holds_on_how_far_the_training_is() -> None:
    rules = (LeaseRule("share>=0.5", "np=2"),)
    run = simulate(LeaseLimits(max_np=16, rules=rules), EMPTY, SHORT)
    assert run.points[-1].workers == 2
    assert max(point.workers for point in run.points) > 8


@pytest.mark.parametrize("mode", MODES)
def test_a_week_of_thousands_of_jobs_takes_seconds(mode: Mode) -> None:
    """The goal is 10 s; this is for what would take minutes, on a machine that does something else, too."""
    trace = synthetic_trace(days=7, nodes=128, seed=1, load=0.95)
    assert len(trace.jobs) > 3000
    begun = time.process_time()
    run = simulate(LeaseLimits(max_np=32, most_leases=32, batch="grow"), trace, TrainingModel(samples=1e10), mode=mode)
    took_s = time.process_time() - begun
    print(f"{mode}: {len(trace.jobs)} jobs, {len(run.decided)} decisions, {took_s:.1f} s")
    assert run.seconds is None
    assert took_s < 30
