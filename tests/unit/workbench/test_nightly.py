"""Which slice a change is played with, and what becomes of tests that fail beside others."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from workbench.nightly.choice import TURN_S, Change, choose
from workbench.nightly.failures import FailedTest
from workbench.nightly.retrial import MOST, TIMES, AloneVerdict, report, retry
from workbench.nightly.slices import ROOT, SLICES, Slice

TOPS = ("benchmarks", "docs", "examples", "native", "src", "web/src", "workbench")
THREE = {"a": Slice(about=("src/a/",)), "b": Slice(about=("src/b/", "native/")), "c": Slice(about=("src/",))}
FAILURE = FailedTest("tests/nightly/a/test_a.py::test_a", "call", "assert 1 == 2\n--- Captured stdout\nbefore")


def test_a_change_is_played_with_the_slice_it_touches() -> None:
    assert choose(THREE, Change(0, {"native/core.cpp": 1, "docs/a.md": 90})) == (
        "b",
        "the change touches native/core.cpp",
    )


def test_slices_that_a_change_touches_take_turns() -> None:
    lines = {"src/a/x.py": 3, "src/a/y.py": 7}
    assert [choose(THREE, Change(turn * TURN_S, lines))[0] for turn in range(4)] == ["a", "c", "a", "c"]
    assert (
        choose(THREE, Change(0, lines))[1]
        == "the change touches src/a/y.py, and it is its turn among 2 that it touches"
    )


def test_a_change_that_touches_none_gets_the_next_in_turn() -> None:
    turns = [choose(THREE, Change(turn * TURN_S, {"README.md": 1})) for turn in range(4)]
    assert [name for name, _ in turns] == ["a", "b", "c", "a"]
    assert turns[0][1] == "the change touches none, and it is its turn"


def test_a_slice_about_nothing_is_played_by_its_name_alone() -> None:
    slices = {**THREE, "all": Slice()}
    assert {choose(slices, Change(turn * TURN_S, {"README.md": 1}))[0] for turn in range(9)} == {"a", "b", "c"}


def test_a_slices_own_tests_touch_it() -> None:
    assert choose(THREE, Change(0, {"tests/nightly/c/test_x.py": 1}))[0] == "c"


def test_every_folder_of_nightly_tests_is_a_slice_and_every_source_a_slice_is_about_exists() -> None:
    folders = {path.name for path in (ROOT / "tests" / "nightly").iterdir() if any(path.rglob("test_*.py"))}
    assert folders <= SLICES.keys()
    assert {name for name, each in SLICES.items() if not each.also} <= folders
    sources = [path.relative_to(ROOT).as_posix() for top in TOPS for path in (ROOT / top).rglob("*.*")]
    for name, each in SLICES.items():
        for about in each.about:
            assert any(source.startswith(about) for source in sources), f"{name} is about {about}, and nothing is there"


def test_a_test_that_passes_alone_is_flaky() -> None:
    asked: list[str] = []
    (found,) = retry([FAILURE], lambda test: not asked.append(test))  # type: ignore[func-returns-value]
    assert (found.verdict, asked) == (AloneVerdict.FLAKY, [FAILURE.test] * TIMES)


@pytest.mark.parametrize("passes", [[False], [True, False]])
def test_a_test_that_fails_alone_once_has_failed(passes: list[bool]) -> None:
    (found,) = retry([FAILURE], lambda _: passes.pop(0))
    assert found.verdict is AloneVerdict.FAILED
    assert not passes


def test_many_failures_are_no_accident() -> None:
    found = retry([FAILURE] * (MOST + 1), lambda _: pytest.fail("run again"))
    assert {each.verdict for each in found} == {AloneVerdict.FAILED}


def test_a_file_that_cannot_be_collected_has_failed() -> None:
    (found,) = retry([FailedTest("tests/x.py", "collection", "")], lambda _: pytest.fail("run again"))
    assert found.verdict is AloneVerdict.FAILED


def test_the_report_has_the_first_failure_whole(tmp_path: Path) -> None:
    with open(tmp_path / "out", "w") as file:
        report(retry([FAILURE], lambda _: True), Console(file=file, width=80))
    text = (tmp_path / "out").read_text()
    assert "flaky" in text
    assert "assert 1 == 2\n--- Captured stdout\nbefore" in text
    assert all(len(line) <= 80 for line in text.splitlines())
