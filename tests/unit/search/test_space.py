"""Spaces as people write them, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from farandole.errors import UsageError
from farandole.search.space import EXAMPLE, Choices, Range, Space


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
    ],
)
def test_what_is_no_space_is_refused_with_an_example(told: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Space.of(told)


def test_values_are_checked() -> None:
    space = Space.of({"lr": (0.1, 1.0), "n": (1, 3), "kind": ["a", True]})
    space.check({"lr": 0.1, "n": 3, "kind": True})
    for wrong in ({"lr": 2, "n": 1, "kind": "a"}, {"lr": 0.5, "n": 1.5, "kind": "a"}, {"lr": 0.5, "n": 1, "kind": 1}):
        with pytest.raises(UsageError, match="is not in"):
            space.check(wrong)
    with pytest.raises(UsageError, match="no value for kind"):
        space.check({"lr": 0.5, "n": 1})
    with pytest.raises(UsageError, match="no hyper-parameter"):
        space.check({"lr": 0.5, "n": 1, "kind": "a", "extra": 1})


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        Space.read(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[lr\n")
    with pytest.raises(UsageError, match="no TOML"):
        Space.read(tmp_path / "bad.toml")
