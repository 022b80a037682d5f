"""Leads that die, or are cut off and come back, while leases train on: real processes on one host."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, final

import pytest

from farandole.control import process
from farandole.elastic.membership.journal import replay
from farandole.launch.hosts.leader_log import LeaderLog
from tests.nightly.leases.test_leases import Lend, lend
from tests.support.launch.running import RunningJob
from tests.support.paths import SUPPORT
from tests.support.patience import PATIENCE_S

__all__ = ["lend"]

WORKER = SUPPORT / "launch" / "counting_worker.py"
TRAINS = re.compile(r"trains: size (\d+), step (\d+), process (\d+), rank (\d+)")
STEPS_ON = 10
"""Steps of a generation that show that it goes on."""


class Trains(NamedTuple):
    """What a worker prints when it begins to train."""

    size: int
    step: int
    process: int
    rank: int


@final
class Run:
    """A run folder, its leads, each in a folder of its own, and what its workers have written down."""

    def __init__(self, folder: Path, patience_s: float) -> None:
        self._folder, self.path, self.ledger = folder, folder / "run", folder / "ledger"
        self.path.mkdir(mode=0o700)
        self.ledger.mkdir()
        (self.path / "policy.toml").write_text(f"lead-patience-s = {patience_s}\n")
        self.leads: list[RunningJob] = []

    def lead(self, *options: str, more: str = "") -> RunningJob:
        """Start a lead of one worker, whose command may differ."""
        folder = self._folder / f"lead{len(self.leads)}"
        folder.mkdir()
        (folder / "run").symlink_to(self.path)
        limits = ("--run-folder", str(self.path), "--min-np", "1", "--max-np", "8", "--elastic-journal", "journal")
        command = [sys.executable, str(WORKER), str(self.ledger), *([more] if more else [])]
        self.leads.append(RunningJob(folder, [*limits, *options], command, {"OMP_NUM_THREADS": "1"}))
        return self.leads[-1]

    def steps(self, pid: int) -> list[int]:
        """Numbers of the steps that a process has committed."""
        path = self.ledger / f"steps.{pid}"
        return [int(line) for line in path.read_text().splitlines()] if path.exists() else []

    def goes_on(self, running: RunningJob, found: Iterable[Trains]) -> None:
        """Wait for some steps of all these workers."""
        for each in found:
            running.until(lambda pid=each.process, step=each.step: max(self.steps(pid), default=0) >= step + STEPS_ON)  # type: ignore[misc]

    def end(self, running: RunningJob) -> None:
        """Have the training finish well; every sample must count once in each epoch."""
        (self.ledger / "end").touch()
        assert running.end() == 0, running.stderr
        said = re.findall(r"was applied (.*) times in (.*) epochs", running.stdout)
        assert said
        assert all(counts == f"[{epochs}]" for counts, epochs in said), running.stdout

    def close(self) -> None:
        for each in self.leads:
            signal_all(each.left(), signal.SIGKILL)
            each.process.wait(PATIENCE_S)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Makes a run: ``run(patience_s=60)``."""
    runs: list[Run] = []

    def make(patience_s: float = 60.0) -> Run:
        runs.append(Run(tmp_path, patience_s))
        return runs[-1]

    yield make
    for each in runs:
        each.close()


def trains(running: RunningJob, size: int) -> list[Trains]:
    """Wait until a generation of this size has begun to train; its ranks in order."""
    found: list[Trains] = []

    def is_there() -> bool:
        said = [Trains(*map(int, each)) for each in TRAINS.findall(running.stdout)]
        found[:] = sorted((each for each in said[-size:] if each.size == size), key=lambda each: each.rank)
        return [each.rank for each in found] == list(range(size))

    running.until(is_there, f"for a generation of {size}")
    return found


def tree(running: RunningJob) -> list[int]:
    """Every process of a lead; those that agents of leases have started are not below it."""
    return [running.process.pid, *process.descendants(running.process.pid)]


