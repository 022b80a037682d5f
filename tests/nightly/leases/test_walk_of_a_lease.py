"""The walk of a lease: an order to have fewer workers, from the command to the end of the lease's agent."""

from __future__ import annotations

from pathlib import Path

from tests.frameworks.test_walks import compare
from tests.nightly.launcher.test_elastic_jobs import Train, end, generation, train
from tests.nightly.leases.test_leases import Lend, folder, lend, ordered
from tests.support.paths import SUPPORT
from tests.support.patience import PATIENCE_S

__all__ = ["lend", "train"]


def test_files_of_a_lease_are_called_in_its_order(train: Train, lend: Lend, tmp_path: Path) -> None:
    walk = tmp_path / "walk"
    walk.mkdir()
    recorded = {"WALK_FOLDER": str(walk), "PYTHONPATH": str(SUPPORT / "walks")}
    running = train("--run-folder", "run", "--min-np", "1", "--max-np", "8", **recorded)
    first = generation(running, lambda number, _: number == 1)
    agent = lend(running, "812", 0, **recorded)
    whole = generation(running, lambda _, size: size == 2)
    assert whole[0].process == first[0].process
    running.until((folder(running) / "leases.jsonl").exists, "for the first decision")
    (walk / "begin").touch()
    ordered(running, "scale", "1")
    generation(running, lambda number, size: size == 1 and number > whole[0].generation)
    assert agent.wait(PATIENCE_S) == 0
    (walk / "begin").unlink()
    assert end(running) == 0
    compare("lease", walk)
