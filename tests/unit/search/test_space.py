"""Spaces as people write them, and what is refused."""

from __future__ import annotations

import enum
from pathlib import Path

import numpy as np
import pytest

from farandole.errors import UsageError
from farandole.search.advisor import FixedList
from farandole.search.run_record import RunRecord
from farandole.search.rungs import Rungs
from farandole.search.space import EXAMPLE, Choices, Range, Space, Value
from farandole.search.study import Study, StudyPlan
from farandole.search.trial_log import TrialLog


def test_a_list_is_a_choice_a_pair_a_range_and_a_table_says_more(tmp_path: Path) -> None:
    space = Space.of({"a": [1, "x"], "b": (1, 4), "c": {"low": 0.1, "high": 1, "log": True}, "d": (0.0, 1)})
    assert space.parameters == {
        "a": Choices((1, "x")),
        "b": Range(1, 4, whole=True),
        "c": Range(0.1, 1, log=True),
        "d": Range(0, 1),
    }
    file = tmp_path / "space.toml"
    file.write_text(EXAMPLE)
    assert Space.read(file).parameters == {"lr": Range(1e-4, 1, log=True), "batch": Choices((32, 64, 128))}


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({}, "a name for each"),
        ({"a": 3}, "hyper-parameter a is 3"),
        ({"a": []}, "choices of a"),
        ({"a": (3, 1)}, "from 3 to 1"),
        ({"a": {"low": 0, "high": 1, "log": True}}, "above 0"),
        ({"a": {"low": 0, "high": 1, "logarithmic": True}}, "legal words"),
        ({"a": {"low": 0}}, "low and high"),
        ({"a": {"low": 0, "high": float("inf")}}, "low and high"),
        ({"a": {"low": 1, "high": 2, "log": 1}}, "true or false"),
        ({"a": {"choices": [1], "low": 2}}, "and also low"),
        ({"a": [0, False, True, 1.0]}, "cannot distinguish 0 from False"),
        ({"a": {"choices": ["x", 1.0, 1]}}, "cannot distinguish 1.0 from 1"),
        ({"a": [0.0, -0.0]}, "cannot distinguish 0.0 from -0.0"),
        ({"a": [1.0, float("nan")]}, "cannot distinguish nan from nan"),
        ({"a": Choices((True, 1))}, "cannot distinguish True from 1"),
        (Space({"a": Choices((True, 1))}), "cannot distinguish True from 1"),
    ],
)
def test_what_is_no_space_is_refused_with_an_example(told: Space | dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Space.of(told)


def test_values_are_checked() -> None:
    space = Space.of({"lr": (0.1, 1.0), "n": (1, 3), "kind": ["a", True]})
    space.check({"lr": 0.1, "n": 3, "kind": True})
    good: dict[str, Value] = {"lr": 0.5, "n": 1, "kind": "a"}
    for wrong in ({"lr": 2}, {"n": 1.5}, {"kind": 1}):
        with pytest.raises(UsageError, match="is not in"):
            space.check(good | wrong)
    with pytest.raises(UsageError, match="no value for kind"):
        space.check({"lr": 0.5, "n": 1})
    with pytest.raises(UsageError, match="no hyper-parameter"):
        space.check({"lr": 0.5, "n": 1, "kind": "a", "extra": 1})


class Kind(str, enum.Enum):
    """Choices of a script that names them."""

    ADAM = "adam"


@pytest.mark.parametrize(
    ("space", "told", "has"),
    [
        ((0.5, 2.0), 1, 1.0),
        ((1, 3), 2.0, 2),
        ((0.5, 2.0), np.float64(1.5), 1.5),
        ([np.float64(0.25), 1], 0.25, 0.25),
        ([0.0, 1], -0.0, 0.0),
        ([Kind.ADAM, "sgd", "sgd"], Kind.ADAM, "adam"),
    ],
)
def test_a_trial_has_its_values_as_the_log_gives_them_back(
    tmp_path: Path, space: object, told: Value, has: Value
) -> None:
    plan = StudyPlan(Space.of({"a": space}), 1, Rungs.of(1, 1), minimize=True, seed=1)
    for _ in range(2):
        with TrialLog(tmp_path / "trials.log", "test", minimize=True) as log:
            study = Study(plan, log, FixedList([{"a": told}]))
            study.next()
            assert repr(study.rows[0].parameters["a"]) == repr(has)


def test_a_search_does_not_go_on_with_choices_of_other_types(tmp_path: Path) -> None:
    def kept(*choices: Value) -> None:
        asked = {"space": Space.of({"a": list(choices)})}
        RunRecord(0.0, [], "", "", "", {}, {}, "", asked).keep(tmp_path / "run.json")

    kept(0, 1)
    kept(0, 1)
    with pytest.raises(UsageError, match=r"with space\['a'\]=\[0, 1\], and now it is \[False, True\]: ask the same"):
        kept(False, True)


def test_a_search_that_is_asked_otherwise_is_refused_in_the_words_of_its_arguments(tmp_path: Path) -> None:
    def kept(trials: int, rungs: Rungs, direction: str = "minimize") -> None:
        asked = {"space": Space.of({"a": (0, 1)}), "trials": trials, "rungs": rungs, "direction": direction}
        RunRecord(0.0, [], "", "", "", {}, {}, "", asked).keep(tmp_path / "run.json")

    kept(12, Rungs.of(1, 9, 3))
    kept(12, Rungs.of(1, 9, 3))
    for words, changed in (
        ("epochs=9, and now it is 8: ask", (12, Rungs.of(1, 8, 3))),
        ("trials=12, and now it is 11: ask the same, with as many trials and epochs or more", (11, Rungs.of(1, 27, 3))),
        ("min_epochs=1, and now it is 3: ask", (12, Rungs.of(3, 9, 3))),
        ("reduction=3, and now it is 4: ask", (18, Rungs.of(1, 9, 4))),
        ("direction='minimize', and now it is 'maximize'", (12, Rungs.of(1, 9, 3), "maximize")),
    ):
        with pytest.raises(UsageError, match=f"holds a search with {words}"):
            kept(*changed)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        Space.read(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[lr\n")
    with pytest.raises(UsageError, match="no TOML"):
        Space.read(tmp_path / "bad.toml")
