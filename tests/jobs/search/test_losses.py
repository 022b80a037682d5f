"""Workers that a search loses, message by message: what counts as a result, and what as a failure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from farandole.control.channel import Router
from farandole.control.search_messages import PoolHello, PoolRetire, TrialLeft, TrialReport
from farandole.elastic.membership.actions import Decision, Kill
from farandole.search.loop import SearchLoop
from farandole.search.pool_workers import PoolWorker
from farandole.search.study import Study, StudyPlan
from farandole.search.trial_job import TrialJob
from farandole.search.worker import POOL
from farandole.version import __version__
from tests.jobs.search.test_watch import HERE, NoPool, looped

WORKER, PID = POOL + b"x", 4711


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, object]]:
    """Messages to workers, each of which can be reached."""
    found: list[tuple[bytes, object]] = []

    def send(_: Router, identity: bytes, message: object) -> bool:
        found.append((identity, message))
        return True

    monkeypatch.setattr(Router, "send", send)
    return found


@contextmanager
def at_work(folder: Path) -> Iterator[tuple[SearchLoop, Study, NoPool, TrialJob, PoolWorker]]:
    """A search whose only worker is in its first trial."""
    with looped(folder, 1, 1) as (loop, study, pool):
        loop._take(WORKER, PoolHello(HERE, PID, __version__))
        loop._turn(0.0)
        [job], [worker] = loop.jobs.values(), loop.workers
        assert worker.worker_id in job.workers
        yield loop, study, pool, job, worker


@pytest.mark.parametrize("end", ["returned", "raised"])
@pytest.mark.parametrize("by", ["membership", "hand"])
def test_what_a_killed_worker_says_is_no_result(
    tmp_path: Path, sent: list[tuple[bytes, object]], by: str, end: str
) -> None:
    with at_work(tmp_path) as (loop, study, pool, job, worker):
        worker_id = worker.worker_id
        if by == "membership":
            loop._obey(job, Decision(Kill(worker_id), "it hangs"))
        else:
            loop.stop_trial(0, "somebody said so")
            loop.stop_trial(0, "somebody said so")
        assert pool.killed == [PID]
        sent.clear()
        loop._take(WORKER, TrialLeft(worker_id, -1, end, 0.25, "KeyboardInterrupt"))
        assert (study.rows[0].phase, study.rows[0].values) == ("running" if by == "membership" else "pruned", {})
        assert pool.spared == [PID], "its engine was to live"
        assert (WORKER, PoolRetire()) in sent, "the interrupt may hit its next trial"
        loop._turn(0.0)
        loop._take(POOL + b"y", PoolHello(HERE, PID, __version__))  # the task that is sent again
        loop._turn(0.0)
        assert [job.number for job in loop.jobs.values()] == [0 if by == "membership" else 1]


@pytest.mark.parametrize("is_leaving", [True, False])
def test_what_a_function_raises_on_a_node_that_is_wanted_back_is_no_failure(
    tmp_path: Path, sent: list[tuple[bytes, object]], is_leaving: bool
) -> None:
    assert sent == []
    with at_work(tmp_path) as (loop, study, pool, _, worker):
        pool.wanted_back = {HERE} if is_leaving else set()
        loop._take(WORKER, TrialLeft(worker.worker_id, 0, "raised", text="DataLoader worker is killed by signal"))
        loop._turn(0.0)
        row = study.rows[0]
        assert (row.phase, row.is_active, row.losses) == ("running" if is_leaving else "failed", False, 0)


def test_a_trial_that_goes_on_while_its_workers_leave_is_there_once(
    tmp_path: Path, sent: list[tuple[bytes, object]]
) -> None:
    with looped(tmp_path, 2, 1) as (loop, study, _):
        study.plan = StudyPlan(study.plan.space, 1, study.plan.rungs, minimize=True, seed=1)
        loop._take(WORKER, PoolHello(HERE, PID, __version__))
        loop._turn(0.0)
        [worker_id] = [each.worker_id for each in loop.workers]
        loop._take(POOL + b"y", PoolHello(HERE, PID + 1, __version__))
        loop._take(WORKER, TrialReport(worker_id, 1, 0.5))
        loop._turn(0.0)  # it is the best, and another worker is free
        assert [job.number for job in loop.jobs.values()] == [0, 0]
        loop._take(WORKER, TrialLeft(worker_id, -1, "ended"))
        loop._turn(0.0)
        assert [job.number for job in loop.jobs.values()] == [0]
        assert (study.rows[0].is_active, study.rows[0].losses) == (True, 0)
        assert sent
