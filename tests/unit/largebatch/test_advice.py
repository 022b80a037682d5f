"""How long steps take, and on how many workers to go on: fits, decisions, and what is refused."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.largebatch import Advice, Estimate, NoEstimate, Prospect, Refusal, Timing, advise, fit
from farandole.largebatch.advice import decide, duration, significant

KNOWN = Estimate(trace=4000.0, norm2=1.0, low=2500.0, high=6800.0, samples=100_000)
TIMED = [Timing(2, 1, 32, 1, 0.110, 0.100), Timing(4, 1, 32, 1, 0.116, 0.100)]


def timings(a: float, b: float, overlap: float = 1.0, passes: int = 1, hosts: int = 1) -> list[Timing]:
    """Steps of a machine that is as the model says."""
    found = []
    for workers in (2, 4, 8):
        exchange = a + b * (workers - 2)
        last = (0.1**overlap + exchange**overlap) ** (1 / overlap)
        compute = passes * 0.1
        found.append(Timing(workers, hosts, 32, passes, (passes - 1) * 0.1 + last, compute))
    return found


@given(st.floats(0.001, 0.1), st.floats(0, 0.01), st.integers(1, 4))
def test_the_fit_finds_what_is_there(a: float, b: float, passes: int) -> None:
    model = fit(timings(a, b, passes=passes))
    assert model.pass_s == pytest.approx(0.1)
    for workers in (2, 4, 8, 16, 32):
        assert model.step_s(workers) == pytest.approx(passes * 0.1 + a + b * (workers - 2), rel=0.01)
    assert model.step_s(1) == pytest.approx(passes * 0.1)
    assert model.reach == 32


@pytest.mark.parametrize("overlap", [1.0, 2.0, 4.0])
def test_the_fit_finds_how_much_is_hidden(overlap: float) -> None:
    model = fit(timings(0.05, 0.01, overlap))
    truth = (0.1**overlap + (0.05 + 0.01 * 14) ** overlap) ** (1 / overlap)
    assert model.step_s(16) == pytest.approx(truth, rel=0.02)


def test_workers_on_one_host_and_on_several_are_fitted_apart() -> None:
    inside, between = timings(0.001, 0.0)[:2], timings(0.05, 0.01, hosts=2)
    model = fit([*inside, *between], workers_per_host=4)
    assert model.step_s(4) == pytest.approx(0.101, rel=0.01)
    assert model.step_s(8) == pytest.approx(0.1 + 0.05 + 0.06, rel=0.01)


def test_other_batches_are_left_out() -> None:
    model = fit([Timing(2, 1, 512, 1, 9.0, 8.0), *TIMED])
    assert model.step_s(4) == pytest.approx(0.116)


def test_without_a_slope_nothing_is_said_beyond_what_was_measured() -> None:
    assert fit(TIMED[:1]).reach == 2
    assert fit([Timing(1, 1, 32, 1, 0.1, 0.1)]).reach == 1
    assert fit(TIMED).reach == 16
    assert fit(TIMED, workers_per_host=8).reach == 8  # of hosts nothing is known


@pytest.mark.parametrize("wrong", [(0, 1, 32, 1, 1.0, 1.0), (1, 1, 32, 1, 1.0, 2.0), (1, 1, 0, 1, 1.0, 1.0)])
def test_there_are_no_such_steps(wrong: tuple[int, int, float, int, float, float]) -> None:
    with pytest.raises(ValueError, match="there is no such step"):
        Timing(*wrong)


# -- advice -----------------------------------------------------------------------------------------------------------


def asked(**changes: object) -> Advice:
    """An answer, which there must be."""
    usual: dict[str, object] = {"samples": 9e7, "base_batch": 128.0, "max_workers": 16}
    found = advise(KNOWN, TIMED, **{**usual, **changes})  # type: ignore[arg-type]
    assert isinstance(found, Advice), found
    return found


def test_predictions_are_those_of_the_formulas() -> None:
    for prospect in asked().prospects:
        batch = 32 * prospect.workers
        samples = 9e7 * (4000 + batch) / (4000 + 128)
        step_s = 0.1 if prospect.workers == 1 else 0.11 + 0.003 * (prospect.workers - 2)
        assert prospect.samples == pytest.approx(samples)
        assert prospect.seconds == pytest.approx(samples / batch * step_s)
        assert prospect.fastest_s <= prospect.seconds <= prospect.slowest_s
    assert asked().prospects[3].samples == pytest.approx(9e7)  # at the base batch


def test_the_table_reads_in_eighty_columns_and_says_why() -> None:
    text = str(asked())
    assert max(map(len, text.splitlines())) <= 80
    assert "critical batch now: 4000 samples (95 %: 2500 to 6800)" in text
    assert "Recommended: 15 workers." in text
    assert "►" in text
    assert "now" in text


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    asked().plot(tmp_path / "deep" / "advice.png")
    assert (tmp_path / "deep" / "advice.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_shows_the_numbers_of_the_table() -> None:
    advice = asked()
    time, samples = advice.plot().axes
    drawn = [[np.asarray(line.get_xydata()) for line in axes.get_lines()[:2]] for axes in (time, samples)]
    (seconds, recommended), (needed, _) = drawn
    assert time.get_ylabel() == "hours"
    np.testing.assert_allclose(seconds, [(p.workers, p.seconds / 3600) for p in advice.prospects])
    np.testing.assert_allclose(needed, [(p.workers, p.samples / 1e6) for p in advice.prospects])
    assert set(recommended[:, 0]) == {advice.workers}


def test_the_reasons_are_numbers() -> None:
    advice = asked(max_workers=16)
    why = " ".join(advice.reasons)
    assert f"It takes {duration(advice.recommended.seconds)}" in why
    assert f"{duration(advice.recommended.slowest_s)} if the noise is at its lower bound" in why
    assert str(asked(max_workers=4)).count("Recommended: 4 workers.") == 1


def test_a_noise_scale_without_upper_bound_still_gives_an_answer() -> None:
    late = Estimate(trace=4000.0, norm2=-0.01, low=2500.0, high=math.inf, samples=100_000)
    found = advise(late, TIMED, samples=9e7, base_batch=128, max_workers=16)
    assert isinstance(found, Advice)
    assert found.prospects[15].samples == 9e7  # all samples count in full as far as is known
    assert found.critical_batch < 0  # and the estimate itself is shown as it is


@pytest.mark.parametrize(
    ("estimate", "timed", "most", "said"),
    [
        (NoEstimate("one rank alone"), TIMED, 4, "one rank alone"),
        (KNOWN, [], 4, "no step was timed"),
        (KNOWN, TIMED[:1], 8, r"timed on 2 workers, which says nothing beyond 4: for 8.* other numbers of them"),
        (KNOWN, TIMED, 17, "nothing beyond 16"),
        (Estimate(1.0, 1.0, 0.0, 9.0, 10), TIMED, 4, "lower bound of the noise scale is 0"),
        (Estimate(1.0, 1.0, 0.1, 9.0, 10), TIMED, 4, "known too roughly"),
    ],
)
def test_it_refuses_what_the_data_do_not_support(
    estimate: Estimate | NoEstimate, timed: list[Timing], most: int, said: str
) -> None:
    found = advise(estimate, timed, samples=9e7, base_batch=128, max_workers=most)
    assert isinstance(found, Refusal)
    assert not found
    assert str(found).startswith("no advice: ")
    assert re.search(said, str(found))


def test_it_says_everything_that_is_missing_at_once() -> None:
    found = advise(NoEstimate("too few"), [], samples=1, base_batch=1)
    assert str(found) == "no advice: too few; no step was timed: train some"


def test_arguments_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        advise(KNOWN, TIMED, samples=0, base_batch=128)
    with pytest.raises(ValueError, match="no step was measured"):
        fit([])


# -- the decision -----------------------------------------------------------------------------------------------------


def prospects(*seconds: float) -> list[Prospect]:
    """With a batch of 100 for each worker."""
    return [Prospect(i, 100.0 * i, 1.0, s, s, s) for i, s in enumerate(seconds, 1)]


@pytest.mark.parametrize(
    ("seconds", "critical", "current", "workers", "why"),
    [
        ((8, 4, 3, 2), 1000, 4, 4, "It takes 2 s"),
        ((8, 4, 3.95, 3.9), 1000, 4, 2, "more would save less than 5%"),
        ((8, 4, 3, 2), 350, 4, 3, "above the lower bound of the critical batch"),
        ((8, 7, 6, 5, 4, 3), 1000, 1, 4, "More than 4 times the workers of now"),
        ((8, 4, 5, 6), 1000, 4, 2, "more would save less"),
        ((8, 4), 50, 2, 1, "Even its batch of 100 is above 50"),
    ],
)
def test_the_decision(seconds: tuple[float, ...], critical: float, current: int, workers: int, why: str) -> None:
    found, reasons = decide(prospects(*seconds), critical, current)
    assert found == workers
    assert why in " ".join(reasons)


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=20), st.floats(1, 3000), st.integers(1, 20))
def test_the_decision_keeps_its_guards(seconds: list[float], critical: float, current: int) -> None:
    workers, reasons = decide(prospects(*seconds), critical, current)
    assert 1 <= workers <= min(len(seconds), 4 * current)
    assert workers == 1 or 100 * workers <= critical
    assert reasons


def test_numbers_are_shown_as_people_read_them() -> None:
    shown = [significant(v) for v in (0.0123, 12.34, 999.6, 4000, 12_345, 9.1e7, 3e9, math.inf)]
    assert shown == ["0.0123", "12.3", "1000", "4000", "12.3k", "91M", "3G", "inf"]
    assert [duration(s) for s in (0.5, 119, 121, 7300, 200_000)] == ["0.5 s", "119 s", "2.02 min", "2.03 h", "2.31 d"]


def test_the_first_growth_rests_on_the_noise_scale_and_an_assumption_that_is_stated() -> None:
    alone = [Timing(1, 1, 32, 1, 0.1, 0.1)]
    found = advise(KNOWN, alone, samples=9e7, base_batch=32)
    assert isinstance(found, Advice)
    assert found.workers == 2, "the lower bound of the noise scale is far above two batches"
    assert "timed on 1 worker only: an exchange among more is assumed to take 0.5 of a pass" in found.reasons[-1]
    rough = Estimate(trace=50.0, norm2=1.0, low=40.0, high=60.0, samples=100_000)
    small = advise(rough, alone, samples=9e7, base_batch=32)
    assert isinstance(small, Advice)
    assert small.workers == 1, "two batches are above the lower bound"
    assert "assumed" not in str(small)


def test_a_growth_is_assumed_by_doubling_only_and_never_where_a_slope_was_measured() -> None:
    slow = advise(KNOWN, [Timing(2, 2, 32, 1, 0.3, 0.1)], samples=9e7, base_batch=32)
    assert isinstance(slow, Advice)
    assert len(slow.prospects) == 4
    assert slow.workers == 1, "an exchange that takes twice a pass does not pay, less so among four"
    fast = advise(KNOWN, [Timing(2, 2, 32, 1, 0.11, 0.1)], samples=9e7, base_batch=32)
    assert isinstance(fast, Advice)
    assert fast.workers == 4
    assert "assumed to take longer in proportion" in fast.reasons[-1]
    measured = advise(KNOWN, TIMED, samples=9e7, base_batch=32)
    assert isinstance(measured, Advice)
    assert "assumed" not in str(measured)
    assert len(measured.prospects) == 16
