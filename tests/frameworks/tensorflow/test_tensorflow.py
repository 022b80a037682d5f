"""``farandole.tensorflow`` on ranks, in elastic jobs, and under the name of Horovod."""

from __future__ import annotations

import re
from typing import Any

from tests.support.frameworks import lean, skip_without
from tests.support.paths import SUPPORT

skip_without("tensorflow")

FOLDER = SUPPORT / "tensorflow"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", **lean("tensorflow")}


def test_everything_on_ranks(launch: Any) -> None:
    finished = launch(2, FOLDER / "on_ranks.py", environment=QUIET, deadline_s=580.0).ok()
    cases = re.findall(r"^@case\ndef (\w+)", (FOLDER / "on_ranks.py").read_text(), re.MULTILINE)
    cases += re.findall(r"^def (\w+)\(\) -> None", (FOLDER / "pairing.py").read_text(), re.MULTILINE)
    assert finished.lines() == sorted(cases)


def test_tensors_on_a_second_device(launch: Any) -> None:
    finished = launch(2, FOLDER / "devices.py", environment=QUIET, deadline_s=400.0).ok()
    cases = re.findall(r"^def (\w+)\(\) -> None", (FOLDER / "devices.py").read_text(), re.MULTILINE)
    assert len(cases) == 5
    assert finished.lines() == sorted(cases)


def test_sessions_where_eager_execution_is_off(launch: Any) -> None:
    finished = launch(2, FOLDER / "sessions.py", environment=QUIET, deadline_s=400.0).ok()
    cases = re.findall(r"^    (\w+),$", (FOLDER / "sessions.py").read_text(), re.MULTILINE)
    assert len(cases) == 5
    assert finished.lines() == sorted(cases)
