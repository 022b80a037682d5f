"""Tracebacks that workers print: the script's own frames, a line for Farandole's, and the message."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import farandole
from farandole.errors import UsageError
from farandole.runtime.session.tracebacks import folded

if TYPE_CHECKING:
    from tests.support.launching import Launch

SCRIPT = """
import torch, farandole.torch as hvd

def evaluate():
    hvd.allreduce(torch.ones(1 + hvd.rank()), name="loss")

hvd.init()
evaluate()
"""

FOLD = re.compile(r"^  \.\.\. (\d+) frames? in farandole \(all: FARANDOLE_LOG_LEVEL=debug\)$", re.MULTILINE)


def test_an_uncaught_error_shows_the_frames_of_the_script(launch: Launch) -> None:
    found = launch(2, SCRIPT, options=["--on-failure", "continue"])  # else a busy rank may be ended before it tells
    assert found.code == 1
    mine = [line.partition(">:")[2] for line in found.stderr.splitlines() if line.startswith("[0]<stderr>:")]
    frames = [line for line in mine if line.startswith("  File ")]
    assert [frame.rpartition(" in ")[2] for frame in frames] == ["<module>", "evaluate"]
    assert mine[0] == "Traceback (most recent call last):"
    assert FOLD.fullmatch(mine[-2])
    # Or what the other rank has said of its end, if that was heard first.
    assert re.match(r"farandole\.errors\.(Mismatch|Abort)Error: .*allreduce 'loss': the ranks differ in ", mine[-1])
    assert "its traceback is above" in found.stderr

    whole = launch(2, SCRIPT, options=["--log-level", "debug"])
    assert "negotiated.py" in whole.stderr
    assert not FOLD.search(whole.stderr.replace("[0]<stderr>:", "").replace("[1]<stderr>:", ""))


def test_an_error_of_init_is_folded_too(launch: Launch) -> None:
    found = launch(1, "from farandole.runtime.session.init import init\ninit(process_sets=[[0, 7]])\n")
    assert found.code == 1
    mine = [line.partition(">:")[2] for line in found.stderr.splitlines() if line.startswith("[0]<stderr>:")]
    assert [line.rpartition(" in ")[2] for line in mine if line.startswith("  File ")] == ["<module>"], found.stderr
    assert FOLD.fullmatch(mine[-2])
    assert mine[-1].startswith("farandole.errors.UsageError: ")


def _ours(text: str) -> Callable[[Callable[[], object]], object]:
    """A function of Farandole's, as far as its traceback tells."""
    space: dict[str, Any] = {"UsageError": UsageError}
    path = Path(farandole.__file__).parent / "made_up.py"
    exec(compile(f"def inner(call):\n    {text}\n\ndef ours(call):\n    return inner(call)\n", path, "exec"), space)
    made: Callable[[Callable[[], object]], object] = space["ours"]
    return made


def _folded(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return folded(error)
    raise AssertionError


def test_an_error_of_farandoles_own_is_folded_and_a_defect_is_not() -> None:
    own = _folded(lambda: _ours("raise UsageError('no')")(print))
    assert FOLD.findall(own) == ["2"]
    assert own.endswith("UsageError: no\n")
    assert "made_up" not in own
    defect = _folded(lambda: _ours("return {}['no']")(print))
    assert not FOLD.search(defect)
    assert defect.count("made_up") == 2


def test_frames_of_the_script_below_farandoles_are_shown() -> None:
    def fails() -> None:
        raise KeyError("no such key")

    found = _folded(lambda: _ours("return call()")(fails))
    assert FOLD.findall(found) == ["2"]
    assert "in fails" in found


def test_causes_are_folded_too_and_no_exception_is_changed() -> None:
    error: BaseException | None = None
    try:
        try:
            _ours("raise UsageError('first')")(print)
        except UsageError as cause:
            raise RuntimeError("second") from cause
    except RuntimeError as found:
        error = found
    assert error is not None
    trace = error.__cause__ and error.__cause__.__traceback__
    assert FOLD.findall(folded(error)) == ["2"]
    assert trace is not None
    assert error.__cause__ is not None
    assert error.__cause__.__traceback__ is trace
    assert trace.tb_next is not None, "its frames are there"


def test_the_log_level_shows_all(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "farandole"):
        assert not FOLD.search(_folded(lambda: _ours("raise UsageError('no')")(print)))


def test_nothing_but_farandoles_is_shown_as_it_is() -> None:
    with pytest.raises(UsageError) as caught:
        _ours("raise UsageError('no')")(print)
    trace = caught.value.__traceback__
    assert trace is not None
    assert "made_up" in folded(caught.value.with_traceback(trace.tb_next))
