"""Manager of the leases of a run: what it asks a fake scheduler for, also after another controller."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.control.agent_messages import LeaseOffer
from farandole.control.run_messages import AdviceView, Progressed
from farandole.errors import SettingsError
from farandole.launch.hosts.run_folder import RunFolder
from farandole.launch.leases.actions import Release
from farandole.launch.leases.ending import arrays_of, cancelled
from farandole.launch.leases.folder_thread import JOURNAL
from farandole.launch.leases.job_arrays import POLICY, LeaseSupply, limits_in, write_supply
from farandole.launch.leases.journal import read_records, replay
from farandole.launch.leases.lease import LeasePhase
from farandole.launch.leases.lease_table import PARTIAL_S
from farandole.launch.leases.limits import LeaseLimits
from farandole.launch.leases.manager import FIND_AGAIN_S, LeaseManager
from farandole.launch.leases.observation import ScaleTo, Stop
from farandole.launch.leases.plan_command import dry_run
from farandole.launch.leases.rules import LeaseRule
from farandole.launch.leases.scheduler import JobPhase, Scheduler
from workbench.scheduler.cluster import FakeCluster
from workbench.scheduler.fake import FakeScheduler

SCRIPT = "#!/bin/bash\n#SBATCH --time=60\n"
SUPPLY = LeaseSupply(SCRIPT, "abc", "1", 4)
LIMITS = LeaseLimits(max_np=8)


class Managed:
    """A manager with its scheduler and its journal; ``now_s`` goes on with the cluster."""

    def __init__(self, limits: LeaseLimits = LIMITS, supply: LeaseSupply = SUPPLY, delay_s: float = 0.0) -> None:
        self.cluster = FakeCluster(nodes=4)
        self.supply, self.limits, self.delay_s = supply, limits, delay_s
        if supply.array:
            assert self.cluster.submit(SCRIPT, supply.count, supply.nonce_of(1)) == supply.array
        self.journal: list[str] = []
        self.scheduler: Scheduler | None = None
        self.begin()

    def begin(self) -> None:
        """Put another controller in the place of the one before, whose calls are given up."""
        if self.scheduler is not None:
            self.scheduler.close()
        self.scheduler = FakeScheduler(self.cluster, delay_s=self.delay_s) if self.supply.script else None
        self.manager = LeaseManager(self.limits, self.supply, self.scheduler, self.journal.append)
        if self.journal:
            *_, record = read_records(self.journal[-1:])
            self.manager.restore(record.after, record.seen, self.now_s, record.asked)

    @property
    def now_s(self) -> float:
        return self.cluster.now_s

    def turn(self, have: int = 1, training: tuple[str, ...] = ()) -> list[str]:
        return sorted({host for host, _ in self.manager.turn(self.now_s, have, 1, {"lead", *training})})

    def advance(self, seconds: float) -> None:
        self.cluster.advance(seconds)
        self.turn()

    def phases(self) -> list[JobPhase]:
        return [view.phase for view in self.cluster.jobs("1").values()]

    def close(self) -> None:
        self.manager.close()


def terms(index: int, node: str = "n") -> LeaseOffer:
    return LeaseOffer("1", index, 0, "x", node, 1)


@pytest.fixture
def make() -> Iterator[Callable[..., Managed]]:
    """Makes what is closed in the end: ``make(limits, supply, delay_s=1.0)``."""
    with contextlib.ExitStack() as held:

        def make(*words: Any, **more: Any) -> Managed:
            made = Managed(*words, **more)
            held.callback(made.close)
            return made

        yield make


@pytest.fixture
def managed(make: Callable[..., Managed]) -> Managed:
    return make()


def test_nothing_is_decided_or_written_without_news(make: Callable[..., Managed]) -> None:
    alone = make(supply=LeaseSupply())  # nothing of which the policy could be due by itself
    for _ in range(5):
        alone.turn()
    assert len(alone.journal) == 1


def test_a_script_that_reports_in_every_step_fills_no_journal(make: Callable[..., Managed]) -> None:
    ruled = make(LeaseLimits(max_np=8, rules=(LeaseRule("acc>=0.9", "np=2"),)))
    for step in range(20):
        ruled.manager.progressed(Progressed({"acc": step / 20}), ruled.now_s)
        ruled.turn()
    assert len(ruled.journal) == 2, "the first, and the one in which the rule fires"
    assert ruled.manager.plan.cap == 2


def test_a_policy_that_was_changed_is_news(managed: Managed) -> None:
    managed.manager.order(ScaleTo(3))
    managed.turn()
    assert managed.phases().count(JobPhase.HELD) == 2
    managed.manager.limits = LeaseLimits(max_np=2)
    managed.turn()
    assert managed.manager.plan.goal == 2


@given(st.builds(AdviceView, st.just(4), st.floats(), st.floats(), st.floats(), st.floats()))
def test_no_advice_makes_a_line_that_cannot_be_read(advice: AdviceView) -> None:
    alone = Managed(supply=LeaseSupply())
    alone.manager.progressed(Progressed({"loss": math.nan}, advice), alone.now_s)
    alone.turn()
    assert not list(replay(alone.journal))


def test_a_release_that_died_with_its_controller_is_asked_for_again(make: Callable[..., Managed]) -> None:
    managed = make(delay_s=1.0)
    managed.manager.order(ScaleTo(2))
    managed.turn()
    assert managed.phases().count(JobPhase.HELD) == 4
    managed.begin()
    managed.advance(2.0)
    assert managed.phases().count(JobPhase.HELD) == 3


def test_an_order_that_nothing_was_decided_about_is_the_next_controllers(make: Callable[..., Managed]) -> None:
    managed = make(LIMITS)
    managed.turn()
    for order in (ScaleTo(3), Stop()):
        managed.manager.order(order)
        managed.journal.append(managed.manager.asked(managed.now_s))
    managed.begin()
    assert managed.turn() == []
    assert managed.manager.plan.ordered == 3
    assert not managed.manager.plan.stopped, "the lead that was to stop has ended"
    assert not list(replay(managed.journal))


def test_an_order_to_another_controller_that_has_decided_nothing_yet_leaves_the_run_its_workers(
    make: Callable[..., Managed], tmp_path: Path
) -> None:
    managed = make(LIMITS)
    managed.turn()
    managed.begin()
    managed.manager.order(ScaleTo(1))
    managed.journal.append(managed.manager.asked(managed.now_s))
    [*_, asked] = read_records(managed.journal)
    assert (asked.seen.have, asked.seen.own) == (1, 1)
    folder = RunFolder.create(tmp_path / "run")
    write_supply(folder, SUPPLY, "max-np = 8\n")
    (folder.path / JOURNAL).write_text("".join(managed.journal))
    with contextlib.closing(FakeScheduler(managed.cluster)) as scheduler:
        decisions = dry_run(folder, scheduler, managed.now_s)
    assert [each for each in decisions if isinstance(each.action, Release)] == [], "there are as many as were ordered"


def test_an_array_in_doubt_is_looked_for_by_the_next_controller_and_all_of_it_is_known(
    make: Callable[..., Managed],
) -> None:
    managed = make(LeaseLimits(max_np=8, array_leases=3), LeaseSupply(SCRIPT, "abc"), delay_s=1.0)
    managed.manager.order(ScaleTo(3))
    managed.turn()
    assert managed.manager.plan.arrays == 1
    managed.cluster.submit(SCRIPT, 3, "abcx1")  # done, and the answer is lost
    managed.begin()
    for _ in range(4):
        managed.advance(FIND_AGAIN_S)
    assert managed.phases().count(JobPhase.HELD) == 1
    assert len(managed.manager.book.leases) == 3
    assert managed.manager.plan.arrays == 1


def test_a_lease_that_was_told_to_end_leaves_also_under_the_next_controller(managed: Managed) -> None:
    managed.manager.order(ScaleTo(2))
    managed.turn()
    managed.manager.book.admit(terms(0), managed.now_s)
    managed.turn(2, ("n+1_0",))
    managed.manager.order(ScaleTo(1))
    assert managed.turn(2, ("n+1_0",)) == ["n+1_0"]
    managed.begin()
    assert managed.turn() == []
    managed.manager.book.admit(terms(0), managed.now_s)
    assert managed.turn() == ["n+1_0"]
    managed.manager.book.gone("n+1_0", "", managed.now_s)
    assert managed.turn() == []


def test_the_second_node_of_a_lease_that_is_to_end_leaves_when_it_calls(managed: Managed) -> None:
    managed.manager.order(ScaleTo(2))
    managed.turn()
    managed.manager.book.admit(terms(0, "a"), managed.now_s)
    managed.turn()
    managed.manager.order(ScaleTo(1))
    assert managed.turn() == ["a+1_0"]
    managed.manager.book.admit(terms(0, "b"), managed.now_s)
    assert managed.turn() == ["a+1_0", "b+1_0"]


def test_a_cancel_that_was_not_answered_is_tried_again(managed: Managed) -> None:
    managed.cluster.occupy(4, 600)
    managed.manager.order(ScaleTo(2))
    managed.turn()
    managed.advance(1.0)
    assert JobPhase.PENDING in managed.phases()
    managed.cluster.is_away = True
    managed.manager.order(ScaleTo(1))
    managed.turn()
    for _ in range(3):
        managed.advance(30.0)
    managed.cluster.is_away = False
    for _ in range(10):
        managed.advance(60.0)
    assert JobPhase.PENDING not in managed.phases()


def test_an_agent_that_was_cut_off_and_calls_again_is_no_second_node(managed: Managed) -> None:
    for _ in range(2):
        managed.manager.book.admit(terms(0), managed.now_s)
    assert [(lease.nodes, lease.workers) for lease in managed.manager.book.leases if lease.job == "1_0"] == [(1, 1)]


def test_an_agent_that_ends_while_no_controller_is_there_is_gone(managed: Managed) -> None:
    managed.manager.order(ScaleTo(2))
    managed.turn()
    managed.manager.book.admit(terms(0), managed.now_s)
    managed.turn(2, ("n+1_0",))
    managed.begin()
    managed.manager.book.expect("n+1_0", "1_0")
    managed.manager.book.gone("n+1_0", "its agent is lost", managed.now_s)
    assert LeasePhase.GONE in {lease.phase for lease in managed.manager.book.leases}


def test_the_end_cancels_own_arrays_those_in_doubt_too_and_nobody_elses(
    make: Callable[..., Managed], tmp_path: Path
) -> None:
    managed = make(LeaseLimits(max_np=8, array_leases=3))
    guests = managed.cluster.submit(SCRIPT, 2, "other")
    managed.turn()
    managed.manager.book.admit(LeaseOffer(guests, 0, 0, "x", "n", 1), managed.now_s)
    managed.turn()
    folder = RunFolder.create(tmp_path / "run")
    (folder.path / JOURNAL).write_text("".join(managed.journal))
    doubted = managed.cluster.submit(SCRIPT, 3, "abcx2")
    assert managed.scheduler is not None
    assert list(cancelled(managed.scheduler, *arrays_of(folder, SUPPLY))) == []
    managed.cluster.advance(5.0)
    left = [[view for view in managed.cluster.jobs(array).values() if view.phase is not JobPhase.GONE]
            for array in ("1", guests, doubted)]  # fmt: skip
    assert list(map(len, left)) == [0, 2, 0]


def test_a_policy_that_contradicts_the_run_is_told_in_a_sentence(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    (folder.path / POLICY).write_text("max-np = 1\n")
    with pytest.raises(SettingsError, match=r"policy.toml: max-np = 1 is below min-np = 2"):
        limits_in(folder, LeaseSupply(), 2, 16)


def test_what_a_change_has_cost_is_weighed_against_what_the_next_would_save(make: Callable[..., Managed]) -> None:
    goals = []
    for pause_s in (0.0, 3.0):
        managed = make(LeaseLimits(max_np=8, advice_apart_s=1.0))
        if pause_s:
            managed.manager.progressed(Progressed({}, pause_s=pause_s), managed.now_s)
        for _ in range(3):  # 40 s are less than five pauses of 3 s for each of three workers
            managed.manager.progressed(Progressed({}, AdviceView(4, 100.0, 200.0, 40.0)), managed.now_s)
            managed.advance(2.0)
        goals.append(managed.manager.plan.goal)
    assert goals == [4, 1]


def test_a_lease_of_which_a_node_has_not_called_is_spoken_of(make: Callable[..., Managed]) -> None:
    managed = make(supply=LeaseSupply(SCRIPT, "abc", "1", 2, workers=2, nodes=2))
    managed.manager.order(ScaleTo(3))
    managed.turn()
    managed.manager.book.admit(terms(0), managed.now_s)
    managed.turn(2, ("n+1_0",))
    managed.cluster.advance(PARTIAL_S)
    managed.turn(2, ("n+1_0",))
    assert any("1_0 counts as 1 worker: 1 of its 2 nodes have called" in text for text in managed.manager.said)


def test_a_run_without_a_first_array_doubts_the_first_that_it_asks_for(
    make: Callable[..., Managed], tmp_path: Path
) -> None:
    supply = LeaseSupply(SCRIPT, "abc")
    folder = RunFolder.create(tmp_path / "run")
    assert arrays_of(folder, supply) == ([], ["abcx1"])
    managed = make(LIMITS, supply, delay_s=1.0)
    managed.manager.order(ScaleTo(2))
    managed.turn()
    (folder.path / JOURNAL).write_text("".join(managed.journal))
    assert arrays_of(folder, supply) == ([], ["abcx1", "abcx2"])
    managed.advance(2.0)
    (folder.path / JOURNAL).write_text("".join(managed.journal))
    assert arrays_of(folder, supply) == (["1"], ["abcx2"])


def test_a_pool_without_a_worker_asks_for_its_first_and_a_training_waits_for_its_own(
    make: Callable[..., Managed],
) -> None:
    managed = make()
    managed.manager.order(ScaleTo(2))
    assert list(managed.manager.turn(managed.now_s, None, 0, ())) == []
    assert managed.phases().count(JobPhase.HELD) == 4
    assert list(managed.manager.turn(managed.now_s, 0, 0, ())) == []
    assert managed.phases().count(JobPhase.HELD) == 2


def test_the_last_line_of_a_pool_has_what_was_used_and_no_lease_or_array_in_doubt(make: Callable[..., Managed]) -> None:
    managed = make(LIMITS, LeaseSupply(SCRIPT, "abc"), delay_s=1.0)
    managed.manager.order(ScaleTo(2))
    managed.turn()
    [last] = read_records([managed.manager.ended(managed.now_s)])
    assert (last.after.arrays, last.seen.arrays_answered, last.seen.leases) == (1, 1, ())
    managed.manager.restore(last.after, last.seen, managed.now_s, last.asked)
    assert not managed.manager.plan.stopped
