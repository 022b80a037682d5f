"""Contract of ``Scheduler``, as one suite for any implementation.

    class MyUnderTest(SchedulerUnderTest): ...

    assert not any(run_contract(MyUnderTest()).values())

A case is a function of a ``SchedulerBench``. Each gets a scheduler of its own, on a cluster without jobs.
"""

from __future__ import annotations

import secrets
import traceback
from collections.abc import Callable, Mapping
from typing import TypeAlias

from farandole.launch.leases.scheduler import (
    CallDone,
    CallRefused,
    CallUnanswered,
    JobPhase,
    Looked,
    NodesLooked,
    Submitted,
)
from farandole.testing.leaks import no_leaks
from workbench.scheduler.bench import SchedulerBench, are_gone, phases
from workbench.scheduler.under_test import SchedulerUnderTest

Case: TypeAlias = Callable[[SchedulerBench], None]

PATIENCE_S = 20.0
"""Patience of the scheduler in cases without slow calls."""
SHORT_S = 2.0
"""Patience in cases with slow calls."""


def run_contract(under_test: SchedulerUnderTest, cases: Mapping[str, Case] | None = None) -> dict[str, str]:
    """Run ``cases`` (default: all); the result maps each to its error ("" for none)."""
    return {name: _run(under_test, case) for name, case in (CASES if cases is None else cases).items()}


def _run(under_test: SchedulerUnderTest, case: Case) -> str:
    scheduler = under_test.scheduler(SHORT_S if case in _SLOW else PATIENCE_S)
    try:
        case(SchedulerBench(under_test, scheduler))
    except Exception:  # exceptions of the scheduler are findings, too
        return traceback.format_exc()
    finally:
        scheduler.close()
        under_test.clear()
    return ""


def submitted_jobs_are_held(bench: SchedulerBench) -> None:
    """Submitted jobs all exist, by index, and none of them runs before it is started."""
    array = bench.submitted(4)
    assert phases(bench.look(array)) == dict.fromkeys(range(4), JobPhase.HELD)
    bench.stays(f"{array}_3", JobPhase.HELD)


def a_started_job_runs(bench: SchedulerBench) -> None:
    """A started job runs on a node until a known time, and no other job runs."""
    array = bench.submitted(3, minutes=7)
    bench.done("start", f"{array}_1")
    view = bench.until(array, lambda jobs: phases(jobs)[1] is JobPhase.RUNNING, "a started job runs")[1]
    assert len(view.nodes) == 1, f"a job of one node runs on {view.nodes}"
    assert view.ends_s > 0, f"a job of 7 minutes ends at {view.ends_s}"
    assert phases(bench.look(array)) == {0: JobPhase.HELD, 1: JobPhase.RUNNING, 2: JobPhase.HELD}


def a_started_job_waits_for_a_node(bench: SchedulerBench) -> None:
    """A started job without a free node is pending, with a reason, and runs when another job has ended."""
    nodes = bench.under_test.nodes
    array = bench.submitted(nodes + 1)
    for index in range(nodes + 1):
        bench.done("start", f"{array}_{index}")
    every = [JobPhase.PENDING] + [JobPhase.RUNNING] * nodes
    jobs = bench.until(
        array,
        lambda jobs: sorted((v.phase for v in jobs.values()), key=lambda p: p.value) == every and _reasons(jobs),
        "one waits, and says why",
    )
    running = next(index for index, view in jobs.items() if view.phase is JobPhase.RUNNING)
    pending = next(index for index, view in jobs.items() if view.phase is JobPhase.PENDING)
    assert not jobs[pending].nodes, f"a job that waits has nodes: {jobs[pending]}"
    bench.done("cancel", f"{array}_{running}")
    bench.until(array, lambda jobs: phases(jobs)[pending] is JobPhase.RUNNING, "it runs when another is cancelled")


def _reasons(jobs: Mapping[int, object]) -> bool:
    return any(
        getattr(view, "phase", None) is JobPhase.PENDING and getattr(view, "reason", "") for view in jobs.values()
    )


