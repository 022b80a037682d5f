"""Jobs of ``tests/support/keras/on_ranks.py``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.frameworks import QUICK_XLA, lean
from tests.support.keras.sources import FOLDER, ROOT


def environment(backend: str, *needed: str) -> dict[str, str]:
    """Variables of a job."""
    return {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", **QUICK_XLA, **lean(backend, *needed)}


def everything_on_ranks(launch: Any, backend: str, size: int) -> None:
    """Run all cases in one job."""
    texts = [file.read_text() for file in FOLDER.glob("*_cases.py")]
    every = {name for text in texts for name in re.findall(r"^@case\ndef (\w+)", text, re.MULTILINE)}
    assert len(every) > 20
    script = FOLDER / "on_ranks.py"
    finished = launch(size, script, environment=environment(backend), deadline_s=580.0).ok()
    assert every <= set(finished.lines())


def nobody_can_tell_that_a_worker_was_killed(launch: Any, tmp_path: Path, backend: str) -> None:
    """Kill a worker of an elastic fit: another one comes, and the numbers are those of one process."""
    finished = launch(
        2,
        FOLDER / "elastic_training.py",
        options=["--min-np", "1", "--max-np", "2", "--blacklist-cooldown-range", "0", "1", "--start-timeout", "120"],
        arguments=[str(tmp_path)],
        environment=environment(backend),
        deadline_s=580.0,
    ).ok()
    results = [json.loads(path.read_text()) for path in tmp_path.glob("result-*.json")]
    assert len(results) == 2, finished.stderr
    for found, expected in results:
        assert found["generation"] >= 2  # 3, unless a survivor was slower than the newcomer
        assert all(one == other for one, other in found["numbers"]), found["numbers"]
        assert any(position not in (0, 96) for _, position in found["sizes"]), "no epoch began in its middle"
        batches = iter(found["seen"])
        for _ in range(found["epochs"]):  # in each epoch every sample is committed once, by whichever rank
            rows: list[int] = []
            while len(rows) < 96:
                rows += next(batches)
            assert sorted(rows) == list(range(96))
        assert next(batches, None) is None
        for one, other in zip(found["values"], expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-6)
    assert results[0][0]["values"] == results[1][0]["values"]


def the_example_learns(launch: Any, backend: str) -> None:
    """Train the digits on two workers."""
    said = launch(
        2, ROOT / "examples" / "keras_digits.py", environment=environment(backend, "sklearn"), deadline_s=400.0
    )
    found = re.search(r"test accuracy ([\d.]+) on 2 worker", said.ok().stdout)
    assert found
    assert float(found[1]) > 0.9
