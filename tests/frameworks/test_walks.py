"""The walks in tests/walks.toml, beside what is called in real jobs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from tests.support.launching import Launch
from tests.support.paths import ROOT, SUPPORT

STEP = """
import os, pathlib, sys
import torch, farandole.torch as hvd
hvd.init()
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
for step in range(20):
    if step == 19:
        hvd.barrier()
        pathlib.Path(os.environ["WALK_FOLDER"], f"begin-{os.getpid()}").touch()
    optimizer.zero_grad()
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
sys.setprofile(None)
"""

NAMED = """
import os, pathlib, sys
import torch, farandole.torch as hvd
hvd.init()
for turn in range(9):
    if turn == 8:
        hvd.barrier()
        pathlib.Path(os.environ["WALK_FOLDER"], f"begin-{os.getpid()}").touch()
    hvd.allreduce(torch.ones(1), name="loss")
sys.setprofile(None)
"""

DEATH = """
import os, pathlib, signal
import numpy as np, farandole.numpy as hvd
from farandole.numpy import elastic
hvd.init()
state = elastic.NumpyState(w=np.zeros(3), step=0)

@elastic.run
def train(state):
    average = hvd.DistributedGradients({"w": np.zeros(3)})
    while state.step < 6:
        if state.step == 3 and hvd.size() == 2 and hvd.rank() == 1:
            pathlib.Path(os.environ["WALK_FOLDER"], "begin").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        state.w -= average({"w": np.ones(3)})["w"]
        state.step += 1
        state.commit()

train(state)
"""

TRIAL = """
import os, pathlib
import farandole

def train(trial):
    if trial.number == 1:
        pathlib.Path(os.environ["WALK_FOLDER"], "begin").touch()
    trial.report(float(trial.parameters["x"]), 1)

if __name__ == "__main__":
    folder = os.environ["WALK_FOLDER"] + "/search"
    farandole.search(train, {"x": (0.0, 1.0)}, trials=3, workers=1, advisor="random", folder=folder, progress=False)
"""

JOBS = {
    "gradient": (STEP, ()),
    "all-reduce": (NAMED, ()),
    "launch": ("import farandole.numpy as hvd; hvd.init()", ()),
    "trial": (TRIAL, ()),
    "death": (DEATH, ("--min-np", "1", "--blacklist-cooldown-range", "60", "60")),
}
"""By the first word of a walk: a script, and options of ``farandole run``. A launch is recorded from the beginning."""


MOST_FILES = 14


def walks() -> dict[tuple[str, str], dict[str, Any]]:
    """The table, by walk and process."""
    table = tomllib.loads((ROOT / "tests" / "walks.toml").read_text())["walk"]
    return {(each["name"], each["process"]): each for each in table}


@pytest.mark.parametrize("walk", [name for name in JOBS if name != "death"])
def test_files_of_a_walk_are_called_in_its_order(walk: str, launch: Launch, tmp_path: Path) -> None:
    follow(walk, launch, tmp_path)


def test_no_walk_is_long() -> None:
    assert {walk: len(row["files"]) for walk, row in walks().items() if len(row["files"]) > MOST_FILES} == {}


def follow(walk: str, launch: Launch, tmp_path: Path) -> None:
    """Run the job of a walk, and compare what was called with the table."""
    script, options = JOBS[walk]
    folder = tmp_path / "walk"
    folder.mkdir()
    if walk == "launch":
        (folder / "begin").touch()
    environment = {"WALK_FOLDER": str(folder), "PYTHONPATH": str(SUPPORT / "walks")}
    launch(1 if walk == "trial" else 2, script, options=options, environment=environment).ok()
    compare(walk, folder)


def compare(walk: str, folder: Path) -> None:
    """Compare what was recorded in a folder with the table."""
    recorded = [path.read_text().splitlines() for path in folder.glob("calls-*")]
    told = {process: row for (name, process), row in walks().items() if name == walk}
    assert told, f"tests/walks.toml has no walk {walk!r}"
    for process, row in told.items():
        files, passed = row["files"], tuple(row.get("passed", ()))
        runs = [lines for lines in recorded if _process(lines[0], walk) == process]
        longest: list[str] = max(runs, key=len)
        calls = [name for name in longest if not name.startswith("command: ")]
        assert files[0] in calls, f"{walk}, {process}: {sorted(set(calls))}"
        if row.get("is_recorded_from_its_beginning", True):
            following = list(dict.fromkeys(calls[calls.index(files[0]) :]))
            assert _in_order(files, following) == files, f"{walk}, {process}: {following}"
        if passed:
            others = {each for each in calls if each not in passed and not each.startswith(rooms(passed))}
            assert others == set(files), f"{walk}, {process}"


def rooms(names: tuple[str, ...]) -> tuple[str, ...]:
    """The ``names`` of whole rooms."""
    return tuple(each for each in names if each.endswith("/"))


def _in_order(files: list[str], calls: list[str]) -> list[str]:
    """``files``, as they follow each other in ``calls``."""
    return [each for each in calls if each in files]


def _process(line: str, walk: str) -> str:
    """The kind of a process by the first line of its file."""
    if "farandole run" in line or "controllers run" in line:
        return "launcher"
    if walk == "lease":
        return "worker" if "elastic_worker" in line else "lent host" if "farandole join" in line else "agent"
    if walk == "trial":
        return "worker" if "search.worker" in line else "search" if "script.py" in line else "agent"
    return "worker" if "script.py" in line else "agent"
