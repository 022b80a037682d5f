"""What the Makefile installs by: uv, told what pip is configured with, or pip."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from workbench import install

LISTED = """\
:env:.find-links='/wheels'
global.extra-index-url='file:///a/simple\\nhttps://b/simple'
global.find-links='/others'
global.cert='/ca.pem'
install.no-index='false'
download.proxy='http://c'"""


def test_uv_is_told_where_pip_looks() -> None:
    options, reason = install.uv_options(install.pip_settings(LISTED))
    assert reason == ""
    assert options[:2] == ["--index-strategy", "unsafe-best-match"]
    pairs = sorted(zip(options[2::2], options[3::2], strict=True))
    indexes = [("--index", "file:///a/simple"), ("--index", "https://b/simple")]
    assert pairs == [("--find-links", "/wheels"), *indexes]


@pytest.mark.parametrize(
    ("settings", "options", "reason"),
    [
        ({}, [], ""),
        ({"index-url": "https://d", "no-index": "true"}, ["--default-index", "https://d", "--no-index"], ""),
        ({"constraint": "a.txt b.txt"}, ["--constraint", "a.txt", "--constraint", "b.txt"], ""),
        ({"no-binary": "numpy"}, None, "pip is configured with 'no-binary', which uv is not told"),
    ],
)
def test_what_uv_cannot_be_told_is_left_to_pip(
    settings: dict[str, str], options: list[str] | None, reason: str
) -> None:
    found, why = install.uv_options(settings)
    assert why == reason
    assert options is None or found[2:] == options


def test_extras_are_those_of_the_project() -> None:
    lines = install.requirements(install.read_project(), ["plot", "demo"])
    assert any(line.startswith("pyzmq") for line in lines)
    assert [line.partition(">")[0] for line in lines[-2:]] == ["matplotlib", "scikit-learn"]


def commands(monkeypatch: pytest.MonkeyPatch, exit_codes: dict[str, int]) -> list[list[str]]:
    """The commands that are run from here on, by their first word; nothing is."""
    ran: list[list[str]] = []

    def run(words: Sequence[str], **_: Any) -> subprocess.CompletedProcess[str]:
        ran.append([*words])
        code = exit_codes["pip" if words[0] == sys.executable else "uv"]
        return subprocess.CompletedProcess(words, code, stdout="")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.delenv("UV", raising=False)
    return ran


def test_pip_installs_what_uv_does_not(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ran = commands(monkeypatch, {"uv": 2, "pip": 0})
    assert install.main(["--extras", "plot", "ninja"]) == 0
    by_uv, by_pip = ran[-2:]
    assert by_uv[1:3] == ["pip", "install"]
    assert by_uv[-2:] == by_pip[-2:]
    assert by_pip[-1] == "ninja"
    assert all(install.CONSTRAINTS[1] in words for words in (by_uv, by_pip))
    assert capsys.readouterr().out == "pip installs, which takes longer: uv ended with exit code 2\n"


def test_pip_installs_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = commands(monkeypatch, {"pip": 1})
    monkeypatch.setenv("UV", "none")
    assert install.main(["ninja"]) == 1
    assert len(ran) == 1


def test_bytecode_is_compiled_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = commands(monkeypatch, {"uv": 0, "pip": 0})
    for arguments in (["--compile", "ninja"], ["ninja"]):
        assert install.main(arguments) == 0
        assert ("compileall" in ran[-1]) == ("--compile" in arguments)
