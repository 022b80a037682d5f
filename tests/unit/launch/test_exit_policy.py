"""What the exits of workers and the losses of hosts mean for a static job."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from farandole.control.exits import WorkerExited
from farandole.launch.job.exit_policy import ExitAction, ExitPolicy
from farandole.launch.job.exit_wording import ExitWording

WORDS = ExitWording()


def exited(worker_id: int, code: int, tail: str = "", error: str = "") -> WorkerExited:
    """The end of a rank on host ``a``, in words."""
    return WORDS.describe(WorkerExited(worker_id, code, tail=tail, error=error), "a")


def test_the_first_failure_decides_and_later_ends_do_not() -> None:
    policy = ExitPolicy(3, "stop")
    assert policy.exited(exited(0, 0)) is ExitAction.GO_ON
    assert policy.exited(exited(2, -11, "why\nindeed")) is ExitAction.STOP
    assert list(policy.living) == [1]
    assert policy.exited(exited(1, -15)) is ExitAction.GO_ON
    assert not policy.living
    assert policy.status == 139
    assert policy.last_words().splitlines() == [
        "rank 2 on a was killed by SIGSEGV; the last lines of its stderr:",
        "    why",
        "    indeed",
    ]


def test_who_left_first_is_the_cause_though_others_end_before() -> None:
    policy = ExitPolicy(4, "stop")
    assert policy.exited(exited(3, 0), left=[3]) is ExitAction.GO_ON
    assert policy.exited(exited(0, 1, "AbortError"), left=[3, 1, 2, 0]) is ExitAction.AWAIT
    assert policy.exited(exited(2, 1, "AbortError"), left=[3, 1, 2, 0]) is ExitAction.AWAIT
    assert policy.exited(exited(1, 3, "mine"), left=[3, 1, 2, 0]) is ExitAction.STOP
    assert policy.status == 3
    assert policy.last_words().splitlines() == [
        "rank 1 on a exited with code 3; the last lines of its stderr:",
        "    mine",
        "after that, rank 2 on a exited with code 1",
        "after that, rank 0 on a exited with code 1",
    ]


def test_who_left_in_good_order_is_not_the_cause() -> None:
    policy = ExitPolicy(2, "stop")
    assert policy.exited(exited(0, 1), left=[1, 0]) is ExitAction.AWAIT
    assert policy.exited(exited(1, 0), left=[1, 0]) is ExitAction.STOP
    assert (policy.status, policy.cause) == (1, 0)


def test_who_exits_after_the_others_were_told_to_end_is_not_the_cause() -> None:
    policy = ExitPolicy(3, "stop")
    assert policy.exited(exited(0, 1), left=[1, 0]) is ExitAction.AWAIT
    policy.is_stopped = True
    assert policy.exited(exited(1, -15), left=[1, 0]) is ExitAction.GO_ON
    assert (policy.status, policy.cause) == (1, 0)
    policy = ExitPolicy(2, "stop")
    policy.is_stopped = True
    for worker_id in (0, 1):
        assert policy.exited(exited(worker_id, -9)) is ExitAction.GO_ON
    assert (policy.status, policy.cause, policy.last_words()) == (0, -1, "")


def test_who_is_killed_is_the_cause_at_once() -> None:
    policy = ExitPolicy(2, "stop")
    assert policy.exited(exited(1, -9), left=[1]) is ExitAction.STOP


def test_a_failure_of_an_earlier_generation_stays_the_first() -> None:
    policy = ExitPolicy(3, "continue")
    policy.exited(exited(2, -9), left=[2])
    policy.exited(exited(0, 1), left=[1, 0])
    policy.exited(exited(1, 5), left=[1, 0])
    assert policy.status == 137
    assert policy.last_words().splitlines()[1:] == [
        "after that, rank 1 on a exited with code 5",
        "after that, rank 0 on a exited with code 1",
    ]


def test_with_continue_the_job_goes_on_and_keeps_the_first_code() -> None:
    policy = ExitPolicy(3, "continue")
    assert policy.exited(exited(1, 7)) is ExitAction.GO_ON
    assert policy.exited(exited(0, 9)) is ExitAction.GO_ON
    assert policy.exited(exited(2, 0)) is ExitAction.GO_ON
    assert policy.status == 7
    assert policy.last_words().endswith("after that, rank 0 on a exited with code 9")


def test_a_command_that_cannot_be_started_ends_the_job_in_any_case() -> None:
    policy = ExitPolicy(2, "continue")
    assert policy.exited(exited(0, 127, error="x was not found")) is ExitAction.STOP
    assert policy.status == 127
    assert policy.last_words() == "rank 0 on a could not be started: x was not found"


def test_a_lost_host_ends_the_job_or_is_named_after_the_failure_that_did() -> None:
    policy = ExitPolicy(3, "stop")
    assert policy.host_lost([1, 2], "host b is silent", 137) is ExitAction.STOP
    assert list(policy.living) == [0]
    assert policy.exited(exited(0, -15)) is ExitAction.GO_ON
    assert not policy.living
    assert (policy.status, policy.cause, policy.last_words()) == (137, -1, "host b is silent")
    policy = ExitPolicy(3, "stop")
    policy.exited(exited(0, 3))
    assert policy.host_lost([1, 2], "host b is silent") is ExitAction.GO_ON
    assert policy.status == 3
    assert policy.last_words().splitlines()[1] == "after that, host b is silent"


def test_with_continue_the_other_hosts_go_on_as_long_as_there_are_any() -> None:
    policy = ExitPolicy(3, "continue")
    assert policy.host_lost([2], "host c is silent") is ExitAction.GO_ON
    assert policy.host_lost([0, 1], "host a is silent") is ExitAction.STOP
    assert policy.status == 1
    assert policy.last_words() == "host c is silent\nafter that, host a is silent"


@given(
    st.permutations(range(4)),
    st.lists(st.integers(-15, 3), min_size=4, max_size=4),
    st.sampled_from(["stop", "continue"]),
    st.permutations(range(4)),
)
def test_the_status_is_zero_only_if_nobody_failed(
    order: list[int], codes: list[int], on_failure: str, leaving: list[int]
) -> None:
    policy = ExitPolicy(4, on_failure)  # type: ignore[arg-type]
    asked = [policy.exited(exited(worker_id, codes[worker_id]), leaving) for worker_id in order]
    assert not policy.living
    assert (policy.status == 0) == (not any(codes)) == (policy.last_words() == "")
    assert asked.count(ExitAction.STOP) == (on_failure == "stop" and any(codes))


def test_a_traceback_that_was_shown_is_not_shown_again() -> None:
    tail = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    f()\nOSError: no\nwhy'
    policy = ExitPolicy(1, "stop", ExitWording(shown=True))
    policy.exited(exited(0, 1, tail))
    assert policy.last_words().splitlines() == [
        "rank 0 on a exited with code 1; its traceback is above, at [0]<stderr>:",
        "    OSError: no",
        "    why",
    ]
    assert WORDS.account(exited(0, 1, tail))[1:] == [f"    {line}" for line in tail.splitlines()]
    assert "the last lines" in ExitWording(shown=True).account(exited(0, 1, "glibc: corrupted"))[0]
