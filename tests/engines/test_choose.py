"""The table that chooses an engine, and what it says when none fits."""

from __future__ import annotations

import subprocess
import sys

import pytest

from farandole.engines import choose, factory
from farandole.engines.engine import Group
from farandole.errors import UnsupportedError

ALL = ["solo", "shm", "gloo"]


@pytest.mark.parametrize(
    ("asked", "hosts", "usable", "expected"),
    [
        ("auto", ["a"], [ALL], ("solo", "this is a job of one process")),
        ("auto", ["a", "a"], [ALL, ALL], ("shm", "all 2 ranks are on one host")),
        ("auto", ["a", "a"], [ALL, ["solo", "gloo"]], ("gloo", "all 2 ranks are on one host")),
        ("auto", ["a", "b", "a"], [ALL] * 3, ("gloo", "3 ranks are on 2 hosts")),
        ("auto", ["a"] * 65, [ALL] * 65, ("gloo", "all 65 ranks are on one host")),
        ("gloo", ["a", "a"], [ALL, ALL], ("gloo", "it was asked for")),
        ("shm", ["a"], [ALL], ("shm", "it was asked for")),
    ],
)
def test_choice(asked: str, hosts: list[str], usable: list[list[str]], expected: tuple[str, str]) -> None:
    assert choose.choose(asked, hosts, usable) == expected


@pytest.mark.parametrize(
    ("asked", "hosts", "usable", "says"),
    [
        ("mpi", ["a"], [ALL], ["'mpi'", "auto, solo, shm, gloo"]),
        ("solo", ["a", "a"], [ALL, ALL], ["serves one rank", "has 2", "--engine auto"]),
        ("shm", ["a", "b"], [ALL, ALL], ["serves one host", "a, b", "--engine auto"]),
        ("shm", ["a"] * 65, [ALL] * 65, ["at most 64", "has 65", "--engine gloo"]),
        ("gloo", ["a", "b"], [ALL, ["solo", "shm"]], ["rank 1 on b", "pip install 'farandole[torch]'"]),
        ("auto", ["a", "b"], [ALL, ["solo"]], ["solo:", "shm:", "gloo: rank 1 on b cannot use it"]),
    ],
)
def test_what_does_not_fit_is_refused_with_the_remedy(
    asked: str, hosts: list[str], usable: list[list[str]], says: list[str]
) -> None:
    with pytest.raises(UnsupportedError) as caught:
        choose.choose(asked, hosts, usable)
    for words in says:
        assert words in str(caught.value)


def test_gloo_is_not_usable_without_torch() -> None:
    def find(module: str) -> object | None:
        return None if module == "torch" else module

    assert choose.usable(find) == ["solo", "shm"]
    group = Group(1, (3, 5), ("a", "b"), 1, "test")
    with pytest.raises(UnsupportedError, match=r"rank 5 on b cannot use engine gloo: torch is not installed; .*pip"):
        factory.make("gloo", group, lambda payload: [payload], find)
    with pytest.raises(UnsupportedError, match="there is no engine 'nccl'; the legal names are: solo, shm, gloo"):
        factory.make("nccl", group, lambda payload: [payload])


def test_looking_for_engines_imports_no_framework() -> None:
    code = "import sys; from farandole.engines import choose; choose.usable(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
