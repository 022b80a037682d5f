"""``examples/bigearthnet`` trains: the same with virtual workers as with real ones, and as a whole experiment."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from examples.bigearthnet.experiment import QUICK
from examples.bigearthnet.tune import EVERY, SEED, Trial, Tuning, read, tuned, write
from tests.nightly.examples.test_bigearthnet_archive import FIRST, SECOND, unpacked, write_patch
from tests.support.frameworks import without_compiler
from tests.support.launching import Finished, Launch, run_to_end
from tests.support.paths import ROOT, SUPPORT
from tests.support.tiers import Tier

HERE = SUPPORT / "examples"
QUICK_START = without_compiler()
PYTHONPATH = (str(ROOT), QUICK_START.get("PYTHONPATH", os.environ.get("PYTHONPATH", "")))
IMPORTS = {**QUICK_START, "PYTHONPATH": os.pathsep.join(filter(None, PYTHONPATH))}


def python(module: str, *arguments: str, folder: Path, deadline_s: float = 200.0) -> Finished:
    """Run a module of the examples."""
    return run_to_end([sys.executable, "-m", module, *arguments], folder, deadline_s, IMPORTS)


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, torch.Tensor]]:
    """What models have become, by number of ranks, of workers, and how these were made."""
    folder = tmp_path_factory.mktemp("states")
    for np in (1, 2, 4):
        Launch(folder, Tier.NIGHTLY)(np, HERE / "train_on_ranks.py", arguments=[str(folder)], environment=IMPORTS).ok()
    return {file.stem: torch.load(file, weights_only=True) for file in sorted(folder.glob("*.pt"))}


@pytest.mark.parametrize(("one", "other"), [("1-2", "2-2"), ("1-4", "2-4"), ("1-4", "4-4")])
def test_virtual_workers_train_the_same_bits_on_any_number_of_processes(
    states: dict[str, dict[str, torch.Tensor]], one: str, other: str
) -> None:
    ours, theirs = states[f"{one}-virtual"], states[f"{other}-virtual"]
    assert ours.keys() == theirs.keys()
    assert not [name for name, value in ours.items() if not torch.equal(value, theirs[name]) and "tracked" not in name]


@pytest.mark.parametrize("other", ["2-2-real", "1-2-one-pass", "1-4-one-pass", "4-4-real"])
def test_virtual_workers_train_what_real_processes_train(
    states: dict[str, dict[str, torch.Tensor]], other: str
) -> None:
    """And what one pass over all samples does that normalizes those of each worker apart."""
    virtual = states[f"1-{other[2]}-virtual"]
    for name, value in virtual.items():
        if "tracked" not in name:  # how many batches a layer has seen: more, if one process plays all workers
            torch.testing.assert_close(value, states[other][name], rtol=0, atol=2e-6, msg=name)


def test_the_table_comes_with_all_rows_and_says_how_they_were_made(tmp_path: Path) -> None:
    said = python("examples.bigearthnet.batch_table", "--quick", "--out", "made", folder=tmp_path).ok().stdout
    made = json.loads((tmp_path / "made" / "batch_table.json").read_text())
    results = made["results"]
    kinds = {(r["row"]["optimizer"], r["row"]["ratio"]): r["outcome"]["kind"] for r in results}
    assert kinds == {(r.optimizer, r.ratio): "real" if r.ratio == 1 else "accumulated" for r in tuned(QUICK).rows}
    for result in results:
        ratio, outcome = result["row"]["ratio"], result["outcome"]
        assert result["workers"] == 2 * ratio
        assert outcome["steps"] == 2 * 512 // (8 * ratio)
        assert len(outcome["scores"]) == len(outcome["losses"]) == 2
        begin, score = rf"{result['row']['optimizer'].upper()} +│ {8 * ratio} \({ratio} x B0\)", outcome["scores"][-1]
        workers = "2, real" if ratio == 1 else f"{2 * ratio}, accumulated on 2"
        shown = rf"│ {begin} +│ {workers} +│ .*│ {score:.3f} ±"
        assert re.search(shown, said), f"{shown} not in\n{said}"
    assert "0.43 diverging" in said
    assert "always the same labels" in (tmp_path / "made" / "batch_table.md").read_text()
    assert made["made_by"]["command"] == "python -m examples.bigearthnet.batch_table --quick --out made"
    assert (tmp_path / "made" / "batch_table.png").read_bytes().startswith(b"\x89PNG")


def test_the_search_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    begun = Tuning(replace(QUICK, seeds=()), SEED, [Trial(row, 0.5, 0.1) for row in EVERY[:2] + EVERY[4:]])
    write(begun, tmp_path)
    said = python("examples.bigearthnet.tune", "--quick", "--out", ".", folder=tmp_path).ok().stdout
    trials = read(tmp_path).trials
    assert [trial.row for trial in trials] == EVERY
    assert trials[:2] + trials[4:] == begun.trials
    assert (said.count(": F1 "), said.count("best: ")) == (2, 3)


FILES = ("--train", "names.csv", "--test", "names.csv", "--pixels", "30", "--width", "4")
TRAINING = ("--epochs", "2", "--warmup-epochs", "1", "--worker-batch", "1", "--base-batch", "2")


def trained(folder: Path, archive: Path, *arguments: str) -> str:
    """What the script says that two ranks train on an archive, with the patches of ``names.csv``."""
    command = ("-m", "examples.bigearthnet.train", "--archive", str(archive), *FILES, *TRAINING, *arguments)
    return python("farandole", "run", "-np", "2", sys.executable, *command, folder=folder).ok().stdout


def test_the_script_trains_on_the_real_archive(tmp_path: Path) -> None:
    archive, cache = unpacked(tmp_path), tmp_path / "cache"
    names = sorted(patch.name for patch in archive.iterdir())
    (tmp_path / "names.csv").write_text("\n".join(names))
    cache.mkdir()
    for staging in ((), ("--stage", str(cache), "--limit", "1MB")):
        said = trained(tmp_path, archive, *staging)
        assert re.search(r"2/2 loss [\d.]+ F1 [\d.]+", said)
        assert re.search(r"micro-F1  [\d.]+ on test patches, after 4 steps of 2", said)
        assert "workers   2 (real: 2 processes)" in said
        assert re.search(r"input(-bound: \d+ % of the step waits| keeps up: )", said)
        assert bool([*cache.rglob("*.sums")]) == bool(staging)


def test_the_script_plays_workers_on_patches_of_real_size(tmp_path: Path) -> None:
    names = [name[:-1] + str(number) for number in range(4) for name in (FIRST, SECOND)]
    for number, name in enumerate(names):
        write_patch(tmp_path, name, ["Pastures", "Water bodies"], seed=number)
    (tmp_path / "names.csv").write_text("\n".join(names))
    said = trained(tmp_path, tmp_path, "--workers", "4", "--stage", str(tmp_path), "--limit", "10MB")
    assert re.search(r"micro-F1  [\d.]+ on test patches, after 4 steps of 4", said)
    assert "workers   4 (accumulated: 2 processes)" in said