def cancelled_jobs_are_gone(bench: SchedulerBench) -> None:
    """Jobs are cancelled in any phase; to cancel a job that no longer exists is no error."""
    nodes = bench.under_test.nodes
    array = bench.submitted(nodes + 3)
    for index in range(nodes + 1):
        bench.done("start", f"{array}_{index}")
    bench.until(array, lambda jobs: list(phases(jobs).values()).count(JobPhase.RUNNING) == nodes, "some run")
    for index in range(nodes + 2):
        bench.done("cancel", f"{array}_{index}")
    bench.until(array, are_gone(*range(nodes + 2)), "the cancelled ones are gone")
    assert phases(bench.look(array)) == {nodes + 2: JobPhase.HELD}, "others stay"
    bench.done("cancel", f"{array}_0")
    bench.done("cancel", f"{array}_{nodes + 2}")
    bench.until(array, are_gone(nodes + 2), "the last is gone")


def what_is_not_there_is_gone(bench: SchedulerBench) -> None:
    """A look at an unknown array shows no job, and is no error; neither is cancelling one of its jobs."""
    assert phases(bench.look("999999")) == {}
    bench.done("cancel", "999999_1")
    bench.scheduler.start("999999_1")
    answer = bench.answer()
    assert isinstance(answer, CallRefused), f"start of a job that is not known: {answer}"
    assert (answer.call, answer.subject) == ("start", "999999_1")


def an_array_is_found_by_its_nonce(bench: SchedulerBench) -> None:
    """``find`` finds an array by its nonce, held, pending or running, and none by another nonce."""
    nonces = [secrets.token_hex(4) for _ in range(3)]
    arrays = []
    for nonce in nonces[:2]:
        bench.scheduler.submit(bench.under_test.script(5), 2, nonce)
        answer = bench.answer()
        assert isinstance(answer, Submitted), f"submit: {answer}"
        arrays.append(answer.array)
    assert len(set(arrays)) == 2, f"two arrays have the numbers {arrays}"
    bench.done("start", f"{arrays[1]}_0")
    for nonce, array in zip(nonces, [*arrays, ""], strict=True):
        bench.scheduler.find(nonce)
        answer = bench.answer()
        assert answer == Submitted(nonce, array), f"find of the array {array!r}: {answer}"


def a_time_limit_is_set(bench: SchedulerBench) -> None:
    """A time limit is set of a held job, which stays held, and lowered of a running job, which then ends earlier."""
    array = bench.submitted(2, minutes=30)
    bench.done("set_limit", f"{array}_0", 20)
    bench.stays(f"{array}_0", JobPhase.HELD)
    for index in (0, 1):
        bench.done("start", f"{array}_{index}")
    jobs = bench.until(
        array, lambda jobs: set(phases(jobs).values()) == {JobPhase.RUNNING} and len(jobs) == 2, "both run"
    )
    apart_s = jobs[1].ends_s - jobs[0].ends_s
    assert 500 < apart_s < 700, f"of two jobs that began together, limits of 20 and 30 minutes end {apart_s} s apart"
    bench.done("set_limit", f"{array}_1", 10)
    earlier_s = jobs[1].ends_s - bench.look(array)[1].ends_s
    assert 1100 < earlier_s < 1300, f"with a limit of 10 minutes instead of 30, a job ends {earlier_s} s earlier"


def a_nice_value_releases_nothing(bench: SchedulerBench) -> None:
    """The priority of a waiting job can be lowered; a held job stays held, whether the call is refused or done."""
    nodes = bench.under_test.nodes
    array = bench.submitted(nodes + 2)
    bench.scheduler.set_nice(f"{array}_{nodes + 1}", 100)
    answer = bench.answer()
    assert isinstance(answer, CallDone | CallRefused), f"set_nice of a held job: {answer}"
    bench.stays(f"{array}_{nodes + 1}", JobPhase.HELD)
    for index in range(nodes + 1):
        bench.done("start", f"{array}_{index}")
    jobs = bench.until(array, lambda jobs: list(phases(jobs).values()).count(JobPhase.RUNNING) == nodes, "some run")
    pending = next(index for index, view in jobs.items() if view.phase is JobPhase.PENDING)
    bench.done("set_nice", f"{array}_{pending}", 100)
    bench.stays(f"{array}_{pending}", JobPhase.PENDING)


