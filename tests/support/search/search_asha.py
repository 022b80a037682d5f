"""Search of 27 trials that is killed: first a worker of it, then the search itself; the same call goes on.

    python -m tests.support.search.search_asha                  # exit status 0, or what is wrong

Each trial is there once, at most 45 % of all epochs are trained, and the best is within 1 % of the best there is among
the trials. With a folder as argument it is the search alone.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import farandole
from tests.support.patience import PATIENCE_S
from tests.support.search.objectives import loss, ranks

TRIALS, EPOCHS, POOL = 27, 27, 4


def search(folder: str) -> None:
    """Search in ``folder``, or go on there."""
    result = farandole.search(
        ranks, {"x": (0.0, 1.0)}, TRIALS, (1, 2), POOL, epochs=EPOCHS, advisor="random", seed=5, folder=folder
    )
    assert result.is_over
    assert [trial.number for trial in result.trials] == list(range(TRIALS))
    assert Counter(trial.phase for trial in result.trials).keys() <= {"complete", "pruned"}
    assert result.best is not None
    within = min(loss(float(trial.parameters["x"]), EPOCHS) for trial in result.trials)
    assert result.best.value is not None
    assert result.best.value <= 1.01 * within, (result.best, within)
    for trial in result.trials:  # each epoch has one value, and the one that it must have
        assert trial.values == {n: loss(float(trial.parameters["x"]), n) for n in range(1, len(trial.values) + 1)}


def check(folder: Path) -> None:
    """Run the search until it is killed, and once more; count what was trained."""
    command = [sys.executable, "-m", "tests.support.search.search_asha", str(folder)]
    first = subprocess.run(command, check=False, timeout=4 * PATIENCE_S, capture_output=True, text=True)
    assert first.returncode == -signal.SIGKILL, f"it was to be killed\n{first.stdout}{first.stderr}"
    assert (folder / "killed-worker").exists()
    assert "was killed by SIGKILL" in first.stderr
    second = subprocess.run(command, check=False, timeout=4 * PATIENCE_S, capture_output=True, text=True)
    assert second.returncode == 0, second.stdout + second.stderr
    trained, again = 0, 0
    for trial in sorted((folder / "checkpoints").iterdir()):
        epochs = [int(line.split()[0]) for line in (trial / "epochs.txt").read_text().splitlines()]
        assert set(epochs) == set(range(1, max(epochs) + 1)), f"{trial}: {epochs}"
        trained, again = trained + len(epochs), again + len(epochs) - len(set(epochs))
    # The worker costs its trial one epoch, the search each of its trials what lies behind the last rung.
    assert again <= 1 + POOL * (EPOCHS - EPOCHS // 3), again
    assert trained <= 0.45 * TRIALS * EPOCHS, trained
    third = subprocess.run(command, check=False, timeout=4 * PATIENCE_S, capture_output=True, text=True)
    assert third.returncode == 0, third.stderr  # nothing is left to be done
    print(f"{trained} of {TRIALS * EPOCHS} epochs, {again} of them again")


def main() -> None:
    """Be the search, or the check of it."""
    if len(sys.argv) > 1:
        search(sys.argv[1])
        return
    with tempfile.TemporaryDirectory() as folder:
        check(Path(folder))


if __name__ == "__main__":
    main()
