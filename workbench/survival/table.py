"""Runs the cases one after the other in one job, and records the cost of each.

results = run(folder, {"localhost": 4}, ONE_HOST)
assert not [result for result in results if result.wrong]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from farandole.events import Recovery
from farandole.testing.ledger import Begun, Brought, History, Record, Voted, read
from workbench.cluster import Cluster
from workbench.survival.cases import FaultCase
from workbench.survival.fault_injection import LETHAL, NEWCOMER, InjectedFault, answer, fault, injected
from workbench.survival.job import Hosts, JobLostError, TraineeJob
from workbench.survival.records import GenerationRecord, TrainingPlan

PLAN = TrainingPlan()
RECOVERS_S = 60.0
"""Time after which a fault counts as not survived."""


@final
@dataclass
class CaseResult:
    """Result of a case; ``wrong`` is empty if all promises were kept. Times are of the parts that follow the fault."""

    case: FaultCase
    wrong: list[str] = field(default_factory=list)
    detect_s: float | None = None
    form_s: float | None = None
    first_step_s: float | None = None
    total_s: float | None = None

    before: list[GenerationRecord] = field(default_factory=list)
    injected: list[InjectedFault] = field(default_factory=list)
    left: int = 0
    """The latest generation at the end of the case."""


@final
class _Run:
    """One job and its cases."""

    def __init__(self, folder: Path, job: TraineeJob) -> None:
        self._folder, self._job = folder, job
        self.results: list[CaseResult] = []

    def play(self, number: int, case: FaultCase, comes_back: bool = True) -> None:
        """Let a case happen, and wait until the job has recovered."""
        job = self._job
        result = CaseResult(case)
        self.results.append(result)
        last = 0
        try:
            result.before = job.until_whole()
            last = result.before[0].generation
            fault(self._folder, number, case.faults)
            first = [each for each in case.faults if not each.later or each.action == "call"]
            job.until(lambda: len(injected(self._folder, number)) >= len(first), f"{case.fault} in {case.phase}")
            if case.done is not None:
                case.done(job, number)
            answer(self._folder, number)  # workers in a ``call`` wait in their phase until now
            self._settle(case, number, last, comes_back)
        except (JobLostError, AssertionError) as error:
            result.wrong.append(str(error))
        result.injected = injected(self._folder, number)
        result.left = max((each.generation for each in job.generation_records()), default=0)
        if case.harmless and result.left != last:
            result.wrong.append(f"generation {last} has ended\n{job.errors[-3000:]}")

    def _settle(self, case: FaultCase, number: int, last: int, comes_back: bool) -> None:
        job = self._job
        if case.harmless:
            job.until_steps(2)
        elif not case.planned:
            job.until(lambda: _latest(job) > last, "the others go on", RECOVERS_S)
        if case.after is not None:
            case.after(job, number)
        job.until(lambda: len(injected(self._folder, number)) == len(case.faults), f"{case.fault} in {case.phase}")
        if comes_back:
            job.until_whole(after=0 if case.harmless or case.planned else last)
            job.until_steps(1)


def run(
    folder: Path,
    hosts: Hosts,
    cases: Sequence[FaultCase],
    last: Sequence[FaultCase] = (),
    cluster: Cluster | None = None,
    inside: Sequence[str] = (),
    tell: Callable[[CaseResult], object] = lambda _: None,
    plan: TrainingPlan = PLAN,
    options: Sequence[str] = (),
) -> list[CaseResult]:
    """Play ``cases``, then ``last``, in one job; ``JobLostError`` if it does not end. ``tell`` gets each result."""
    with TraineeJob(folder, hosts, plan, cluster, inside, options) as job:
        playing = _Run(folder, job)
        for number, case in enumerate((*cases, *last)):
            playing.play(number, case, comes_back=case not in last)
            _judge(playing.results[-1], read(folder))
            tell(playing.results[-1])
            if job.process.poll() is not None:
                break
        code = job.finish()
    history = read(folder)
    expected = playing.results[-1].case.status
    wrong = ([f"the job ended with {code}, not {expected}"] if code != expected else []) + history.problems(
        plan.length, _epochs(history)
    )
    playing.results[-1].wrong += wrong + _miscounted(job, plan)
    return playing.results


def _latest(job: TraineeJob) -> int:
    generation = job.generation()
    return generation[0].generation if generation else 0


def _miscounted(job: TraineeJob, plan: TrainingPlan) -> list[str]:
    """List the workers that did not apply each sample once in each epoch, if their weights count that."""
    records = job.applied()
    found = [] if records or plan.framework == "torch" else ["no worker has said how often samples were applied"]
    for each in records:
        wrong = {index: count for index, count in enumerate(each.counts) if count != each.epochs}
        if wrong:
            found.append(f"{each.worker}: in {each.epochs} epochs samples were applied so often: {wrong}")
    return found


def _epochs(history: History) -> int:
    return 1 + max((record.epoch for record in history.records if isinstance(record, Brought)), default=-1)


def _judge(result: CaseResult, history: History) -> None:
    """Check P1 and P3, and take the times."""
    if not result.before or result.case.harmless:
        return
    last = result.before[0].generation
    gone = {each.worker for each in result.injected if each.action in LETHAL}
    gone |= {each.worker for each in result.before if each.worker.startswith(f"{result.case.lost}-")}
    stay = {f"worker-{each.worker}" for each in result.before} - _ledgers(gone)
    if not result.case.planned or result.case.lost:
        for worker in sorted(stay):
            own = [r.generation for r in history.workers.get(worker, []) if isinstance(r, Begun)]
            if max(own, default=0) < result.left:
                result.wrong.append(f"{worker} was not in generation {result.left}")
    later = {generation: begun for generation, begun in history.begun.items() if last < generation <= result.left}
    tried = [r.step for r in history.records if isinstance(r, Brought) and r.generation == last]
    kept = max(tried, default=0) + result.case.planned  # nothing is lost if the change was announced
    if later and tried and min(later.values(), key=lambda b: b[0].generation)[0].step < kept:
        result.wrong.append(f"step {max(tried)} was under way, and generation {min(later)} began before step {kept}")
    first = next((g for g in sorted(history.recovered) if last < g <= result.left), 0)
    if first:
        _time(result, history.recovered[first], [r for r in history.records if _is_first_step(r, first)])


def _ledgers(gone: set[str]) -> set[str]:
    """The names of the ledgers of these workers."""
    return {f"worker-{each}" for each in gone}


def _is_first_step(record: Record, generation: int) -> bool:
    return isinstance(record, Voted) and record.generation == generation


def _time(result: CaseResult, recovered: Sequence[Recovery], voted: Sequence[Record]) -> None:
    """Take the times, from the first fault of a member to the first step with a complete vote."""
    primary = [each for each in result.injected if each.rank != NEWCOMER]
    slowest = max(recovered, key=lambda r: r.form_s + r.agree_s + r.transfer_s + r.first_step_s)
    back_s = min(record.time_s for record in voted if isinstance(record, Voted))
    result.form_s = slowest.form_s + slowest.agree_s + slowest.transfer_s
    result.first_step_s = slowest.first_step_s
    if primary:
        result.total_s = back_s - primary[0].time_s
        result.detect_s = max(0.0, result.total_s - result.form_s - result.first_step_s)
