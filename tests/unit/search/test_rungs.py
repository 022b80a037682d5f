"""ASHA that pauses and promotes, against what the algorithm promises."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.errors import UsageError
from farandole.search.rungs import Next, Rungs, Standing, after_rung, promote


def play(values: dict[int, list[float]], rungs: Rungs, workers: int, seed: int) -> dict[int, tuple[float, ...]]:
    """Trials on so many workers, whose rungs are done in random order; the values that each has come to."""
    chance = random.Random(seed)
    reached: dict[int, list[float]] = {}
    going: list[int] = []
    completed: list[int] = []
    waiting = sorted(values)

    def standings() -> list[Standing]:
        return [Standing(n, tuple(v), n in going) for n, v in reached.items()]

    while True:
        while len(going) < workers:
            number, _ = promote(rungs, standings(), is_more=bool(waiting))
            if number is None and waiting:
                number = waiting.pop(0)
                reached[number] = []
            if number is None:
                break
            assert number not in going
            assert number not in completed
            going.append(number)
        if not going:
            return {n: tuple(v) for n, v in reached.items()}
        number = chance.choice(going)
        rung = len(reached[number])
        reached[number].append(values[number][rung])
        decision, reason = after_rung(rungs, standings(), number)
        assert reason
        assert (decision is Next.COMPLETE) == (rung == len(rungs.levels) - 1)
        if decision is not Next.GO_ON:
            going.remove(number)
        completed += [number] * (decision is Next.COMPLETE)


@given(
    trials=st.integers(1, 40),
    workers=st.integers(1, 6),
    reduction=st.integers(2, 4),
    seed=st.integers(0, 10**6),
)
def test_every_trial_trains_once_and_the_best_of_all_completes(
    trials: int, workers: int, reduction: int, seed: int
) -> None:
    chance, rungs = random.Random(seed), Rungs.of(1, 27, reduction)
    loss = {n: chance.random() for n in range(trials)}  # the same at every rung: the best never looks bad
    reached = play({n: [loss[n]] * len(rungs.levels) for n in loss}, rungs, workers, seed)
    assert sorted(reached) == list(range(trials))
    assert all(values for values in reached.values())
    assert any(len(values) == len(rungs.levels) for values in reached.values())
    best = min(loss, key=lambda n: loss[n])
    assert len(reached[best]) == len(rungs.levels)


@given(trials=st.integers(9, 60), workers=st.integers(1, 4), seed=st.integers(0, 10**6))
def test_no_more_go_on_than_the_best_of_their_rung_at_some_time(trials: int, workers: int, seed: int) -> None:
    """A trial that went on was at that moment among the best third of those there: never more than n/3 at a time."""
    chance, rungs = random.Random(seed), Rungs.of(1, 27, 3)
    values = {n: [chance.random() for _ in rungs.levels] for n in range(trials)}
    reached = play(values, rungs, workers, seed)
    epochs = sum(rungs.levels[len(v) - 1] for v in reached.values())
    # Whoever was promoted too early makes more than the synchronous budget; the paper bounds it by sqrt(n) a rung.
    surplus = sum(2 * math.sqrt(trials) * (b - a) for a, b in zip(rungs.levels, rungs.levels[1:], strict=False))
    synchronous = sum(
        trials / 3 ** (k + 1) * (rungs.levels[k + 1] - rungs.levels[k]) for k in range(len(rungs.levels) - 1)
    )
    assert epochs <= trials + synchronous + surplus + rungs.levels[-1]


def test_twenty_seven_equal_trials_take_an_eighth_of_the_epochs() -> None:
    rungs = Rungs.of(1, 27, 3)
    reached = play({n: [n / 100] * 4 for n in range(26, -1, -1)}, rungs, 1, 0)
    assert sum(rungs.levels[len(v) - 1] for v in reached.values()) <= 0.45 * 27 * 27


DIVERGED = [math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("diverged", DIVERGED)
def test_a_diverged_trial_never_goes_on(diverged: float) -> None:
    rungs = Rungs.of(1, 4, 2)
    standings = [Standing(n, (diverged,)) for n in range(4)]
    assert promote(rungs, standings, is_more=True)[0] is None
    assert promote(rungs, standings, is_more=False)[0] is None
    assert after_rung(rungs, standings, 0)[0] is Next.PAUSE


@pytest.mark.parametrize("diverged", DIVERGED)
def test_a_diverged_trial_takes_the_place_of_no_other(diverged: float) -> None:
    rungs = Rungs.of(1, 9, 3)
    lowest = [Standing(0, (diverged,)), Standing(1, (0.2,)), Standing(2, (0.3,))]
    assert promote(rungs, lowest, is_more=True)[0] == 1
    assert after_rung(rungs, lowest, 1)[0] is Next.GO_ON
    higher = [Standing(0, (0.1, diverged)), Standing(1, (0.2, 0.2)), Standing(2, (0.3,))]
    assert promote(rungs, higher, is_more=False)[0] == 1
    assert promote(rungs, [higher[0], lowest[2]], is_more=False)[0] == 2
    over = Standing(0, (0.1, 0.1, diverged), is_over=True)
    assert promote(rungs, [over, lowest[1]], is_more=False)[0] == 1


def test_one_that_failed_is_not_promoted_and_another_is() -> None:
    rungs = Rungs.of(1, 4, 2)
    standings = [Standing(0, (0.1,), is_over=True), Standing(1, (0.2,)), Standing(2, (0.3,)), Standing(3, (0.4,))]
    number, reason = promote(rungs, standings, is_more=True)
    assert (number, reason) == (1, "2nd of 4 at epoch 1; the best 2 go on")


def test_higher_rungs_come_first() -> None:
    rungs = Rungs.of(1, 9, 3)
    low = [Standing(n, (n / 10,)) for n in range(3, 12)]
    high = [Standing(n, (0.0, n / 10)) for n in range(3)]
    assert promote(rungs, [*low, *high], is_more=True)[0] == 0


@pytest.mark.parametrize(("least", "most", "reduction"), [(0, 3, 3), (4, 3, 3), (1, 3, 1)])
def test_impossible_rungs_are_refused(least: int, most: int, reduction: int) -> None:
    with pytest.raises(UsageError, match="give"):
        Rungs.of(least, most, reduction)
