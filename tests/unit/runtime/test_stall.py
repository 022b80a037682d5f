"""When stalls are said, whom it asks, and what the report says. Time is a number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.control.messages import Progress
from farandole.runtime.coordination.stall import (
    PATIENCE_S,
    Limits,
    StackRequest,
    StallInspector,
    StallReport,
    StallVerdict,
    Step,
    Waiting,
)
from farandole.settings import Settings

LAST = ["", "allreduce 'x'", "", ""].__getitem__
NOTHING = ([""] * 20).__getitem__


def inspector(warning_s: float = 60.0, shutdown_s: float = 600.0) -> StallInspector:
    return StallInspector(Limits(warning_s, shutdown_s), ["a", "a", "b"])


def wait(since_s: float = 0.0, name: str = "loss", missing: tuple[int, ...] = (1,)) -> Waiting:
    ready = tuple(rank for rank in range(3) if rank not in missing)
    return Waiting((name, since_s), f"allreduce {name!r}", since_s, ready, missing)


def text(step: Step) -> str:
    assert isinstance(step, StallReport)
    return step.text


def report(stall: StallInspector, now: float, *waiting: Waiting) -> str:
    """Ask, hear nothing, and report."""
    assert isinstance(stall.look(now, waiting, LAST), StackRequest)
    return text(stall.look(now + PATIENCE_S, waiting, LAST))


def on_time(stall: StallInspector, now: float, *waiting: Waiting) -> Step:
    """Look at the moment that it has asked for, or has been woken at."""
    stall.deadline_s = now
    return stall.look(now, waiting, LAST)


def test_a_report_says_what_waits_for_whom_and_where_they_are() -> None:
    stall = inspector()
    stall.expect(100.0)
    assert stall.deadline_s == 160.0
    waiting = [wait(100.0)]
    assert stall.look(160.0, waiting, LAST) == StackRequest((1,))
    assert stall.deadline_s == 160.0 + PATIENCE_S
    stall.answered(1, Progress(1, "allreduce.x", ""), 160.1)
    assert stall.deadline_s == 160.0 + PATIENCE_S
    stall.stack(1, 'File "train.py", line 3 in work\nFile "train.py", line 9 in <module>', 160.2)
    assert stall.deadline_s == 160.2
    assert text(stall.look(160.2, waiting, LAST)).splitlines() == [
        "stalled: allreduce 'loss' has waited 60.2 s; missing: rank 1 on a; ready: rank 0 on a, rank 2 on b",
        "  rank 1 on a last finished allreduce.x, and is outside Farandole; its Python stack now:",
        '    File "train.py", line 3 in work',
        '    File "train.py", line 9 in <module>',
        "  every rank raises StallError after 600 s (FARANDOLE_STALL_SHUTDOWN_S)",
    ]


def test_a_rank_that_answers_nothing_is_reported_after_the_patience() -> None:
    lines = report(inspector(), 60.0, wait()).splitlines()
    assert lines[1].startswith("  rank 1 on a last finished allreduce 'x', and has not answered")
    assert "its stack was not received within 1 s" in lines[1]


def test_a_rank_inside_something_else_is_said_to_be_there() -> None:
    stall = inspector()
    stall.look(60.0, [wait()], LAST)
    stall.answered(1, Progress(1, "", "planned step 7"), 60.0)
    assert "last finished allreduce 'x', and is inside planned step 7" in text(stall.look(61.0, [wait()], LAST))


def test_what_ends_while_it_is_asked_about_is_not_reported() -> None:
    stall = inspector()
    assert isinstance(stall.look(60.0, [wait()], LAST), StackRequest)
    assert stall.look(61.0, [], LAST) is None
    assert stall.deadline_s is not None  # a repetition was due; then there is nothing, and it sleeps
    assert stall.look(stall.deadline_s, [], LAST) is None
    assert stall.deadline_s is None


def test_reports_come_at_doubling_intervals_however_many_collectives_wait() -> None:
    stall = inspector(10.0, 0.0)
    stall.expect(0.0)
    waiting: list[Waiting] = []
    asked = []
    for second in range(400):
        now = float(second)
        if second < 100:
            waiting.append(wait(now, f"n{second}"))
        if (
            stall.deadline_s is not None
            and now >= stall.deadline_s
            and isinstance(stall.look(now, waiting, LAST), StackRequest)
        ):
            asked.append(second)
    assert asked == [10, 20, 40, 80, 160, 320]


def test_a_new_missing_rank_is_reported_at_once() -> None:
    stall = inspector()
    report(stall, 60.0, wait())
    assert stall.look(70.0, [wait(), wait(10.0, "acc", (2,))], LAST) == StackRequest((1, 2))


def test_a_stall_after_one_that_ended_is_reported_in_time() -> None:
    stall = inspector()
    report(stall, 60.0, wait())
    assert stall.look(100.0, [wait(90.0)], LAST) is None
    assert stall.deadline_s == 150.0
    assert stall.look(150.0, [wait(90.0)], LAST) == StackRequest((1,))


def test_the_intervals_begin_anew_with_every_stall() -> None:
    stall = inspector(10.0, 0.0)
    for now in (10.0, 20.0, 40.0):
        report(stall, now, wait())
    stall.look(60.0, [wait(55.0)], LAST)
    for now in (65.0, 75.0):
        report(stall, now, wait(55.0))


def test_many_waits_and_ranks_are_cut() -> None:
    stall = StallInspector(Limits(60.0, 0.0), ["a"] * 20)
    waiting = [Waiting((n,), f"allreduce 'n{n}'", 0.0, (0,), tuple(range(1, 20))) for n in range(9)]
    assert stall.look(60.0, waiting, NOTHING) == StackRequest(tuple(range(1, 9)))
    lines = text(stall.look(61.0, waiting, NOTHING)).splitlines()
    assert "stalled: 4 more" in lines
    assert "  and 11 more ranks" in lines
    assert not any("StallError" in line for line in lines)


def test_after_the_shutdown_time_all_end() -> None:
    stall = inspector(60.0, 100.0)
    report(stall, 60.0, wait())
    assert stall.deadline_s == 100.0
    step = stall.look(100.0, [wait()], LAST)
    assert isinstance(step, StallVerdict)
    assert step.reason.startswith("allreduce 'loss' has waited 100.0 s; missing: rank 1 on a")


def test_where_nobody_waits_a_job_may_compute_for_long() -> None:
    stall = inspector()
    stall.expect(0.0)
    while (due_s := stall.deadline_s) is not None and due_s < 6000:
        assert stall.look(due_s, [], lambda _: "") is None


def test_without_limits_it_never_looks() -> None:
    stall = inspector(0.0, 0.0)
    stall.expect(0.0)
    stall.hurry(0.0)
    assert stall.deadline_s is None
    assert stall.look(1e9, [wait()], LAST) is None


def test_without_a_warning_time_the_shutdown_time_still_counts() -> None:
    stall = inspector(0.0, 100.0)
    stall.expect(0.0)
    assert stall.deadline_s == 100.0
    assert isinstance(stall.look(100.0, [wait()], LAST), StallVerdict)


# -- the planned lane -------------------------------------------------------------------------------------------------


def test_old_news_end_no_job() -> None:
    stall = inspector(60.0, 100.0)
    news = wait()._replace(age_s=31.0)
    assert not isinstance(stall.look(100.0, [news], LAST), StallVerdict)
    assert isinstance(stall.look(131.0, [news], LAST), StallVerdict)


def test_when_all_are_inside_they_are_asked_and_who_has_moved_on_ends_the_matter() -> None:
    stall = inspector()
    inside = wait(missing=())._replace(what="step 7")
    assert stall.look(60.0, [inside], LAST) == StackRequest((0, 1, 2))
    stall.answered(2, Progress(1, "", "step 8"), 60.5)
    assert stall.look(61.0, [inside], LAST) is None
    again = inspector()
    again.look(60.0, [inside], LAST)
    for rank in range(3):
        again.answered(rank, Progress(1, "", "step 7"), 60.5)
    assert "all ranks are inside; ready: ranks 0-1 on a, rank 2 on b" in text(again.look(61.0, [inside], LAST))


@given(
    st.lists(
        st.tuples(
            st.floats(0, 50), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), max_size=3), st.booleans()
        ),
        max_size=30,
    ),
    st.sampled_from([0.0, 0.5, 10.0]),
    st.sampled_from([0.0, 40.0]),
)
def test_whatever_waits_it_neither_raises_nor_spins(
    job_events: list[tuple[float, list[tuple[int, int]], bool]], warning_s: float, shutdown_s: float
) -> None:
    stall = inspector(warning_s, shutdown_s)
    now = 0.0
    for passed_s, waits, answers in job_events:
        now += passed_s
        waiting = [wait(now - 10.0 * age, f"n{age}", (rank,)) for age, rank in waits]
        stall.expect(now)
        looks = 0
        while stall.deadline_s is not None and stall.deadline_s <= now:
            step = stall.look(now, waiting, LAST)
            looks += 1
            assert looks < 5
            if isinstance(step, StallVerdict):
                return
            if isinstance(step, StackRequest) and answers:
                for rank in step.ranks:
                    stall.answered(rank, Progress(1, "", ""), now)
                    stall.stack(rank, "", now)


def test_in_an_elastic_job_who_hangs_is_found_sooner_and_said_before() -> None:
    settings = Settings(min_np=1, hang_timeout_s=5.0)
    assert Limits.of(settings)[:3] == (2.5, 5.0, "--hang-timeout")
    assert Limits.of(settings.as_static()) == Limits(60.0, 600.0)
    assert Limits.of(Settings(min_np=1, hang_timeout_s=0.0)) == Limits(60.0, 600.0)
    assert Limits.of(Settings(min_np=1, stall_check=False)) == Limits(0.0, 0.0)


@pytest.mark.parametrize(("step_s", "hangs_after_s"), [(0.1, 5.0), (4.0, 20.0)])
def test_who_takes_a_few_of_the_longest_steps_does_not_hang(step_s: float, hangs_after_s: float) -> None:
    stall = StallInspector(Limits.of(Settings(min_np=1, hang_timeout_s=5.0)), ["a", "b"])
    stall.expect(0.0)
    wait = Waiting(("planned",), "step 7", 0.0, (0,), (1,), step_s=step_s)
    assert not isinstance(on_time(stall, hangs_after_s - 0.1, wait), StallVerdict)
    verdict = on_time(stall, hangs_after_s, wait)
    assert isinstance(verdict, StallVerdict)
    assert verdict.missing == (1,)


ELASTIC = Limits.of(Settings(min_np=1, hang_timeout_s=5.0, stall_shutdown_s=60.0))
VALIDATES = Waiting(("planned",), "step 7", 0.0, (0,), (1,))


def elastic(*signs: tuple[int, float, float]) -> StallInspector:
    """After these signs of life of two ranks: which, when, and what it had done."""
    stall = StallInspector(ELASTIC, ["a", "b"])
    stall.begin(0.0)
    for rank, now, work in signs:
        stall.deadline_s = now
        stall.answered(rank, Progress(1, "", "", work), now)
    return stall


def test_who_gives_signs_of_life_has_longer_than_who_does_not() -> None:
    stall = elastic((1, 4.0, 0.0))
    assert not isinstance(on_time(stall, 8.9, VALIDATES), StallVerdict)
    verdict = on_time(stall, 9.0, VALIDATES)
    assert isinstance(verdict, StallVerdict)
    assert verdict.missing == (1,)
    stall = elastic(*((1, float(now), 0.0) for now in range(60)))
    assert not isinstance(on_time(stall, 59.9, VALIDATES), StallVerdict)
    verdict = on_time(stall, 60.0, VALIDATES)
    assert isinstance(verdict, StallVerdict)
    assert verdict.missing == (1,)


def test_when_nobody_works_and_nobody_waits_all_hang() -> None:
    stall = elastic((0, 10.0, 3.0), (1, 50.0, 0.6))
    assert on_time(stall, 69.9) is None
    assert stall.deadline_s == 70.0
    verdict = on_time(stall, 70.0)
    assert isinstance(verdict, StallVerdict)
    assert verdict.missing == (0, 1)


def test_who_validates_for_long_without_any_collective_works() -> None:
    stall = elastic(*((rank, 50.0 * turn, 40.0 * turn) for turn in range(10) for rank in range(2)))
    assert on_time(stall, 500.0) is None


def test_a_job_that_was_stopped_as_a_whole_goes_on_when_that_ends() -> None:
    stall = elastic((0, 10.0, 3.0), (1, 10.0, 3.0))
    on_time(stall, 12.0)
    assert stall.look(5000.0, [], LAST) is None
    assert not isinstance(on_time(stall, 5001.0, VALIDATES), StallVerdict)
    assert isinstance(on_time(stall, 5005.0, VALIDATES), StallVerdict)


def test_what_begins_to_wait_later_is_looked_at_in_time() -> None:
    stall = elastic()
    assert on_time(stall, 2.5) is None
    stall.expect(3.0)
    assert stall.deadline_s == 5.5


def test_who_waits_itself_is_not_the_one_that_hangs() -> None:
    stall = inspector()
    past_it = Waiting(("chunk",), "chunk 0", 0.0, (0,), (1, 2))
    inside = Waiting(("step",), "step 7", 0.0, (1,), (0, 2))
    verdict = stall.look(600.0, [past_it, inside], LAST)
    assert isinstance(verdict, StallVerdict)
    assert verdict.missing == (2,)


def test_in_an_elastic_job_there_is_time_to_find_out_who_is_to_blame() -> None:
    stall = StallInspector(Limits.of(Settings(min_np=1, hang_timeout_s=5.0)), ["a", "b"])
    stall.expect(0.0)
    wait = Waiting(("planned",), "step 7", 0.0, (0, 1), ())
    assert not isinstance(on_time(stall, 5.0, wait), StallVerdict)
    assert stall.deadline_s is not None
    assert stall.deadline_s <= 10.0
    assert on_time(stall, 10.0, wait) == StallVerdict(
        "step 7 has waited 10.0 s; all ranks are inside; ready: rank 0 on a, rank 1 on b: longer than --hang-timeout"
    )