def what_an_administrator_holds_stays_so(bench: SchedulerBench) -> None:
    """A job that an administrator holds is barred, and no call of its user releases it."""
    array = bench.submitted(2)
    job = f"{array}_1"
    bench.under_test.bar(job)
    bench.until(array, lambda jobs: phases(jobs) == {0: JobPhase.HELD, 1: JobPhase.BARRED}, "one is barred")
    bench.scheduler.start(job)
    answer = bench.answer()
    assert isinstance(answer, CallRefused), f"start of a job that an administrator holds: {answer}"
    assert (answer.call, answer.subject) == ("start", job), f"start of {job}: {answer}"
    assert answer.words, "it is not said why"
    bench.scheduler.set_nice(job, 100)
    assert isinstance(bench.answer(), CallDone | CallRefused)
    bench.stays(job, JobPhase.BARRED)
    bench.done("cancel", job)
    bench.until(array, are_gone(1), "it can be cancelled")


def drained_nodes_are_told(bench: SchedulerBench) -> None:
    """A node that is being drained is reported with the reason, even with a job on it; no other is, nor later."""
    array = bench.started(1)
    (node,) = bench.look(array)[0].nodes
    assert _drained(bench, node) == {}
    bench.under_test.drain(node, "a fan, or so")
    try:
        assert _drained(bench, node, "nowhere") == {node: "a fan, or so"}
        assert _drained(bench, "nowhere") == {}
        assert phases(bench.look(array)) == {0: JobPhase.RUNNING}, "a job ends with the drain of its node"
    finally:
        bench.under_test.undrain(node)
    assert _drained(bench, node) == {}


def _drained(bench: SchedulerBench, *nodes: str) -> Mapping[str, str]:
    bench.scheduler.look_at_nodes(nodes)
    answer = bench.answer()
    assert isinstance(answer, NodesLooked), f"look at nodes: {answer}"
    assert answer.nodes == nodes, f"look at {nodes}: {answer}"
    return answer.drained


def refused_submissions_are_told(bench: SchedulerBench) -> None:
    """A refusal has the scheduler's message, and nothing is submitted; the next call is answered."""
    _is_refused(bench, bench.under_test.impossible_script())
    array = bench.submitted(1)
    bench.under_test.close_queue()
    try:
        _is_refused(bench, bench.under_test.script(5))
        bench.done("start", f"{array}_0")  # growing needs no right to submit
        bench.until(array, lambda jobs: phases(jobs) == {0: JobPhase.RUNNING}, "it runs")
    finally:
        bench.under_test.open_queue()
    bench.submitted(1)


def _is_refused(bench: SchedulerBench, script: str) -> None:
    nonce = secrets.token_hex(4)
    bench.scheduler.submit(script, 2, nonce)
    answer = bench.answer()
    assert isinstance(answer, CallRefused), f"submit: {answer}"
    assert (answer.call, answer.subject) == ("submit", nonce), f"submit with the nonce {nonce}: {answer}"
    assert answer.words.strip(), "it is not said why"
    assert "\n" not in answer.words, f"the words are no line: {answer.words!r}"
    bench.scheduler.find(nonce)
    assert bench.answer() == Submitted(nonce, ""), "what was refused is there"


def calls_are_answered_in_their_order(bench: SchedulerBench) -> None:
    """Each call has one answer, in the order of the calls, without a wait for another call."""
    array = bench.submitted(2)
    first, second = f"{array}_0", f"{array}_1"
    bench.scheduler.look(array)
    bench.scheduler.cancel(second)
    bench.scheduler.start("999999_1")
    bench.scheduler.start(first)
    bench.scheduler.find("0badf00d")
    bench.scheduler.cancel(first)
    looked, *others = bench.answers(6)
    assert isinstance(looked, Looked), f"look: {looked}"
    assert phases(looked.jobs) == {0: JobPhase.HELD, 1: JobPhase.HELD}, f"a look saw what was asked for later: {looked}"
    assert [(getattr(each, "call", "find"), getattr(each, "job", "")) for each in others] == [
        ("cancel", second),
        ("start", ""),
        ("start", first),
        ("find", ""),
        ("cancel", first),
    ], f"{others}"
    bench.until(array, are_gone(0, 1), "both are gone")
    assert bench.scheduler.answers() == [], "there are more answers than calls"


