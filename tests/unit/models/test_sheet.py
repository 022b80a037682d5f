"""Facts of models: how they are told, and what is refused."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import msgspec
import pytest

from farandole.errors import UsageError
from farandole.models.sheet import FactSheet, WeightFacts, data_of, figure_of, figures_of_results, given, mean_of


@pytest.mark.parametrize(
    ("told", "value", "interval"),
    [
        ("f1=0.78", 0.78, None),
        ("f1=.78±.01", 0.78, 0.01),
        ("f1=78 +/- 1", 78.0, 1.0),
        ({"name": "f1", "value": 1}, 1.0, None),
    ],
)
def test_a_figure_is_told_in_several_ways(told: Any, value: float, interval: float | None) -> None:
    figure = figure_of(told)
    assert (figure.name, figure.value, figure.interval) == ("f1", value, interval)


@pytest.mark.parametrize("told", ["f1", "f1=", "f1=good", "=1", "f1=nan", "f1=1±-2", "f1=1±inf", {"value": 3}, 7])
def test_what_is_no_figure_is_refused(told: Any) -> None:
    with pytest.raises(UsageError, match="is no figure"):
        figure_of(told)


def test_results_of_an_application_get_the_students_interval(tmp_path: Path) -> None:
    values = [0.081, 0.079, 0.086]
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"seeds": {str(s): {"figures": {"mae": v}} for s, v in enumerate(values)}}))
    [figure] = figures_of_results(path)
    assert figure.value == pytest.approx(statistics.mean(values))
    assert figure.interval == pytest.approx(4.303 * statistics.stdev(values) / 3**0.5)
    assert figure.seeds == {"0": 0.081, "1": 0.079, "2": 0.086}


def test_one_seed_has_no_interval() -> None:
    assert mean_of("mae", {"0": 1.0}).interval is None


@pytest.mark.parametrize("text", ["{", "{}", '{"seeds": 3}', '{"seeds": {"0": {"figures": {"a": "x"}}}}', "[]"])
def test_a_file_that_is_no_results_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(UsageError, match=r"no results\.json"):
        figures_of_results(tmp_path / "results.json")


def test_names_and_types_of_facts_are_checked() -> None:
    assert given({"contact": "a@b"})["contact"] == ["a@b"]
    with pytest.raises(
        UsageError, match=r"'license' in facts\.toml is no fact of a model; the facts are: intro, licence"
    ):
        given({"license": "mit"}, "facts.toml")
    with pytest.raises(UsageError, match="licence in the call cannot be 3"):
        given({"licence": 3})
    with pytest.raises(UsageError, match="says nothing of a data set"):
        data_of(7)


def test_a_sheet_comes_back_from_its_file() -> None:
    facts = given(
        {"figures": {"f1": (0.78, 0.01), "acc": 0.9}, "data": {"name": "EuroSAT", "samples": 3}, "hpc": "8 GPUs"}
    )
    sheet = FactSheet("a", WeightFacts(3, "00", "numpy", {}), **facts)
    assert msgspec.json.decode(sheet.encode(), type=FactSheet) == sheet
