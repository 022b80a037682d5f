"""The demo learns, and learns the same on any number of workers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.launching import Launch
from tests.support.paths import ROOT

EXAMPLES = ROOT / "examples"
DIGITS = EXAMPLES / "digits.py"
SIZES = (1, 2, 4)


def test_the_demo_reaches_the_same_accuracy_on_one_worker_and_several(launch: Launch, tmp_path: Path) -> None:
    accuracies = []
    for np in SIZES:
        said = launch(np, DIGITS, options=["--timeline", "timeline.json"], deadline_s=400.0).ok().stdout
        found = re.search(r"test accuracy +([\d.]+)", said)
        assert found
        accuracies.append(float(found[1]))
        assert f"on {np} worker(s)" in said
        assert re.search(r"engine +\w+, because ", said)
        trace = json.loads((tmp_path / "timeline.json").read_text().rstrip(",\n") + "]")
        phases = {(event["pid"], event["cat"], event["name"]) for event in trace if "cat" in event}
        planned = {(rank, "planned", phase) for rank in range(np) for phase in ("negotiate", "copy", "reduce")}
        assert phases >= {(rank, "negotiated", "reduce") for rank in range(np)} | (planned if np > 1 else set())
        for made in ("out/digits.png", "timeline.json"):
            assert (tmp_path / made).stat().st_size
            (tmp_path / made).unlink()
    assert accuracies == pytest.approx([accuracies[0]] * len(SIZES), abs=0.01)
    assert min(accuracies) >= 0.97


def test_elastic_training_ends_the_same_when_a_worker_kills_itself(launch: Launch) -> None:
    options = ["--min-np", "1", "--max-np", "2", "--blacklist-cooldown-range", "60", "60"]  # nobody comes in its place
    said = launch(2, EXAMPLES / "elastic_digits.py", options=options, arguments=["--kill-after", "40"]).ok().stdout
    assert "rank 0 of 1 goes on at epoch 1, step 40" in said
    found = re.search(r"230 steps, 14370 samples, test accuracy ([\d.]+)", said)
    assert found
    assert float(found[1]) > 0.9
