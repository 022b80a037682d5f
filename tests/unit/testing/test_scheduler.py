"""The fake scheduler keeps the contract of schedulers, and the contract finds schedulers that are wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from farandole.launch.leases.scheduler import (
    Answer,
    CallDone,
    CallRefused,
    CallUnanswered,
    JobPhase,
    JobView,
    Looked,
    NodesLooked,
    Scheduler,
    Submitted,
)
from tests.support.testing.scheduler_under_test import FakeUnderTest, Wrap, Wrapped
from workbench.scheduler.cluster import FakeCluster, FakeRefusedError
from workbench.scheduler.contract import CASES, run_contract
from workbench.scheduler.fake import FakeScheduler


@pytest.mark.parametrize("delay_s", [0.0, 0.3])
def test_the_fake_keeps_the_contract(delay_s: float) -> None:
    found = run_contract(FakeUnderTest(delay_s=delay_s))
    assert found == dict.fromkeys(CASES, ""), "\n".join(found.values())


def answering(change: Callable[[list[Answer]], list[Answer]]) -> Wrap:
    """A scheduler with other answers."""
    return lambda fake, _: Wrapped(fake, {}, change)


def saying(change: Callable[[Any], Answer]) -> Wrap:
    """A scheduler that answers each call otherwise."""
    return answering(lambda answers: [change(each) for each in answers])


def showing(**fields: object) -> Wrap:
    """A scheduler whose looks show jobs with other fields."""

    def change(answer: Answer) -> Answer:
        if not isinstance(answer, Looked):
            return answer
        views = {index: msgspec.structs.replace(view, **fields) for index, view in answer.jobs.items()}
        return Looked(answer.array, views)

    return saying(change)


def seeing(see: Callable[[dict[int, JobView]], dict[int, JobView]]) -> Wrap:
    """A scheduler whose looks show other jobs."""
    return saying(lambda answer: Looked(answer.array, see(dict(answer.jobs))) if isinstance(answer, Looked) else answer)


def without(phase: JobPhase) -> Wrap:
    """A scheduler that does not show jobs of a phase."""
    return seeing(lambda jobs: {index: view for index, view in jobs.items() if view.phase is not phase})


def as_held(jobs: dict[int, JobView]) -> dict[int, JobView]:
    """Jobs of which it is not told who holds them."""
    barred = [index for index, view in jobs.items() if view.phase is JobPhase.BARRED]
    return {**jobs, **dict.fromkeys(barred, JobView(JobPhase.HELD))}


def idle(name: str) -> Wrap:
    """A scheduler that says it has done something."""
    return lambda fake, _: Wrapped(fake, {name: lambda job, *_: fake._do(name, job, lambda: None)})


def eager(fake: FakeScheduler, cluster: FakeCluster) -> Scheduler:
    """A scheduler whose jobs run without being started."""

    def release(answers: list[Answer]) -> list[Answer]:
        for each in answers:
            if isinstance(each, Submitted) and each.array:
                cluster.release(f"{each.array}_0")
        return answers

    return Wrapped(fake, {}, release)


def releasing(fake: FakeScheduler, cluster: FakeCluster) -> Scheduler:
    """A scheduler that releases what it is to make nice, as Slurm 22.05 does."""
    return Wrapped(fake, {"set_nice": lambda job, _: fake._do("set_nice", job, lambda: cluster.release(job))})


def strict(fake: FakeScheduler, cluster: FakeCluster) -> Scheduler:
    """A scheduler that refuses to cancel what is gone."""

    def cancel(job: str) -> None:
        cluster._present(job)
        cluster.cancel(job)

    return Wrapped(fake, {"cancel": lambda job: fake._do("cancel", job, lambda: cancel(job))})


def forgetful(fake: FakeScheduler, cluster: FakeCluster) -> Scheduler:
    """A scheduler that gives nothing to do to one that does not answer."""

    def submit(script: str, count: int, nonce: str) -> None:
        if cluster.is_hanging:
            fake.find(nonce)
        else:
            fake.submit(script, count, nonce)

    def change(answers: list[Answer]) -> list[Answer]:
        unanswered = [each for each in answers if isinstance(each, CallUnanswered) and each.call == "find"]
        return [CallUnanswered("submit", e.subject, e.words) if e in unanswered else e for e in answers]

    return Wrapped(fake, {"submit": submit}, change)


def patient(fake: FakeScheduler, cluster: FakeCluster) -> Scheduler:
    """A scheduler that waits for ever."""
    fake._patience_s = 1e6
    return Wrapped(fake, {})


def hasty(fake: FakeScheduler, cluster: FakeCluster) -> Scheduler:
    """A scheduler that answers a look with what was there at the last one."""
    seen: dict[str, Looked] = {}

    def change(answer: Answer) -> Answer:
        return seen.setdefault(answer.array, answer) if isinstance(answer, Looked) else answer

    return Wrapped(fake, {}, lambda answers: [change(each) for each in answers])


BROKEN: list[tuple[str, Wrap]] = [
    ("submitted_jobs_are_held", eager),
    ("submitted_jobs_are_held", without(JobPhase.HELD)),
    ("a_started_job_runs", idle("start")),
    ("a_started_job_runs", showing(ends_s=0.0)),
    ("a_started_job_runs", showing(nodes=())),
    ("a_started_job_runs", hasty),
    ("a_started_job_waits_for_a_node", showing(reason="")),
    ("a_started_job_waits_for_a_node", without(JobPhase.PENDING)),
    ("cancelled_jobs_are_gone", idle("cancel")),
    ("cancelled_jobs_are_gone", strict),
    (
        "what_is_not_there_is_gone",
        saying(lambda it: it if getattr(it, "jobs", True) else CallUnanswered("look", it.array, "Invalid job id")),
    ),
    (
        "what_is_not_there_is_gone",
        saying(lambda it: CallDone(it.call, it.subject) if isinstance(it, CallRefused) else it),
    ),
    ("an_array_is_found_by_its_nonce", lambda fake, _: Wrapped(fake, {"find": lambda _: fake.find("0")})),
    (
        "an_array_is_found_by_its_nonce",
        saying(lambda it: Submitted(it.nonce, it.array or "1") if isinstance(it, Submitted) else it),
    ),
    ("a_time_limit_is_set", idle("set_limit")),
    ("a_nice_value_releases_nothing", releasing),
    ("what_an_administrator_holds_stays_so", seeing(as_held)),
    (
        "what_an_administrator_holds_stays_so",
        saying(lambda it: msgspec.structs.replace(it, words="") if isinstance(it, CallRefused) else it),
    ),
    (
        "drained_nodes_are_told",
        saying(lambda it: NodesLooked(it.nodes, {}) if isinstance(it, NodesLooked) else it),
    ),
    (
        "drained_nodes_are_told",
        saying(lambda it: NodesLooked(it.nodes, dict.fromkeys(it.nodes, "x")) if isinstance(it, NodesLooked) else it),
    ),
    (
        "refused_submissions_are_told",
        saying(lambda it: Submitted(it.subject, "1") if getattr(it, "call", "") == "submit" else it),
    ),
    (
        "refused_submissions_are_told",
        saying(lambda it: msgspec.structs.replace(it, words=f"{it.words}\n") if isinstance(it, CallRefused) else it),
    ),
    ("calls_are_answered_in_their_order", answering(lambda answers: answers[::-1])),
    ("calls_are_answered_in_their_order", answering(lambda answers: [*answers, *answers[1:2]])),
    (
        "a_scheduler_that_is_away_says_nothing_of_jobs",
        saying(lambda it: Looked(it.subject, {}) if isinstance(it, CallUnanswered) and it.call == "look" else it),
    ),
    (
        "a_scheduler_that_is_away_says_nothing_of_jobs",
        saying(lambda it: CallRefused(it.call, it.subject, it.words) if isinstance(it, CallUnanswered) else it),
    ),
    ("an_unanswered_submission_is_found", forgetful),
    ("an_unanswered_submission_is_found", patient),
    ("closing_leaves_nothing", lambda fake, _: Wrapped(fake, {"close": lambda: None})),
]
"""Case that has to find it, and what is wrong."""


@pytest.mark.parametrize("number", range(len(BROKEN)))
def test_the_contract_finds_a_scheduler_that_is_wrong(number: int) -> None:
    case, wrap = BROKEN[number]
    made: list[FakeScheduler] = []

    def keep(fake: FakeScheduler, cluster: FakeCluster) -> Scheduler:
        made.append(fake)
        return wrap(fake, cluster)

    # Without a delay all calls of a case are answered at once: in another order, that is, where that is wrong.
    found = run_contract(FakeUnderTest(keep, delay_s=0.0), {case: CASES[case]})
    for fake in made:
        fake.close()
    assert "AssertionError" in found[case], f"{case} has found nothing"


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster(nodes=2)


def running(cluster: FakeCluster, minutes: int, nodes: int = 1, count: int = 1) -> str:
    """An array whose jobs run."""
    array = cluster.submit(f"#SBATCH --nodes={nodes}\n#SBATCH --time={minutes}\n", count, "n")
    for index in range(count):
        cluster.release(f"{array}_{index}")
    cluster.advance(cluster.start_s)
    assert {view.phase for view in cluster.jobs(array).values()} == {JobPhase.RUNNING}
    return array


def test_a_job_ends_at_its_limit_and_leaves_its_nodes_a_moment_later(cluster: FakeCluster) -> None:
    array = running(cluster, minutes=2)
    cluster.advance(119.9)
    assert cluster.jobs(array)[0].phase is JobPhase.RUNNING
    cluster.advance(0.2)
    assert cluster.jobs(array)[0].phase is JobPhase.ENDING
    cluster.advance(cluster.ending_s)
    assert cluster.jobs(array) == {}


def test_the_start_of_a_job_that_waits_is_estimated(cluster: FakeCluster) -> None:
    began_s = cluster.now_s
    cluster.occupy(nodes=1, minutes=10)
    cluster.occupy(nodes=1, minutes=30)
    array = cluster.submit("#SBATCH --time=60", 3, "n")
    for index in range(3):
        cluster.release(f"{array}_{index}")
    cluster.advance(1.0)
    estimates = [cluster.jobs(array)[index].starts_s - began_s for index in range(3)]
    assert estimates == [600.0, 1800.0, 4200.0]
    cluster.set_nice(f"{array}_0", 100)
    assert cluster.jobs(array)[1].starts_s - began_s == 600.0
    cluster.advance(602.0)
    assert cluster.jobs(array)[1].phase is JobPhase.RUNNING


def test_a_preempted_job_says_at_once_when_it_ends(cluster: FakeCluster) -> None:
    array = running(cluster, minutes=60)
    cluster.preempt(f"{array}_0", grace_s=30.0)
    assert cluster.jobs(array)[0].ends_s == cluster.now_s + 30.0
    cluster.advance(31.0 + cluster.ending_s)
    assert cluster.jobs(array) == {}


def test_jobs_go_with_their_node_and_none_starts_there(cluster: FakeCluster) -> None:
    array = running(cluster, minutes=60, count=2)
    cluster.fail("node1")
    assert [view.nodes for view in cluster.jobs(array).values()] == [("node2",)]
    cluster.drain("node2")
    cluster.end(f"{array}_1")
    cluster.occupy(nodes=1, minutes=1)
    cluster.advance(10.0)
    assert cluster.jobs(array) == {}
    assert cluster.jobs("2")[0].phase is JobPhase.PENDING


def test_a_suspended_job_is_seen_so(cluster: FakeCluster) -> None:
    array = running(cluster, minutes=60)
    cluster.suspend(f"{array}_0")
    assert cluster.jobs(array)[0].phase is JobPhase.SUSPENDED
    cluster.resume(f"{array}_0")
    assert cluster.jobs(array)[0].phase is JobPhase.RUNNING


def test_every_job_of_an_array_counts_against_the_limit(cluster: FakeCluster) -> None:
    cluster.most_jobs = 3
    cluster.submit("", 2, "a")
    with pytest.raises(FakeRefusedError, match="AssocMaxSubmitJobLimit"):
        cluster.submit("", 2, "b")
    assert cluster.find("b") == ""


def test_every_case_has_found_something() -> None:
    assert {case for case, _ in BROKEN} == set(CASES)
