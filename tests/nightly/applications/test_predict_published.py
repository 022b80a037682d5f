"""Published tables: fitted on an eighth of the ranks, the rest is foretold as well as was promised."""

from __future__ import annotations

import numpy as np
import pytest

from farandole.predict.checking import all_cuts, held_back
from farandole.predict.model import Observation, fit
from farandole.predict.outlook import Question, outlook
from farandole.predict.sources import PUBLISHED, TABLES, read, rows
from farandole.predict.training import from_table


def steps(name: str) -> list[Observation]:
    """The table, without its column of dummy data."""
    return [o for o in read(name).observations if o.kind == "step"]


@pytest.mark.parametrize(
    ("name", "most", "error", "points"),
    [("climate-cori", 128, 0.025, 3), ("cosmoflow-cori", 128, 0.12, 3), ("cosmoflow-summit", 96, 0.10, 4)],
)
def test_an_eighth_foretells_the_rest(name: str, most: float, error: float, points: int) -> None:
    for observations in (steps(name), read(name).observations):
        check = held_back(observations)
        assert check is not None
        assert (check.most, len(check.points), check.held) == (most, points, points)
        assert check.error <= error
        assert check.error < check.last_error
        says_so = "did better than the model" in str(check)
        assert says_so == (check.line_error < check.error)


@pytest.mark.parametrize(("name", "points"), [("climate-cori", 28), ("cosmoflow-cori", 28), ("cosmoflow-summit", 15)])
def test_intervals_hold_at_every_cut(name: str, points: int) -> None:
    checks = all_cuts(steps(name))
    assert sum(len(check.points) for check in checks) == points
    assert sum(check.held for check in checks) >= 0.8 * points


def test_77_percent_at_8192_lies_in_the_interval_of_what_cosmoflow_did_on_128() -> None:
    fitted = fit([o for o in steps("cosmoflow-cori") if o.ranks <= 128])
    low, _, high = fitted.quantiles(8192, 8192)
    assert low < fitted.steps[0].seconds / 0.77 < high


def test_cori_gpu_is_widened_with_the_reason() -> None:
    """Nothing on up to 8 ranks leaves the host: wide, and it says why."""
    check = held_back(read("cosmoflow-cori-gpu").observations)
    assert check is not None
    assert check.most == 8
    assert check.held == len(check.points) == 3
    assert all(point.said.high > 1.25 * point.said.low for point in check.points)
    assert check.points[-1].said.high > 1.5 * check.points[-1].said.low
    assert "spans two hosts" in str(check)


def test_dummy_data_of_cori_gpu_tell_that_input_grows_inside_of_a_host() -> None:
    fitted = fit(read("cosmoflow-cori-gpu").observations)
    said = outlook(fitted, Question(ranks=[1, 8, 64], per_host=8)).rows
    loading = [sum(row.parts[name] for name in ("input", "input_host", "input_storage")) for row in said]
    assert loading[0] < 2.0 < 3.0 < loading[1] < loading[2] < 6.5
    without = outlook(fitted, Question(ranks=[64], per_host=8, changes={"input": "none"})).rows[0]
    assert without.step.middle == pytest.approx(16.144, rel=0.15)  # measured with dummy data


def test_the_dummy_column_of_summit_alone_is_not_foretold() -> None:
    """Between 192 and 384 ranks it rises by 14 %, which nothing below shows: the page says so."""
    alone = [
        Observation(o.ranks, o.hosts, o.seconds) for o in read("cosmoflow-summit").observations if o.kind == "dummy"
    ]
    check = held_back(alone)
    assert check is not None
    assert check.error > 0.15
    assert check.held < 4


@pytest.mark.parametrize(("name", "least", "critical"), [("deepcam", 7.3, 1000), ("cosmoflow", 14.9, 650)])
def test_epochs_by_batch(name: str, least: float, critical: float) -> None:
    """Least squares by hand gave these."""
    epochs = from_table([(row["batch"], row["epochs"]) for row in rows(TABLES / f"rcp-{name}.csv")])
    assert float(np.median(epochs.least)) == pytest.approx(least, rel=0.2)
    assert float(np.median(epochs.critical)) == pytest.approx(critical, rel=0.35)


def test_there_are_four_tables() -> None:
    assert len(PUBLISHED) == 4
