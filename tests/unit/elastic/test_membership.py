"""The rules of membership, one at a time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.control.exits import GenerationEnded, HostLost, WorkerExited
from farandole.elastic.membership import actions, job_events
from farandole.elastic.membership.actions import AnyAction
from farandole.elastic.membership.job_state import JobState
from farandole.elastic.membership.membership import Membership
from farandole.elastic.membership.policy import Policy
from farandole.elastic.membership.slots import HostSlot, Slots
from farandole.elastic.membership.vote import NEW
from farandole.runtime.coordination.stall import LATELY_S


class Job:
    """A membership and what it has decided. ``train`` starts its first workers and forms the first generation."""

    def __init__(self, policy: Policy, hosts: dict[str, int]) -> None:
        self.membership = Membership(policy)
        self.actions: list[AnyAction] = []
        self.reasons: list[str] = []
        self.tell(0.0, job_events.HostsFound(hosts))

    def tell(self, now: float, *happened: job_events.JobEvent) -> list[AnyAction]:
        for event in happened:
            self.membership.on(now, event)
        decided = self.membership.decide(now)
        self.actions += [decision.action for decision in decided]
        self.reasons += [decision.reason for decision in decided]
        return [decision.action for decision in decided]

    def train(self) -> Job:
        for worker_id in self.of(actions.Start):
            self.tell(1.0, job_events.WorkerConnected(worker_id, ready=False))
        return self

    def of(self, kind: type[AnyAction]) -> list[int]:
        return [
            action.worker_id for action in self.actions if isinstance(action, kind) and hasattr(action, "worker_id")
        ]

    def pass_to(self, now: float) -> list[AnyAction]:
        """Let every deadline up to ``now`` come."""
        begin = len(self.actions)
        while (due := self.membership.deadline_s) is not None and due <= now:
            self.tell(due)
            assert self.membership.deadline_s is None or self.membership.deadline_s > due
        return self.actions[begin:]


def killed(worker_id: int) -> WorkerExited:
    return WorkerExited(worker_id, -9, f"worker {worker_id} was killed by SIGKILL")


def came(*worker_ids: int, ready: bool = True) -> list[job_events.WorkerConnected]:
    return [job_events.WorkerConnected(worker_id, ready=ready) for worker_id in worker_ids]


def test_the_patience_for_too_few_begins_when_all_have_started() -> None:
    job = Job(Policy(min_np=2, elastic_timeout_s=0.1, start_timeout_s=30.0), {"a": 2})
    job.tell(1.0, *came(0, ready=False))
    assert job.pass_to(20.0) == []
    assert job.tell(20.0, *came(1, ready=False)) == [actions.Form(1, [0, 1])]


def test_patience_begins_anew_when_another_controller_takes_over() -> None:
    job = Job(Policy(), {"a": 2}).train()
    assert actions.AbortGeneration() in job.tell(10.0, killed(1))
    job.tell(14.9, job_events.ControllerReplaced())
    assert actions.Kill(0) not in job.pass_to(19.8)
    assert actions.Kill(0) in job.pass_to(20.0)


def test_the_first_generation_is_of_all_that_were_started() -> None:
    job = Job(Policy(min_np=2), {"a": 2, "b": 1})
    assert job.tell(1.0, *came(0, 1, ready=False)) == []
    assert job.tell(2.0, *came(2, ready=False)) == [actions.Form(1, [0, 1, 2])]


def test_after_the_start_time_out_it_is_of_those_that_came() -> None:
    job = Job(Policy(min_np=2), {"a": 3})
    job.tell(1.0, *came(0, 1, ready=False))
    assert job.pass_to(30.0) == [actions.Kill(2), actions.Form(1, [0, 1])]
    assert "has not called init()" in job.reasons[-2]


def test_survivors_keep_their_order_and_who_comes_later_follows() -> None:
    job = Job(Policy(), {"a": 3}).train()
    assert job.tell(5.0, killed(0)) == [actions.AbortGeneration(), actions.Start(3, "a", 0)]
    assert job.tell(5.1, *came(2)) == []
    assert job.tell(5.2, *came(1)) == [actions.Form(2, [1, 2])]
    assert job.tell(6.0, *came(3, ready=False)) == [actions.Greet(3, [1, 2, 3])]
    assert job.tell(7.0, *came(3)) == [actions.Announce()]
    assert job.tell(7.1, *came(2, 1)) == [actions.Form(3, [1, 2, 3])]


def test_ten_at_once_are_announced_once() -> None:
    job = Job(Policy(window_s=1.0), {"a": 1}).train()
    job.tell(2.0, job_events.HostsFound({"a": 1, "b": 10}))
    newcomers = range(1, 11)
    job.tell(3.0, *came(*newcomers, ready=False))
    decided = [job.tell(4.0 + worker_id / 100, *came(worker_id)) for worker_id in newcomers]
    assert decided == [[]] * 9 + [[actions.Announce()]]
    assert job.tell(5.0, *came(0)) == [actions.Form(2, [0, *newcomers])]


def test_who_is_not_ready_within_the_window_is_not_waited_for() -> None:
    job = Job(Policy(window_s=1.0), {"a": 1}).train()
    job.tell(2.0, job_events.HostsFound({"a": 3}))
    job.tell(3.0, *came(1, 2, ready=False))
    assert job.tell(4.0, *came(1)) == []
    assert job.pass_to(5.0) == [actions.Announce()]


def test_a_join_and_a_leave_in_one_window_are_one_change() -> None:
    job = Job(Policy(window_s=1.0), {"a": 1, "b": 1}).train()
    assert job.tell(2.0, job_events.HostsFound({"a": 1, "c": 1})) == [actions.Start(2, "c", 0)]
    job.tell(2.2, *came(2, ready=False))
    assert job.tell(2.5, *came(2)) == [actions.Announce()]
    assert job.tell(2.6, *came(0, 1)) == [actions.Dismiss([1]), actions.Form(2, [0, 2])]


def test_the_only_one_that_has_the_state_hands_it_over_before_it_goes() -> None:
    job = Job(Policy(), {"a": 1}).train()
    assert job.tell(2.0, job_events.HostsFound({"b": 1})) == [actions.Start(1, "b", 0)]
    job.tell(3.0, *came(1, ready=False))
    assert job.tell(4.0, *came(1)) == [actions.Announce()]
    assert job.tell(4.1, *came(0)) == [actions.Form(2, [0, 1]), actions.Announce()]
    assert job.tell(4.5, *came(0, 1)) == [actions.Dismiss([0]), actions.Form(3, [1])]
    assert job.tell(4.6, WorkerExited(0, 0, "worker 0 exited with code 0")) == []


def test_who_must_go_and_alone_has_seen_the_last_step_hands_it_over_before() -> None:
    job = Job(Policy(), {"a": 2, "b": 1}).train()
    job.tell(2.0, job_events.HostsFound({"a": 2}), killed(1))
    stays, goes = job_events.WorkerConnected(0, ready=True, step=7), job_events.WorkerConnected(2, ready=True, step=8)
    assert job.tell(2.1, stays, goes) == [actions.Form(2, [0, 2])]
    stays, goes = job_events.WorkerConnected(0, ready=True, step=9), job_events.WorkerConnected(2, ready=True, step=9)
    assert job.tell(2.2, stays, goes) == [actions.Dismiss([2]), actions.Form(3, [0])]


@pytest.mark.parametrize(("max_np", "handing_over", "left"), [(2, [1, 2], [0]), (3, [0, 1, 2], []), (1, [0, 1], [])])
def test_newcomers_take_over_from_all_that_must_go_also_where_there_are_as_many_as_there_may_be(
    max_np: int, handing_over: list[int], left: list[int]
) -> None:
    before = 1 if max_np == 1 else 2
    job = Job(Policy(max_np=max_np, window_s=0.0), {"a": before}).train()
    job.tell(2.0, job_events.HostsFound({"b": before}))
    newcomers = job.of(actions.Start)[before:]
    assert newcomers == [before, before + 1][: len(newcomers)]
    job.tell(3.0, *came(newcomers[0], ready=False))
    assert job.tell(4.0, *came(newcomers[0])) == [actions.Announce()]
    seen = [job_events.WorkerConnected(i, ready=True, step=7 + i) for i in range(before)]
    decided = job.tell(4.1, *seen)
    assert actions.Form(2, handing_over) in decided
    assert [each.worker_ids for each in decided if isinstance(each, actions.Dismiss)] == [left] * bool(left)
    over = [job_events.WorkerConnected(i, ready=True, step=9) for i in handing_over]
    goes = [i for i in handing_over if i < before]
    assert job.tell(5.0, *over)[:2] == [actions.Dismiss(goes), actions.Form(3, [newcomers[0]])]


def test_no_newcomer_that_is_needed_is_sent_away_for_who_hands_over() -> None:
    job = Job(Policy(min_np=2, max_np=2, window_s=0.0), {"a": 2}).train()
    job.tell(2.0, job_events.HostsFound({"b": 2}))
    assert job.of(actions.Start) == [0, 1, 2, 3]
    job.tell(3.0, *came(2, 3, ready=False))
    job.tell(4.0, *came(2, 3))
    old = [job_events.WorkerConnected(i, ready=True, step=7) for i in (0, 1)]
    assert job.tell(4.1, *old)[:2] == [actions.Dismiss([1]), actions.Form(2, [0, 2, 3])]
    all_now = [job_events.WorkerConnected(i, ready=True, step=9) for i in (0, 2, 3)]
    assert job.tell(5.0, *all_now) == [actions.Dismiss([0]), actions.Form(3, [2, 3])]


def test_rank_0_has_the_state_of_the_job() -> None:
    job = Job(Policy(), {"a": 4}).train()
    torn, whole = job_events.WorkerConnected(0, ready=True, step=NEW), job_events.WorkerConnected(2, ready=True, step=3)
    assert actions.Form(2, [2, 3, 0]) in job.tell(
        2.0, killed(1), torn, whole, job_events.WorkerConnected(3, True, step=2)
    )


def test_without_anybody_who_has_the_state_the_job_ends() -> None:
    job = Job(Policy(), {"a": 2}).train()
    assert actions.Finish(137) in job.tell(2.0, killed(1), job_events.WorkerConnected(0, ready=True, step=NEW))


def test_below_min_np_survivors_wait_and_go_on_when_others_come() -> None:
    job = Job(Policy(min_np=2), {"a": 2}).train()
    assert job.tell(5.0, killed(1), *came(0)) == [actions.AbortGeneration(), actions.Start(2, "a", 1)]
    job.tell(8.0, *came(2, ready=False))
    assert job.tell(9.0, *came(2)) == [actions.Form(2, [0, 2])]


def test_below_min_np_for_too_long_the_job_ends_and_says_why() -> None:
    job = Job(Policy(min_np=2, elastic_timeout_s=100.0), {"a": 2}).train()
    job.tell(5.0, killed(1), *came(0), job_events.HostsFound({"a": 1}))
    assert job.pass_to(200.0)[-1] == actions.Finish(137)
    assert "the job needs 2 (--min-np)" in job.reasons[-1]


def test_a_slot_rests_longer_each_time_and_never_for_good() -> None:
    job = Job(Policy(cooldown_range_s=(0.0, 60.0)), {"a": 1, "b": 1}).train()
    now, worker_id, waits = 10.0, 1, []
    for _ in range(5):
        job.tell(now, killed(worker_id), *came(0))
        [start] = [
            each for each in job.actions if isinstance(each, actions.Start) and each.worker_id == worker_id + 1
        ] or [each for each in job.pass_to(now + 100.0) if isinstance(each, actions.Start)]
        begin = now
        worker_id, now = start.worker_id, now + 200.0
        rests = [each.rest_s for each in job.actions if isinstance(each, actions.Rest)]
        waits.append(rests[-1] if rests else 0.0)
        job.tell(begin + 100.0, *came(worker_id, ready=False))
    assert waits == [0.0, 1.0, 60.0, 60.0, 60.0]


def test_a_host_rests_when_several_of_its_slots_have_failed_again_and_again() -> None:
    slots = Slots(Policy(cooldown_range_s=(0.0, 60.0), slot_failures=3, host_failures=2))
    slots.found({"b": 3})
    last = [[slots.fail(HostSlot("b", index), now=1.0) for _ in range(3)][-1] for index in (0, 1)]
    assert [decision and decision.action for decision in last] == [
        actions.Rest("b", 0, 60.0),
        actions.Rest("b", -1, 60.0),
    ]
    assert slots.free(now=60.9) is None
    assert slots.free(now=61.0) == HostSlot("b", 0)


def test_a_lost_host_costs_its_workers_and_is_taken_again() -> None:
    job = Job(Policy(), {"a": 1, "b": 2}).train()
    lost = HostLost("b", "host b is silent")
    assert job.tell(5.0, lost) == [actions.AbortGeneration(), actions.Start(3, "b", 0), actions.Start(4, "b", 1)]
    assert job.tell(5.1, *came(0)) == [actions.Form(2, [0])]
    assert job.tell(5.2, *came(1)) == [actions.RefuseWorkers([1])]
    assert actions.Rest("b", -1, 1.0) in job.tell(6.0, lost)


def test_a_hung_member_is_killed_and_not_waited_for() -> None:
    job = Job(Policy(), {"a": 2}).train()
    decided = job.tell(9.0, job_events.WorkerHung(1, "rank 1 makes no progress"))
    assert decided == [actions.Kill(1), actions.AbortGeneration()]
    assert job.tell(9.1, *came(0)) == [actions.Form(2, [0])]
    assert job.tell(9.2, killed(1)) == [actions.Start(2, "a", 1)]


def test_who_does_not_notice_that_the_generation_is_over_hangs() -> None:
    job = Job(Policy(hang_timeout_s=5.0), {"a": 3}).train()
    job.tell(9.0, job_events.LongestStep(2.0), killed(2), *came(0))
    assert job.pass_to(18.9) == []
    assert job.pass_to(19.0) == [actions.Kill(1), actions.Form(2, [0])]


@given(
    said=st.lists(st.tuples(st.integers(0, 2), st.floats(0.0, 30.0), st.floats(0.0, LATELY_S)), min_size=1, max_size=8),
    exited=st.sets(st.integers(0, 2), max_size=1),
)
def test_the_longest_step_of_any_worker_counts(said: list[tuple[int, float, float]], exited: set[int]) -> None:
    """The last word of each of the last minute, in any order; and the last of all in a journal that tells no worker."""
    state, old = JobState(Policy()), JobState(Policy())
    for slot in ("a", "b", "c"):
        state.hire(HostSlot(slot, 0), 0.0)
    now, last = 0.0, dict[int, tuple[float, float]]()
    for worker_id, step_s, after_s in said:
        now += after_s
        state.on(now, job_events.LongestStep(step_s, worker_id))
        old.on(now, job_events.LongestStep(step_s))
        last[worker_id] = (now, step_s)
    for worker_id in exited:
        state.on(now, killed(worker_id))
        last.pop(worker_id, None)
    assert state.step_s == max((step_s for at_s, step_s in last.values() if now - at_s <= LATELY_S), default=0.0)
    assert old.step_s == said[-1][1]


def test_a_worker_of_short_steps_does_not_shorten_the_patience_of_all() -> None:
    job = Job(Policy(hang_timeout_s=5.0), {"a": 3}).train()
    job.tell(9.0, job_events.LongestStep(2.0, 1), job_events.LongestStep(0.1, 0), killed(2), *came(0))
    assert job.pass_to(18.9) == []
    assert job.pass_to(19.0) == [actions.Kill(1), actions.Form(2, [0])]


def test_who_has_no_time_to_notice_and_answers_is_given_more() -> None:
    job = Job(Policy(hang_timeout_s=5.0, stall_shutdown_s=20.0), {"a": 3}).train()
    job.tell(9.0, killed(2), *came(0))
    for now in range(10, 29):
        assert job.pass_to(now) == []
        job.tell(now, job_events.Answered(1))
    assert job.pass_to(28.9) == []
    assert job.pass_to(29.0) == [actions.Kill(1), actions.Form(2, [0])]
    job = Job(Policy(hang_timeout_s=5.0, stall_shutdown_s=20.0), {"a": 2}).train()
    job.tell(9.0, GenerationEnded(1, "an engine failed"), *came(0))
    job.tell(12.0, job_events.Answered(1))
    assert job.pass_to(16.9) == []
    assert job.pass_to(17.0) == [actions.Kill(1), actions.Form(2, [0])]


def test_who_has_left_to_finish_is_not_killed() -> None:
    job = Job(Policy(hang_timeout_s=5.0), {"a": 2}).train()
    job.tell(9.0, job_events.WorkerLeft(1), job_events.WorkerLeft(0), *came(0))
    assert job.pass_to(20.0) == [actions.Form(2, [0])]


def test_nobody_waits_for_the_end_of_a_process_whose_script_has_raised() -> None:
    job = Job(Policy(start_timeout_s=30.0), {"a": 2}).train()
    job.tell(9.0, GenerationEnded(1, "its script raised"), job_events.WorkerLeft(1, ending=True))
    assert job.tell(9.1, *came(0)) == [actions.Form(2, [0])]
    assert job.tell(9.5, WorkerExited(1, 1, "it exited with code 1")) == [actions.Start(2, "a", 1)]


def test_the_job_fails_as_its_last_worker_does_whose_script_has_raised() -> None:
    job = Job(Policy(), {"a": 1}).train()
    assert job.tell(9.0, GenerationEnded(1, "its script raised"), job_events.WorkerLeft(0, ending=True)) == []
    assert actions.Finish(1) in job.tell(9.5, WorkerExited(0, 1, "it exited with code 1"))


def test_who_should_be_ending_and_does_not_is_killed() -> None:
    job = Job(Policy(start_timeout_s=30.0), {"a": 2}).train()
    job.tell(9.0, GenerationEnded(1, "its script raised"), job_events.WorkerLeft(1, ending=True), *came(0))
    assert job.pass_to(39.0) == [actions.Kill(1)]


def test_nobody_waits_for_a_worker_that_was_told_to_end_and_it_may_take_its_time() -> None:
    job = Job(Policy(start_timeout_s=30.0, hang_timeout_s=5.0, elastic_timeout_s=50.0), {"a": 2}).train()
    job.tell(9.0, job_events.WorkerLeft(1, told=True))
    assert job.tell(9.1, *came(0)) == [actions.Form(2, [0])]
    assert job.pass_to(1000.0) == []
    assert job.tell(1000.0, WorkerExited(1, 143, "it exited with code 143")) == [actions.Start(2, "a", 1)]


@pytest.mark.parametrize("comes", [True, False], ids=["has come", "was to come"])
def test_nobody_waits_for_a_worker_that_is_told_to_end_between_two_generations(comes: bool) -> None:
    job = Job(Policy(hang_timeout_s=500.0, elastic_timeout_s=50.0), {"a": 2}).train()
    job.tell(9.0, GenerationEnded(1, "an engine failed"), job_events.WorkerLeft(1), *(came(1) if comes else ()))
    assert job.tell(9.1, job_events.WorkerLeft(1, told=True)) == []
    assert job.tell(9.2, *came(0)) == [actions.Form(2, [0])]
    assert job.tell(99.0, WorkerExited(1, 143, "it exited with code 143")) == [actions.Start(2, "a", 1)]


def test_the_job_waits_for_the_last_checkpoint_of_a_worker_that_was_told_to_end() -> None:
    job = Job(Policy(start_timeout_s=30.0, elastic_timeout_s=50.0), {"a": 1}).train()
    assert job.tell(9.0, job_events.WorkerLeft(0, told=True)) == []
    assert job.pass_to(1000.0) == []
    assert actions.Finish(143) in job.tell(1000.0, WorkerExited(0, 143, "it exited with code 143"))


def test_one_that_takes_its_time_to_finish_wakes_nobody() -> None:
    job = Job(Policy(hang_timeout_s=5.0), {"a": 1}).train()
    job.tell(9.0, GenerationEnded(1, "an engine failed"), job_events.WorkerLeft(0))
    assert job.pass_to(100.0) == []
    assert job.membership.deadline_s is None


def test_the_others_go_on_when_one_has_finished_and_nobody_is_started() -> None:
    job = Job(Policy(min_np=2), {"a": 3}).train()
    assert job.tell(9.0, job_events.WorkerLeft(2), WorkerExited(2, 0, "worker 2 exited with code 0")) == []
    assert job.tell(9.1, *came(0, 1)) == [actions.Form(2, [0, 1])]
    ended = [WorkerExited(worker_id, 0, "it exited with code 0") for worker_id in (0, 1)]
    assert job.tell(9.2, *ended) == [actions.Finish(0)]


def test_when_nobody_is_left_the_status_is_that_of_the_first_failure() -> None:
    job = Job(Policy(), {"a": 2}).train()
    job.tell(9.0, WorkerExited(1, 3, "worker 1 on a exited with code 3"))
    decided = job.tell(9.1, killed(0))
    assert decided == [actions.Finish(3)]
    assert "no worker is left that has the state of the job" in job.reasons[-1]


def test_a_script_that_always_fails_ends_the_job() -> None:
    job = Job(Policy(), {"a": 1})
    for worker_id in range(3):
        job.pass_to(10.0)
        job.tell(1.0 + worker_id, WorkerExited(worker_id, 2, "worker exited with code 2"))
        job.pass_to(10.0)
    assert job.membership.status == 2
    assert "no worker could be started" in job.reasons[-1]


def test_after_the_reset_limit_the_job_ends() -> None:
    job = Job(Policy(reset_limit=1), {"a": 3}).train()
    assert actions.Form(2, [0, 1]) in job.tell(2.0, killed(2), *came(0, 1))
    assert job.tell(3.0, killed(1), *came(0))[-1] == actions.Finish(137)
    assert "--reset-limit" in job.reasons[-1]


@pytest.mark.parametrize("last", [*came(1, ready=False), job_events.WorkerStarted(1)])
def test_a_joiner_that_is_never_ready_is_killed_and_nobody_notices(last: job_events.JobEvent) -> None:
    job = Job(Policy(elastic_timeout_s=100.0), {"a": 1}).train()
    job.tell(2.0, job_events.HostsFound({"a": 1, "b": 1}), last)
    assert actions.Kill(1) in job.pass_to(110.0)
    assert not any(isinstance(action, actions.Announce | actions.AbortGeneration) for action in job.actions)


def test_max_np_is_not_exceeded() -> None:
    job = Job(Policy(max_np=2), {"a": 1, "b": 4})
    assert job.of(actions.Start) == [0, 1]
    job.train()
    assert job.tell(5.0, killed(0), *came(1)) == [
        actions.AbortGeneration(),
        actions.Form(2, [1]),
        actions.Start(2, "a", 0),
    ]


def test_one_that_does_not_fit_is_refused_and_the_others_train() -> None:
    job = Job(Policy(), {"a": 1, "b": 1})
    job.tell(1.0, *came(0, ready=False))
    decided = job.tell(2.0, *came(1, ready=False), job_events.WorkerUnfit(1, "another version"))
    assert decided == [actions.RefuseWorkers([1]), actions.Form(1, [0])]


def test_strangers_are_refused() -> None:
    job = Job(Policy(), {"a": 1}).train()
    assert job.tell(3.0, *came(17)) == [actions.RefuseWorkers([17])]


def numbered(actions: Sequence[AnyAction]) -> list[str]:
    return [type(action).__name__ for action in actions]


def test_after_the_end_nothing_is_decided() -> None:
    job = Job(Policy(), {"a": 1}).train()
    assert numbered(job.tell(2.0, WorkerExited(0, 0, "it exited with code 0"))) == ["Finish"]
    assert job.tell(3.0, job_events.HostsFound({"a": 5}), *came(9)) == []
    assert job.membership.deadline_s is None


# -- another lead -----------------------------------------------------------------------------------------------------

LEAD, LEASE, OTHER = (
    job_events.MemberSlot(0, "a", 0),
    job_events.MemberSlot(1, "b", 0),
    job_events.MemberSlot(2, "c", 0),
)


def adopted(*seats: job_events.MemberSlot) -> Job:
    """A membership that begins with the seventh generation of the lead before, which was on host a."""
    job = Job(Policy(), {})
    job.tell(100.0, job_events.LeadReplaced(7, seats, 1000), HostLost("a", "it went with the lead"))
    return job


def test_another_lead_goes_on_with_those_that_come_and_then_with_its_own() -> None:
    job = adopted(LEAD, LEASE, OTHER)
    assert actions.AbortGeneration() in job.actions
    assert job.of(actions.Start) == [], "nothing is started before it is known who is left"
    job.tell(101.0, job_events.WorkerConnected(2, ready=True, step=30))
    assert actions.Form not in map(type, job.actions), "the other may come with a later step"
    assert actions.Form(8, [1, 2]) in job.tell(101.5, job_events.WorkerConnected(1, ready=True, step=31))
    job.tell(102.0, job_events.HostsFound({"d": 1, "b": 1, "c": 1}))
    assert job.of(actions.Start) == [1000]


def test_another_lead_goes_on_without_a_host_that_does_not_come() -> None:
    job = adopted(LEAD, LEASE, OTHER)
    job.tell(101.0, job_events.WorkerConnected(1, ready=True, step=31))
    assert actions.Form(8, [1]) in job.tell(110.0, HostLost("c", "it did not answer in time"))
    assert actions.RefuseWorkers([2]) in job.tell(111.0, job_events.WorkerConnected(2, ready=True, step=31))


def test_members_do_not_hang_before_their_hosts_have_called_the_lead_that_adopts_them() -> None:
    job = adopted(LEAD, LEASE, OTHER)
    job.tell(101.0, job_events.WorkerConnected(1, ready=True, step=31))
    job.pass_to(200.0)
    assert job.of(actions.Kill) == []
    job.tell(200.0, job_events.HostsFound({"b": 1, "c": 1}))
    job.pass_to(204.0)
    assert job.of(actions.Kill) == []
    job.pass_to(300.0)
    assert job.of(actions.Kill) == [2]


@pytest.mark.parametrize("event", [HostLost("b", "silent"), killed(1)])
def test_another_lead_begins_anew_if_nobody_is_left(event: job_events.JobEvent) -> None:
    job = adopted(LEAD, LEASE)
    job.tell(110.0, event)
    assert job.membership.generation == 0
    assert actions.Finish not in map(type, job.actions)
    assert job.tell(111.0, job_events.HostsFound({"d": 1})) == [actions.Start(1000, "d", 0)]
    job.tell(112.0, job_events.WorkerConnected(1000, ready=False))
    assert actions.Form(1, [1000]) in job.actions


def test_another_lead_begins_anew_if_those_that_are_left_have_no_state() -> None:
    job = adopted(LEAD, LEASE)
    job.tell(101.0, job_events.WorkerConnected(1, ready=True, step=NEW))
    assert actions.Kill(1) in job.actions
    assert job.membership.generation == 0
    job.tell(102.0, killed(1), job_events.HostsFound({"d": 1}))
    assert job.of(actions.Start) == [1000]


def test_workers_of_another_lead_are_no_loss_once_they_have_gone_on() -> None:
    job = adopted(LEAD, LEASE)
    job.tell(101.0, job_events.WorkerConnected(1, ready=True, step=31))
    job.tell(200.0, killed(1))
    assert any(isinstance(action, actions.Finish) and action.status for action in job.actions), "its state is lost"