def a_scheduler_that_is_away_says_nothing_of_jobs(bench: SchedulerBench) -> None:
    """Calls are unanswered while it is away, also looks: no job counts as gone. Then it answers as before."""
    array = bench.submitted(2)
    nonce = secrets.token_hex(4)
    bench.under_test.go_away()
    try:
        _is_unanswered(bench, lambda: bench.scheduler.look(array), ("look", array))
        _is_unanswered(bench, lambda: bench.scheduler.look_at_nodes(["node1"]), ("look_at_nodes", ""))
        _is_unanswered(bench, lambda: bench.scheduler.start(f"{array}_0"), ("start", f"{array}_0"))
        _is_unanswered(bench, lambda: bench.scheduler.cancel(f"{array}_0"), ("cancel", f"{array}_0"))
        _is_unanswered(bench, lambda: bench.scheduler.set_limit(f"{array}_0", 3), ("set_limit", f"{array}_0"))
        _is_unanswered(bench, lambda: bench.scheduler.set_nice(f"{array}_0", 3), ("set_nice", f"{array}_0"))
        _is_unanswered(bench, lambda: bench.scheduler.submit(bench.under_test.script(5), 2, nonce), ("submit", nonce))
        _is_unanswered(bench, lambda: bench.scheduler.find(nonce), ("find", nonce))
    finally:
        bench.under_test.come_back()
    assert phases(bench.look(array)) == {0: JobPhase.HELD, 1: JobPhase.HELD}, "they are not what they were"
    bench.done("start", f"{array}_0")
    bench.until(array, lambda jobs: phases(jobs)[0] is JobPhase.RUNNING, "it runs")


def an_unanswered_submission_is_found(bench: SchedulerBench) -> None:
    """A call that takes too long is given up at the deadline; ``find`` finds what it did nevertheless."""
    nonce = secrets.token_hex(4)
    bench.under_test.hang()
    try:
        began_s = bench.under_test.now()
        submit = bench.scheduler.submit
        _is_unanswered(bench, lambda: submit(bench.under_test.script(5), 2, nonce), ("submit", nonce))
        took_s = bench.under_test.now() - began_s
        assert took_s < 10 * SHORT_S, f"a call of at most {SHORT_S} s was given up after {took_s:.1f} s"
    finally:
        bench.under_test.come_back()
    array = _found(bench, nonce)
    assert phases(bench.look(array)) == {0: JobPhase.HELD, 1: JobPhase.HELD}


def _found(bench: SchedulerBench, nonce: str) -> str:
    """Look for an array until it is found."""
    for _ in range(100):
        bench.scheduler.find(nonce)
        answer = bench.answer()
        if isinstance(answer, Submitted) and answer.array:
            return answer.array
        assert isinstance(answer, Submitted | CallUnanswered), f"find: {answer}"
        bench.under_test.pause()
    raise AssertionError("what was submitted is never found")


def _is_unanswered(bench: SchedulerBench, call: Callable[[], None], of: tuple[str, str]) -> None:
    call()
    answer = bench.answer()
    assert isinstance(answer, CallUnanswered), f"{of[0]} of a scheduler that is away: {answer}"
    assert (answer.call, answer.subject) == of, f"{of}: {answer}"
    assert answer.words.strip(), f"{of}: it is not said why"


def closing_leaves_nothing(bench: SchedulerBench) -> None:
    """A scheduler leaves no process, thread or descriptor, in any state; it may be closed again."""
    array = bench.submitted(1)
    with no_leaks(SHORT_S):
        for calls in (0, 1, 3):
            scheduler = bench.under_test.scheduler(PATIENCE_S)
            other = SchedulerBench(bench.under_test, scheduler)
            assert phases(other.look(array)) == {0: JobPhase.HELD}
            for _ in range(calls):
                scheduler.look(array)
            scheduler.close()
            scheduler.close()


CASES: dict[str, Case] = {
    case.__name__: case
    for case in (
        submitted_jobs_are_held,
        a_started_job_runs,
        a_started_job_waits_for_a_node,
        cancelled_jobs_are_gone,
        what_is_not_there_is_gone,
        an_array_is_found_by_its_nonce,
        a_time_limit_is_set,
        a_nice_value_releases_nothing,
        what_an_administrator_holds_stays_so,
        drained_nodes_are_told,
        refused_submissions_are_told,
        calls_are_answered_in_their_order,
        a_scheduler_that_is_away_says_nothing_of_jobs,
        an_unanswered_submission_is_found,
        closing_leaves_nothing,
    )
}

_SLOW = (a_scheduler_that_is_away_says_nothing_of_jobs, an_unanswered_submission_is_found)
