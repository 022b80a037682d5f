"""How decisions about places become generations, answers and orders."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from farandole.control.exits import GenerationEnded, WorkerExited
from farandole.control.messages import Hello, Refuse, Welcome
from farandole.elastic.membership.actions import Finish, Kill, Start
from farandole.elastic.membership.formation import ElasticFormation
from farandole.elastic.membership.job_events import ControllerReplaced, HostsFound
from farandole.elastic.membership.membership import Membership
from farandole.elastic.membership.policy import Policy
from farandole.errors import UnsupportedError
from farandole.runtime.coordination.formation import Decision, Deferred, Due, EndNow, Formed, Refused


def choose(hosts: Sequence[str], engines: Sequence[Sequence[str]]) -> tuple[str, str]:
    """The first that all have."""
    for engine in engines[0]:
        if all(engine in own for own in engines):
            return engine, f"{len(hosts)} ranks"
    raise UnsupportedError("no engine is usable on all ranks")


class Bench:
    """A formation, and the time."""

    def __init__(self, hosts: dict[str, int]) -> None:
        self.now = 0.0
        self.formation = ElasticFormation(Membership(Policy()), choose, lambda: self.now)
        self.formation.report_event(HostsFound(hosts))
        assert self.decisions() == []

    def decisions(self) -> list[Decision]:
        """All that are due."""
        found = []
        while (decision := self.formation.decide(self.now)) is not None:
            found.append(decision)
        return found

    def orders(self, kind: type[Start | Kill]) -> list[int]:
        """The places of those orders of a kind that have not been taken yet."""
        return [each.action.worker_id for each in self.formation.orders if isinstance(each.action, kind)]

    def hello(
        self,
        worker_id: int,
        ready: bool = True,
        version: str = "1",
        engines: Sequence[str] = ("mpi", "shm"),
        state: str = "",
        pid: int = 0,
    ) -> None:
        """A worker calls ``init``; its socket is named after its place."""
        sets = [[0, 1], [0, 5]]
        hello = Hello(
            "w", worker_id, 0, f"h{worker_id}", pid or worker_id, version, list(engines), 2, 40, sets, ready, 0.5, state
        )
        if not self.formation.turn_away(b"%d" % worker_id, hello):
            self.formation.hello(b"%d" % worker_id, hello, self.now)

    def replace_controller(self) -> None:
        """Another controller takes over."""
        self.formation = ElasticFormation(self.formation.membership, choose, lambda: self.now)
        self.formation.report_event(ControllerReplaced())

    def begin(self, *worker_ids: int) -> Formed:
        """These say hello, and are the first generation."""
        for worker_id in worker_ids:
            self.formation.started(worker_id, "")
            self.hello(worker_id, ready=False)
        (formed,) = self.decisions()
        assert isinstance(formed, Formed)
        return formed


def test_the_first_generation_needs_nobody_to_be_ready() -> None:
    bench = Bench({"a": 3})
    assert bench.orders(Start) == [0, 1, 2]
    formed = bench.begin(2, 0, 1)
    assert [member.hello.worker_id for member in formed.members] == [0, 1, 2]
    assert (formed.engine, formed.static_sets) == ("shm", [[0, 1]])  # never MPI; no set that does not fit


def test_a_newcomer_waits_alone_then_all_form_anew_by_seniority() -> None:
    bench = Bench({"a": 1})
    bench.begin(0)
    bench.formation.report_event(HostsFound({"a": 2}))
    bench.decisions()
    assert bench.orders(Start) == [0, 1]
    bench.hello(1, ready=False)
    (deferred,) = bench.decisions()
    assert isinstance(deferred, Deferred)
    assert deferred.answer == Welcome(0, 1, ["h0", "h1"], "shm", deferred.reason)
    bench.hello(1)
    (due,) = bench.decisions()
    assert isinstance(due, Due)
    bench.formation.left(0, ending=False, told=False)
    bench.hello(0)
    (formed,) = bench.decisions()
    assert isinstance(formed, Formed)
    assert (formed.generation, formed.hosts) == (2, ["h0", "h1"])


def test_a_death_ends_the_generation_and_its_slot_is_filled_again() -> None:
    bench = Bench({"a": 2})
    bench.begin(0, 1)
    bench.formation.worker_exited(WorkerExited(1, -9, "worker 1 was killed", pid=1))
    assert bench.decisions() == [EndNow("worker 1 was killed")]
    assert bench.orders(Start) == [0, 1, 2]
    bench.hello(0)
    (formed,) = bench.decisions()
    assert isinstance(formed, Formed)
    assert formed.hosts == ["h0"]


def test_a_wait_for_others_says_who_waits_for_whom() -> None:
    bench = Bench({"a": 3})
    bench.begin(0, 1, 2)
    assert bench.formation.waits() is None, "they train"
    bench.formation.worker_exited(WorkerExited(1, -9, "worker 1 was killed", pid=1))
    bench.formation.generation_ended(GenerationEnded(1, "worker 1 was killed"))
    bench.now = 2.0
    bench.hello(0)
    assert not any(isinstance(each, Formed) for each in bench.decisions())
    wait = bench.formation.waits()
    assert wait is not None
    assert (wait.since_s, wait.who, [each.hello.worker_id for each in wait.members]) == (2.0, "worker 0 on a", [0])
    assert wait.whom.startswith("worker 2 on a (it is in the current generation); ")
    assert wait.whom.endswith("worker 3 on a (it has not called init())")


def test_a_generation_that_is_not_claimed_is_held_back_with_all_that_follows() -> None:
    bench = Bench({"a": 2})
    claims: list[int] = []
    bench.formation.claim = lambda action: claims.append(action.generation)
    for worker_id in (0, 1):
        bench.formation.started(worker_id, "")
        bench.hello(worker_id, ready=False)
    assert bench.decisions() == []
    assert claims == [1]
    assert [bench.formation.deadline_s] == [None], "nothing is to be done before it is claimed"
    bench.formation.worker_exited(WorkerExited(1, -9, "worker 1 was killed", pid=1))
    assert bench.decisions() == []
    bench.formation.claimed(7)
    assert bench.decisions() == []
    bench.formation.claimed(1)
    assert bench.formation.deadline_s == 0.0
    formed, over = bench.decisions()
    assert isinstance(formed, Formed)
    assert over == EndNow("worker 1 was killed")


def test_another_controller_greets_newcomers_before_it_has_heard_of_the_members() -> None:
    bench = Bench({"a": 2})
    bench.begin(0, 1)
    bench.formation.worker_exited(WorkerExited(1, -9, "worker 1 was killed", pid=1))
    bench.hello(0)
    bench.decisions()
    bench.replace_controller()
    bench.hello(2, ready=False)
    (deferred,) = bench.decisions()
    assert isinstance(deferred, Deferred)
    assert deferred.answer == Welcome(0, 1, ["a", "h2"], "shm", deferred.reason)


def test_another_controller_waits_for_those_that_waited_before() -> None:
    bench = Bench({"a": 2})
    bench.begin(0, 1)
    bench.formation.generation_ended(GenerationEnded(1, "a call stalled"))
    bench.hello(1)
    assert bench.decisions() == []
    bench.replace_controller()
    bench.hello(0)
    assert bench.decisions() == []
    bench.hello(1)
    (formed,) = bench.decisions()
    assert isinstance(formed, Formed)
    assert [member.hello.worker_id for member in formed.members] == [0, 1]


def test_who_hangs_is_killed_and_a_wait_without_culprit_is_not_for_us() -> None:
    bench = Bench({"a": 2})
    bench.begin(0, 1)
    assert not bench.formation.stalled([], "all are inside")
    assert bench.formation.stalled([1], "it hangs")
    assert bench.decisions() == [EndNow("it hangs")]
    assert bench.orders(Kill) == [1]


CASES = pytest.mark.parametrize(
    ("version", "engines"), [("2", ("shm",)), ("1", ("tcp",))], ids=["another version", "no engine in common"]
)


@CASES
def test_a_newcomer_that_does_not_fit_is_refused_and_the_others_go_on(version: str, engines: tuple[str, ...]) -> None:
    bench = Bench({"a": 2})
    bench.begin(0, 1)
    bench.formation.worker_exited(WorkerExited(1, -9, "worker 1 was killed", pid=1))
    bench.decisions()
    bench.hello(2, version=version, engines=engines)
    bench.hello(0)
    decisions = bench.decisions()
    (formed,) = [each for each in decisions if isinstance(each, Formed)]
    assert formed.hosts == ["h0"]
    refused = [member.uid for each in decisions if isinstance(each, Refused) for member in each.members]
    assert refused == [b"2"]


@CASES
def test_who_does_not_fit_is_refused_with_the_reason(version: str, engines: tuple[str, ...]) -> None:
    bench = Bench({"a": 2})
    bench.formation.started(0, "")
    bench.hello(0, ready=False)
    bench.hello(1, ready=False, version=version, engines=engines)
    refused = [each for each in bench.decisions() if isinstance(each, Refused)]
    assert b"1" in {member.uid for each in refused for member in each.members}
    assert all(isinstance(each.answer, Refuse) and not each.answer.orderly for each in refused)


def test_who_trains_something_else_is_refused_before_anybody_waits_for_it() -> None:
    bench = Bench({"a": 2})
    bench.begin(0, 1)
    bench.formation.worker_exited(WorkerExited(1, -9, "worker 1 was killed", pid=1))
    bench.hello(0, state="model (2 tensors)")
    bench.decisions()
    bench.hello(2, ready=False)
    bench.decisions()
    bench.hello(2, state="model (3 tensors)")
    (refused,) = bench.decisions()
    assert isinstance(refused, Refused)
    assert refused.reason.startswith("the ranks differ in what they train: rank 0 on h0 said model (2 tensors)")


def test_who_trains_something_else_is_refused_when_the_others_say_what_they_train() -> None:
    bench = Bench({"a": 1})
    bench.begin(0)
    bench.formation.report_event(HostsFound({"a": 3}))
    bench.decisions()
    bench.hello(1, ready=False)
    bench.hello(2, ready=False)
    bench.hello(1, state="model (3 tensors)")
    bench.hello(2, state="model (2 tensors)")
    bench.decisions()
    bench.formation.left(0, ending=False, told=False)
    bench.hello(0, state="model (2 tensors)")
    decisions = bench.decisions()
    (formed,) = [each for each in decisions if isinstance(each, Formed)]
    assert formed.hosts == ["h0", "h2"]
    refused = [member.uid for each in decisions if isinstance(each, Refused) for member in each.members]
    assert refused == [b"1"]


def test_the_end_is_for_the_launcher() -> None:
    bench = Bench({"a": 1})
    bench.begin(0)
    bench.formation.worker_exited(WorkerExited(0, 0, "worker 0 exited with code 0", pid=0))
    assert bench.decisions() == []
    assert isinstance(bench.formation.orders[-1].action, Finish)
    assert bench.formation.deadline_s is None


def test_a_child_cannot_come_in_its_parents_place() -> None:
    bench = Bench({"a": 2})
    bench.begin(0, 1)
    bench.hello(1, ready=False, pid=77)
    (refused,) = bench.decisions()
    assert isinstance(refused, Refused)
    assert refused.reason.startswith("rank 1 on h1 is process 1, which has not left the job, and process 77 on h1")
    bench.formation.left(1, ending=True, told=False)
    bench.hello(1, ready=False, pid=77)
    assert not any(isinstance(each, Refused) for each in bench.decisions())
