"""Who forms a generation, who is turned away, and in which words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.control.exits import WorkerExited
from farandole.control.messages import Hello
from farandole.errors import UnsupportedError
from farandole.runtime.coordination.formation import Decision, Formed, Refused
from farandole.runtime.coordination.static_formation import StaticFormation


def hello(worker_id: int, expected: int = 3, **more: Any) -> Hello:
    said: dict[str, Any] = {
        "worker": "w", "worker_id": worker_id, "expected": expected, "host": "ab"[worker_id % 2],
        "pid": 100 + worker_id, "version": "1", "engines": ["shm"], "stack_fd": 3, "stack_signal": 40,
        "process_sets": [],
    }  # fmt: skip
    return Hello(**{**said, **more})


def choose(hosts: Sequence[str], usable: Sequence[Sequence[str]]) -> tuple[str, str]:
    if not all("shm" in engines for engines in usable):
        raise UnsupportedError("no engine for all")
    return "shm", f"{len(hosts)} ranks"


def formation(expected: int = 3, excuse_failures: bool = False) -> StaticFormation:
    return StaticFormation(expected, 30.0, excuse_failures, choose)


def arrive(forming: StaticFormation, *hellos: Hello, now: float = 0.0) -> Decision | None:
    for one in hellos:
        knock(forming, f"{one.worker_id}".encode(), one, now)
    return forming.decide(now)


def knock(forming: StaticFormation, uid: bytes, one: Hello, now: float) -> None:
    if not forming.turn_away(uid, one):
        forming.hello(uid, one, now)


def formed(decision: Decision | None) -> Formed:
    assert isinstance(decision, Formed)
    return decision


def refused(decision: Decision | None) -> Refused:
    assert isinstance(decision, Refused)
    return decision


def test_it_forms_when_the_last_one_comes_in_the_order_of_places() -> None:
    forming = formation()
    assert arrive(forming, hello(2), hello(0)) is None
    generation = formed(arrive(forming, hello(1)))
    assert (generation.generation, generation.engine, generation.reason) == (1, "shm", "3 ranks")
    assert [member.uid for member in generation.members] == [b"0", b"1", b"2"]
    assert generation.hosts == ["a", "b", "a"]
    assert forming.decide(100.0) is None
    assert forming.deadline_s is None


def test_the_missing_are_named_when_the_time_is_over() -> None:
    forming = formation()
    forming.started(2, "rank 2 on a (process 77)")
    assert arrive(forming, hello(0), now=5.0) is None
    assert arrive(forming, hello(1), now=20.0) is None
    assert forming.deadline_s == 35.0
    decision = refused(forming.decide(35.0))
    assert {member.uid for member in decision.members} == {b"0", b"1"}
    assert decision.reason.startswith("rank 2 on a (process 77) has not called init() within 30 s")
    assert forming.deadline_s is None


def test_many_missing_are_named_in_short() -> None:
    forming = formation(64)
    arrive(forming, hello(0, 64))
    assert "ranks 1-63 have not called init()" in refused(forming.decide(30.0)).reason


def test_survivors_form_the_next_generation_without_the_dead() -> None:
    forming = formation()
    formed(arrive(forming, hello(0), hello(1), hello(2)))
    assert arrive(forming, hello(2)) is None
    forming.worker_exited(WorkerExited(1, 1, "rank 1 on b was killed by SIGKILL", pid=101))
    generation = formed(arrive(forming, hello(0)))
    assert (generation.generation, [member.hello.worker_id for member in generation.members]) == (2, [0, 2])


def test_the_end_of_the_last_missing_one_completes_a_later_generation() -> None:
    forming = formation()
    formed(arrive(forming, hello(0), hello(1), hello(2)))
    assert arrive(forming, hello(2), hello(0)) is None
    forming.worker_exited(WorkerExited(1, 0, "rank 1 on b exited with 0", pid=101))
    assert len(formed(forming.decide(0.0)).members) == 2


def test_one_that_died_while_it_waited_is_not_waited_for() -> None:
    forming = formation(2, excuse_failures=True)
    arrive(forming, hello(0, 2))
    forming.worker_exited(WorkerExited(0, 1, "rank 0 on a exited with 1", pid=100))
    assert forming.deadline_s is None
    assert len(formed(arrive(forming, hello(1, 2))).members) == 1


@pytest.mark.parametrize(
    ("failed", "excuse", "starts"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_an_end_before_init_is_fatal_unless_failures_are_excused(failed: bool, excuse: bool, starts: bool) -> None:
    forming = formation(2, excuse)
    forming.worker_exited(WorkerExited(1, int(failed), "rank 1 on b exited with 1", pid=101))
    decision = arrive(forming, hello(0, 2))
    assert isinstance(decision, Formed) == starts
    if not starts:
        assert "rank 1 on b exited with 1, before it had called init()" in refused(decision).reason


@pytest.mark.parametrize(
    ("odd", "text"),
    [
        ({"version": "2"}, "different versions of Farandole: rank 0 on a said 1; rank 1 on b said 2"),
        ({"process_sets": [[0]]}, "init(process_sets=...): rank 0 on a said []; rank 1 on b said [[0]]"),
        ({"engines": []}, "no engine for all"),
        ({"expected": 1}, "the job expects ranks 0 to 1, and this process says it is rank 1 of 1"),
        ({"expected": 3}, "the size of the job, which was started for 2: rank 0 on a said 2; rank 1 on b said 3"),
    ],
)
def test_ranks_that_do_not_fit_are_refused_with_what_each_said(odd: dict[str, Any], text: str) -> None:
    forming = formation(2)
    decision = refused(arrive(forming, hello(0, 2), hello(1, **{"expected": 2, **odd})))
    assert text in decision.reason


def test_impossible_static_sets_are_refused() -> None:
    for sets, text in (([[0, 5]], "rank 5 is not in this job"), ([[0], [0]], "has these ranks already")):
        forming = formation(2)
        decision = arrive(forming, hello(0, 2, process_sets=sets), hello(1, 2, process_sets=sets))
        assert text in refused(decision).reason


@pytest.mark.parametrize("worker_id", [-1, 3, 10**6])
def test_a_place_outside_the_job_is_refused_alone(worker_id: int) -> None:
    forming = formation()
    arrive(forming, hello(0))
    decision = refused(arrive(forming, hello(worker_id, 10**7)))
    assert [member.hello.worker_id for member in decision.members] == [worker_id]
    assert "the job expects ranks 0 to 2" in decision.reason
    assert forming.decide(0.0) is None


def test_a_size_beyond_that_of_the_job_is_refused_whoever_waits() -> None:
    forming = formation()
    for worker_id in (0, 1):
        decision = refused(arrive(forming, hello(worker_id, 10**12)))
        assert f"which was started for 3: rank {worker_id} on" in decision.reason


def test_a_second_process_in_one_place_is_refused_and_the_first_stays() -> None:
    forming = formation(2)
    arrive(forming, hello(0, 2))
    decision = refused(arrive(forming, hello(0, 2, pid=999)))
    says = "rank 0 on a is process 100, which has not left the job, and process 999 on a says that it is rank 0, too. "
    assert decision.reason.startswith(says)
    assert 'if __name__ == "__main__":' in decision.reason
    assert len(formed(arrive(forming, hello(1, 2))).members) == 2


def test_nobody_takes_the_place_of_a_member_that_is_still_there() -> None:
    forming = formation(2)
    formed(arrive(forming, hello(0, 2), hello(1, 2)))
    for worker_id in (0, 1):  # one child of each: they would be a job
        assert (
            f"is process {100 + worker_id}, which has not left"
            in refused(arrive(forming, hello(worker_id, 2, pid=9))).reason
        )
    assert forming.decide(100.0) is None
    forming.left(0, ending=False, told=False)
    assert arrive(forming, hello(0, 2, pid=9)) is None
    forming.worker_exited(WorkerExited(1, -9, "rank 1 on b was killed by SIGKILL", pid=101))
    assert [member.hello.pid for member in formed(forming.decide(0.0)).members] == [9]


def test_a_member_whose_connections_are_gone_makes_room_without_a_word() -> None:
    forming = formation(1)
    formed(arrive(forming, hello(0, 1)))
    asked: list[bytes] = []

    def is_connected(identity: bytes) -> bool:
        asked.append(identity)
        return False

    forming.registry.is_connected = is_connected
    assert formed(arrive(forming, hello(0, 1, pid=9))).members[0].hello.pid == 9
    assert asked == [b"0c"]
    forming.registry.below(lambda uid: uid == b"0")
    assert refused(arrive(forming, hello(0, 1, pid=10))).reason.startswith("rank 0 on a is process 9")


def test_another_version_and_another_host_are_turned_away_from_a_job_that_has_begun() -> None:
    forming = formation(2)
    assert len(formed(arrive(forming, hello(0, 2), hello(1, 2))).members) == 2
    old = refused(arrive(forming, hello(0, 2, pid=7, version="0.0.1")))
    assert "rank 0 on a has 0.0.1: install the same version" in old.reason
    moved = refused(arrive(forming, hello(0, 2, host="z")))
    assert "rank 0 is on a, not on z: is the job started twice" in moved.reason
    assert formed(arrive(forming, hello(0, 2), hello(1, 2))).generation == 2


def test_a_process_that_tries_again_counts_once_with_its_new_sockets() -> None:
    forming = formation(2)
    forming.hello(b"old", hello(0, 2), 0.0)
    forming.hello(b"new", hello(0, 2), 1.0)
    assert [member.uid for member in formed(arrive(forming, hello(1, 2))).members] == [b"new", b"1"]


def test_fewer_than_the_job_may_agree_to_be_one_and_only_their_ends_count() -> None:
    forming = formation(4)
    forming.worker_exited(WorkerExited(0, 0, "rank 0 on a exited with 0", pid=100))
    first, second = hello(0, 2, pid=101), hello(1, 2, pid=103)
    generation = formed(arrive(forming, second, first))
    assert [member.hello.pid for member in generation.members] == [101, 103]
    forming.worker_exited(WorkerExited(3, 1, "rank 3 on b was killed by SIGKILL", pid=103))
    assert [member.hello.pid for member in formed(arrive(forming, first)).members] == [101]


events = st.lists(
    st.one_of(
        st.tuples(st.just("hello"), st.integers(-1, 4), st.integers(0, 4)),
        st.tuples(st.just("gone"), st.integers(0, 3), st.integers(0, 1)),
        st.tuples(st.just("wait"), st.integers(0, 40), st.just(0)),
    ),
    max_size=30,
)


@given(events, st.booleans())
def test_whatever_comes_every_hello_is_answered_once_and_generations_grow(
    job_events: list[tuple[str, int, int]], excuse: bool
) -> None:
    forming = formation(3, excuse)
    now, uid, generation = 0.0, 0, 0
    open_uids: set[bytes] = set()
    for what, first, second in job_events:
        if what == "hello":
            uid += 1
            open_uids.add(b"%d" % uid)
            knock(forming, b"%d" % uid, hello(first, 3 if second else 2), now)
        elif what == "gone":
            forming.worker_exited(WorkerExited(first, int(bool(second)), "it has ended", pid=100 + first))
        else:
            now += first
        while (decision := forming.decide(now)) is not None:
            answered = {member.uid for member in decision.members}
            assert answered
            assert answered <= open_uids
            open_uids -= answered
            if isinstance(decision, Formed):
                generation += 1
                assert decision.generation == generation
        assert forming.deadline_s is None or forming.deadline_s > now
