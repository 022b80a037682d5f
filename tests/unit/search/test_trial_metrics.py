"""Metrics beside a trial's value: what is reported, kept, and refused with what to type."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from farandole.control.search_messages import TrialOrder, TrialReport, TrialVerdict
from farandole.errors import UsageError
from farandole.search.api import _searched
from farandole.search.trial import Trial
from farandole.search.trial_log import TrialLog
from farandole.search.trial_metrics import plain_name
from tests.unit.search.test_study import make


def trial(said: list[TrialReport], **parameters: Any) -> Trial:
    order = TrialOrder(7, 0, parameters or {"lr": 0.5}, 1, 9, [1], "trial", "output.txt", 1, b"")

    def ask(report: TrialReport) -> TrialVerdict:
        said.append(report)
        return TrialVerdict(7, report.epoch, goes_on=True, reason="")

    return Trial(order, ask)


class Scalar:
    """A number of a framework's own kind."""

    def __float__(self) -> float:
        return 0.25


def test_metrics_are_reported_as_numbers_with_the_value(tmp_path: Path) -> None:
    said: list[TrialReport] = []
    own = trial(said)
    own.report(Scalar(), 1, accuracy=Scalar(), errors=3, third=Fraction(1, 2), worst=math.inf)  # type: ignore[arg-type]
    own.report(epoch=2, value=0.5, accuracy=math.nan)
    assert (said[0].value, said[0].metrics) == (
        0.25,
        {"accuracy": 0.25, "errors": 3.0, "third": 0.5, "worst": math.inf},
    )
    assert math.isnan(said[1].metrics["accuracy"])


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({"top-5 error": 1}, "'top-5 error' is no name of a metric; type top_5_error="),
        ({"1st": 1}, "type m_1st="),
        ({"": 1}, "type m_="),
        ({"class": 1}, "type class_="),
        ({"lr": 1}, "'lr' is the trial's hyper-parameter; type lr_now="),
        ({"value": 1}, "is given twice; for a metric of that name type value_now="),
        ({"epoch": 1}, "type epoch_now="),
        ({"noise": 0.5}, "for a metric of that name type noise_now="),
        ({"accuracy": None}, r"accuracy=\.\.\.\) takes one number, found a NoneType"),
        ({"accuracy": "much"}, "found 'much'"),
        ({"accuracy": [0.5, 0.5]}, "found a list"),
    ],
)
def test_what_is_no_metric_is_refused_with_what_to_type(named: dict[str, Any], words: str) -> None:
    said: list[TrialReport] = []
    with pytest.raises(UsageError, match=words):
        trial(said).report(0.5, 1, **named)
    assert not said


def test_logs_of_any_names_can_be_reported() -> None:
    said: list[TrialReport] = []
    own = trial(said)
    own.report(0.5, 1, **own.named({"top-5": 1, "top 5": 2, "lr": 3, "epoch": 4}))
    assert said[0].metrics == {"top_5": 1.0, "top_5_now": 2.0, "lr_now": 3.0, "epoch_now": 4.0}


def test_a_name_to_type_collides_with_nothing() -> None:
    assert plain_name("lr", ("lr", "lr_now")) == "lr_now_now"
    assert plain_name("genauigkeit_ä", ()) == "genauigkeit_ä"


def test_metrics_are_in_the_log_and_in_the_result(tmp_path: Path) -> None:
    study, log = make(tmp_path)
    for number in range(2):
        study.next()
        study.report(number, 1, 0.5, {"accuracy": 0.25, "loss": math.nan} if number else None)
        study.released(number)
    for _ in range(2):
        old, new = map(_searched, study.rows)
        assert old.metrics == {}
        assert str(new.metrics) == "{'accuracy': {1: 0.25}, 'loss': {1: nan}}"
        log.close()
        study, log = make(tmp_path)
    log.close()


def test_an_epoch_whose_value_is_lost_has_no_metrics(tmp_path: Path) -> None:
    study, log = make(tmp_path)
    study.next()
    study.report(0, 1, 0.5, {"accuracy": 0.25})
    log.close()
    path = tmp_path / "trials.log"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    with TrialLog(path, "test", minimize=True) as log:
        assert (log.trials()[0].values, log.trials()[0].metrics) == ({}, {})