def signal_all(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def are_contiguous(steps: list[int]) -> bool:
    return steps == list(range(steps[0], steps[0] + len(steps)))


def test_workers_of_leases_are_adopted_by_the_next_lead_and_lose_no_step(run: Callable[..., Run], lend: Lend) -> None:
    own = run()
    first = own.lead()
    agents = lend(first, "812", 0), lend(first, "812", 1)
    before = trains(first, 3)
    own.goes_on(first, before)
    signal_all(tree(first), signal.SIGKILL)
    second = own.lead()
    whole = trains(second, 3)
    kept = {each.process for each in before[1:]}
    assert {each.process for each in whole[:2]} == kept
    assert whole[0].step == whole[1].step == whole[2].step >= before[0].step + STEPS_ON
    own.goes_on(second, whole)
    own.end(second)
    assert [agent.wait(PATIENCE_S) for agent in agents] == [0, 0]
    for pid in kept:
        assert are_contiguous(own.steps(pid)), "no step is lost, and none is committed twice"
    assert max(own.steps(before[0].process)) <= max(own.steps(whole[0].process))
    with (second.folder / "journal").open() as lines:
        turns = replay(lines)
    assert any("LeadReplaced" in str(type(heard.event)) for turn in turns for heard in turn.heard)
    assert "was lost with the previous leader" in second.stderr
    assert not (own.path / "run.json").exists()


def test_a_lead_that_was_cut_off_and_comes_back_commits_nothing_and_ends(run: Callable[..., Run], lend: Lend) -> None:
    own = run()
    first = own.lead()
    lend(first, "812", 0)
    before = trains(first, 2)
    own.goes_on(first, before)
    stopped = tree(first)
    signal_all(stopped, signal.SIGSTOP)
    second = own.lead()
    whole = trains(second, 2)
    assert whole[0].process == before[1].process
    own.goes_on(second, whole)
    late = own.steps(before[0].process)
    signal_all(stopped, signal.SIGCONT)
    first.until(lambda: first.process.poll() is not None, "for the end of the first lead")
    assert first.process.returncode == 1
    assert "this run has another leader: this one was number 1, and number 2 has taken over" in first.stderr
    # The step in hand when it was stopped, which all ranks had voted for, may be whole when it goes on; no other is.
    assert len(own.steps(before[0].process)) <= len(late) + 1
    now = max(own.steps(whole[0].process))
    second.until(lambda: max(own.steps(whole[0].process)) > now + STEPS_ON, "for steps after that")
    own.end(second)
    assert are_contiguous(own.steps(whole[0].process))
    assert LeaderLog(own.path).last().epoch == 2


def test_leases_end_where_no_lead_comes_in_time(run: Callable[..., Run], lend: Lend) -> None:
    own = run(patience_s=1.0)
    first = own.lead()
    agent = lend(first, "812", 0)
    trains(first, 2)
    signal_all(tree(first), signal.SIGKILL)
    agent.wait(PATIENCE_S)
    first.until(lambda: not first.left(), "for the end of everything")
    assert agent.stderr is not None
    assert "is lost, and no other controller replaced it in time" in agent.stderr.read()


def test_workers_of_another_training_are_not_adopted(run: Callable[..., Run], lend: Lend) -> None:
    own = run()
    first = own.lead()
    agent = lend(first, "812", 0)
    trains(first, 2)
    signal_all(tree(first), signal.SIGKILL)
    second = own.lead(more="--changed")
    (alone,) = trains(second, 1)
    assert alone.step == 0
    agent.wait(PATIENCE_S)
    assert agent.stderr is not None
    assert "the next leader has started from the beginning" in agent.stderr.read()
    own.end(second)


def test_a_lead_whose_leases_are_gone_as_well_begins_anew(run: Callable[..., Run], lend: Lend) -> None:
    own = run()
    first = own.lead()
    agent = lend(first, "812", 0)
    trains(first, 2)
    signal_all([*tree(first), agent.pid], signal.SIGKILL)
    first.until(lambda: not first.left(), "for the end of everything")
    second = own.lead()
    (alone,) = trains(second, 1)
    assert alone.step == 0
    own.end(second)


def test_no_generation_begins_before_it_stands_in_the_log(run: Callable[..., Run], lend: Lend) -> None:
    own = run()
    running = own.lead()
    (alone,) = trains(running, 1)
    leads, away = own.path / "leads", own.path / "away"
    leads.rename(away)
    leads.touch()  # no folder: nothing can be read or linked there
    running.until(lambda: "the log of leaders in the run folder cannot be used" in running.stderr)
    lend(running, "812", 0)
    running.until(lambda: "generation 2: " in running.stderr, "for the decision")
    asked = len(TRAINS.findall(running.stdout))
    held = own.steps(alone.process)
    leads.unlink()
    away.rename(leads)
    whole = trains(running, 2)
    assert asked == 1
    assert whole[0].step == held[-1], "nobody has gone on meanwhile"
    assert LeaderLog(own.path).last().generation == 2
    own.end(running)


def test_leases_that_never_lost_a_lead_follow_the_one_that_has_superseded_it(
    run: Callable[..., Run], lend: Lend
) -> None:
    own = run()
    first = own.lead("--host-timeout", "60")
    agent = lend(first, "812", 0)
    before = trains(first, 2)
    own.goes_on(first, before)
    stopped = tree(first)
    signal_all(stopped, signal.SIGSTOP)  # for so long as a second lead asks whether it is there
    second = own.lead("--host-timeout", "60")
    second.until(lambda: LeaderLog(own.path).last().epoch == 2, "for the second lead")
    signal_all(stopped, signal.SIGCONT)
    first.until(lambda: first.process.poll() is not None, "for the end of the first lead")
    assert "number 2 has taken over" in first.stderr
    whole = trains(second, 2)
    assert whole[0].process == before[1].process
    assert whole[0].step >= before[0].step + STEPS_ON
    own.end(second)
    assert are_contiguous(own.steps(whole[0].process))
    assert agent.wait(PATIENCE_S) == 0


def test_a_lead_without_leases_gives_way_to_a_second_one(run: Callable[..., Run]) -> None:
    own = run(patience_s=0.0)
    first = own.lead()
    (alone,) = trains(first, 1)
    stopped = tree(first)
    signal_all(stopped, signal.SIGSTOP)
    second = own.lead()
    second.until((own.path / "leads" / "00000003").exists, "for the second lead")
    signal_all(stopped, signal.SIGCONT)
    first.until(lambda: first.process.poll() is not None, "for the end of the first lead")
    late = own.steps(alone.process)
    (again,) = trains(second, 1)
    own.goes_on(second, [again])
    assert own.steps(alone.process) == late
    assert "number 2 has taken over" in first.stderr
    own.end(second)


def test_workers_are_not_hung_whose_agents_have_not_missed_their_lead_yet(run: Callable[..., Run], lend: Lend) -> None:
    """For that they need --host-timeout; --hang-timeout may be shorter."""
    own = run()
    patient = ("--host-timeout", "15", "--hang-timeout", "2")
    first = own.lead(*patient)
    agents = lend(first, "812", 0), lend(first, "812", 1)
    before = trains(first, 3)
    own.goes_on(first, before)
    signal_all(tree(first), signal.SIGSTOP)  # as a host that is silent: of one that has died they hear at once
    second = own.lead(*patient)
    whole = trains(second, 3)
    kept = {each.process for each in before[1:]}
    assert {each.process for each in whole[:2]} == kept
    own.end(second)
    assert [agent.wait(PATIENCE_S) for agent in agents] == [0, 0]
    assert " hangs: " not in second.stderr


def test_a_lead_that_stands_still_for_20_s_goes_on_and_no_other_comes(run: Callable[..., Run], lend: Lend) -> None:
    own = run()
    running = own.lead("--host-timeout", "2")
    agent = lend(running, "812", 0)
    before = trains(running, 2)
    own.goes_on(running, before)
    stopped = tree(running)
    signal_all(stopped, signal.SIGSTOP)
    until_s = time.monotonic() + 20.0
    running.until(lambda: time.monotonic() >= until_s, "for the time to pass")
    signal_all(stopped, signal.SIGCONT)
    last = max(own.steps(before[0].process))
    running.until(lambda: max(own.steps(before[0].process)) > last + STEPS_ON, "for steps after that")
    assert LeaderLog(own.path).last().epoch == 1
    own.end(running)
    assert are_contiguous(own.steps(before[0].process))
    agent.wait(PATIENCE_S)
