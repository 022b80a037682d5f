"""Workers that a search loses, message by message: what counts as a result, and what as a failure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from farandole.control.agent_messages import AGENT
from farandole.control.channel import Router
from farandole.control.exits import HostLost, WorkerExited
from farandole.control.search_messages import PoolHello, PoolRetire, TrialLeft, TrialReport
from farandole.elastic.membership.actions import Decision, Kill
from farandole.errors import ControlError
from farandole.launch.providers.fleet import MOST_EARLY, FleetWorker, ProcessState
from farandole.launch.providers.provider import HostLeaving, HostOffered, ProviderEvent
from farandole.search.loop import SearchLoop
from farandole.search.study import Study, StudyPlan
from farandole.search.trial_job import TrialJob
from farandole.search.worker import POOL
from farandole.version import __version__
from tests.jobs.search.test_watch import HERE, NoProvider, looped

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
def at_work(folder: Path) -> Iterator[tuple[SearchLoop, Study, NoProvider, TrialJob, FleetWorker]]:
    """A search whose only worker is in its first trial."""
    with looped(folder, 1, 1) as (loop, study, provider):
        loop._handle_message(WORKER, PoolHello(HERE, PID, __version__, 0))
        loop._turn(0.0)
        [job], [worker] = loop.groups, loop.fleet
        assert worker.member_id in job.workers
        yield loop, study, provider, job, worker


@pytest.mark.parametrize("end", ["returned", "raised"])
@pytest.mark.parametrize("by", ["membership", "hand"])
def test_what_a_killed_worker_says_is_no_result(
    tmp_path: Path, sent: list[tuple[bytes, object]], by: str, end: str
) -> None:
    with at_work(tmp_path) as (loop, study, provider, job, worker):
        worker_id = worker.member_id
        if by == "membership":
            loop.groups._obey(job, Decision(Kill(worker_id), "it hangs"))
        else:
            loop.stop_trial(0, "somebody said so")
            loop.stop_trial(0, "somebody said so")
        assert provider.killed == [0]
        sent.clear()
        loop._handle_message(WORKER, TrialLeft(worker_id, -1, end, 0.25, "KeyboardInterrupt"))
        assert (study.rows[0].phase, study.rows[0].values) == ("running" if by == "membership" else "pruned", {})
        assert worker.state is ProcessState.SPARED, "its engine was to live"
        assert (WORKER, PoolRetire()) in sent, "the interrupt may hit its next trial"
        loop._turn(0.0)
        loop._on_events([WorkerExited(0, 1)])
        assert provider.started == [0, 1]
        loop._handle_message(POOL + b"y", PoolHello(HERE, PID, __version__, 1))  # the task that is sent again
        loop._turn(0.0)
        assert [job.number for job in loop.groups] == [0 if by == "membership" else 1]


@pytest.mark.parametrize("is_leaving", [True, False])
def test_what_a_function_raises_on_a_node_that_is_wanted_back_is_no_failure(
    tmp_path: Path, sent: list[tuple[bytes, object]], is_leaving: bool
) -> None:
    assert sent == []
    with at_work(tmp_path) as (loop, study, _, _, worker):
        loop.fleet.may_grow = True
        loop._on_events([HostLeaving(HERE)] if is_leaving else [])
        loop._handle_message(
            WORKER, TrialLeft(worker.member_id, 0, "raised", text="DataLoader worker is killed by signal")
        )
        loop._turn(0.0)
        row = study.rows[0]
        assert (row.phase, row.is_active, row.losses) == ("running" if is_leaving else "failed", False, 0)


def test_a_trial_that_goes_on_while_its_workers_leave_is_there_once(
    tmp_path: Path, sent: list[tuple[bytes, object]]
) -> None:
    with looped(tmp_path, 2, 1) as (loop, study, _):
        study.plan = StudyPlan(study.plan.space, 1, study.plan.rungs, minimize=True, seed=1)
        loop._handle_message(WORKER, PoolHello(HERE, PID, __version__, 0))
        loop._turn(0.0)
        [worker_id] = [each.member_id for each in loop.fleet if each.member_id >= 0]
        loop._handle_message(POOL + b"y", PoolHello(HERE, PID + 1, __version__, 1))
        loop._handle_message(WORKER, TrialReport(worker_id, 1, 0.5))
        loop._turn(0.0)  # it is the best, and another worker is free
        assert [job.number for job in loop.groups] == [0, 0]
        loop._handle_message(WORKER, TrialLeft(worker_id, -1, "ended"))
        loop._turn(0.0)
        assert [job.number for job in loop.groups] == [0]
        assert (study.rows[0].is_active, study.rows[0].losses) == (True, 0)
        assert sent


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_end_of_a_process_is_taken_in_after_what_it_had_said(
    tmp_path: Path, sent: list[tuple[bytes, object]], monkeypatch: pytest.MonkeyPatch, order: tuple[int, int]
) -> None:
    with at_work(tmp_path) as (loop, study, provider, _, worker):
        study.plan = StudyPlan(study.plan.space, 1, study.plan.rungs, minimize=True, seed=1)
        came = [
            (AGENT + HERE.encode(), WorkerExited(0, 0)),
            (WORKER, TrialLeft(worker.member_id, 0, "returned", 0.5)),
        ]
        arrived: list[tuple[bytes, object] | None] = [came[each] for each in order]
        monkeypatch.setattr(Router, "recv", lambda _: arrived.pop(0) if arrived else None)
        monkeypatch.setattr(Router, "wait", lambda *_: set())
        said: list[str] = []
        loop.on_change = said.append
        loop.run()
        assert (study.rows[0].value, study.rows[0].losses, study.is_over) == (0.5, 0, True)
        assert not [each for each in said if "exited" in each]
        assert provider.started == [0, 1], "it was to be replaced"
        assert sent


def test_a_stranger_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with looped(tmp_path, 1, 1) as (loop, _, _):
        loop._on_events([WorkerExited(0, 1)])
        for worker_id in (0, 7):  # one that has exited since, and one that was never ordered
            loop._handle_message(POOL + b"z", PoolHello("elsewhere", 100, __version__, worker_id))
        told = [record.getMessage() for record in caplog.records]
        assert told == ["process 100 on elsewhere is none of the workers that the search has started"]
        assert loop.fleet.free == []


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (
            [WorkerExited(each, 7) for each in range(MOST_EARLY + 1)],
            "the workers of the search end before they have begun: the last one exited with code 7",
        ),
        ([HostLost(HERE, "it is down")], f"no host of the search is left; the last one was {HERE}: it is down"),
        (
            [HostOffered(HERE, 0)],
            "0 workers of the pool are left, and a trial has 1 at least: the same call with other hosts goes on",
        ),
    ],
)
def test_a_search_ends_that_cannot_have_workers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, events: list[ProviderEvent], words: str
) -> None:
    with looped(tmp_path, 1, 1) as (loop, _, _):
        with pytest.raises(ControlError) as raised:
            loop._on_events(events)
        assert str(raised.value) == words
        lost = [f"the search goes on without host {HERE}: it is down"] if isinstance(events[0], HostLost) else []
        assert [record.getMessage() for record in caplog.records] == lost
