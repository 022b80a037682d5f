"""Jobs of ``tests/support/keras/on_ranks.py``."""

from __future__ import annotations

import re
from typing import Any

from tests.support.frameworks import QUICK_XLA, lean
from tests.support.keras.sources import FOLDER


def environment(backend: str, *needed: str) -> dict[str, str]:
    """Variables of a job."""
    return {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", **QUICK_XLA, **lean(backend, *needed)}


def everything_on_ranks(launch: Any, backend: str, size: int) -> None:
    """Run all cases in one job."""
    texts = [(FOLDER / f"{part}_cases.py").read_text() for part in ("callback", "optimizer", "state", "virtual")]
    every = {name for text in texts for name in re.findall(r"^@case\ndef (\w+)", text, re.MULTILINE)}
    assert len(every) > 20
    script = FOLDER / "on_ranks.py"
    finished = launch(size, script, environment=environment(backend), deadline_s=580.0).ok()
    assert every <= set(finished.lines())
