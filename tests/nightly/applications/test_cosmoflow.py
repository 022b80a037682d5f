"""CosmoFlow: the files are those of the benchmark, the networks those that were published, and ranks train as one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from examples.common.volumes import Box, Cosmology, drawn, volume
from examples.cosmoflow.baselines import ridge, summaries
from examples.cosmoflow.data import Sizes, augmentation, in_memory, record, volumes, write
from farandole.data.loading.augment import SampleLoader
from farandole.errors import DataError
from tests.support.data.real_files import path_of
from tests.support.examples.continued import STAGED, continues
from tests.support.examples.killed import trained_with_a_kill
from tests.support.frameworks import without_compiler
from tests.support.launching import Launch, run_to_end
from tests.support.paths import ROOT, SUPPORT

PYTHONPATH = os.pathsep.join(filter(None, [without_compiler().get("PYTHONPATH"), str(ROOT)]))
LEAN = {**without_compiler(), "PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
SIZES = Sizes(train=60, validation=4, test=8)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few volumes of 16³."""
    folder = tmp_path_factory.mktemp("cosmoflow") / "made"
    write(folder, SIZES, Box(), seed=0)
    return folder


# -- files -------------------------------------------------------------------------------------------------------------


def test_other_files_are_refused_by_a_sentence() -> None:
    shards = path_of("tfrecord-tfx-data_tfrecord-00001-of-00002.gz")
    with pytest.raises(DataError, match="x"):
        _ = volumes(shards)[0]
    with pytest.raises(DataError, match="Example"):
        _ = volumes(path_of("tfrecord-ranking-train_elwc.tfrecord"))[0]


def test_the_same_volume_makes_the_same_file() -> None:
    counts = volume(drawn(5), Box(), 5)
    assert record(counts, drawn(5)) == record(counts, drawn(5))
    assert record(counts, drawn(5)) != record(counts, Cosmology())


def test_tensorflow_writes_and_reads_the_same_and_networks_are_those_that_were_published(
    made: Path, tmp_path: Path
) -> None:
    script = SUPPORT / "examples" / "cosmoflow_cases.py"
    said = run_to_end([sys.executable, str(script), str(made), str(tmp_path)], tmp_path, 200.0, LEAN).ok().stdout
    assert said.split() == ["reads", "writes", "parameters", "periodic"]


# -- baselines --------------------------------------------------------------------------------------------


def test_augmentation_changes_no_summary(made: Path) -> None:
    source = volumes(made / "test")
    turned = SampleLoader(source, augmentation(), seed=0)
    for index in range(len(source)):
        before, after = source[index][0], turned(0, index)[0]
        assert (before != after).any()
        assert summaries(after[None]) == pytest.approx(summaries(before[None]), abs=1e-3)
        assert (turned(0, index)[0] == after).all()
        assert (turned(1, index)[0] != after).any()


def test_ridge_is_that_of_the_equations(made: Path) -> None:
    x, y = in_memory(volumes(made / "train"))
    known, asked = summaries(x)[:, :6], summaries(in_memory(volumes(made / "test"))[0])[:, :6]
    mean, sd = known.mean(axis=0), known.std(axis=0)
    a, b = (known - mean) / sd, (asked - mean) / sd
    said = ridge(known, y[:, :3], asked)
    by_hand = [
        b @ np.linalg.solve(a.T @ a + strength * np.eye(6), a.T @ (y[:, :3] - y[:, :3].mean(axis=0)))
        + y[:, :3].mean(axis=0)
        for strength in np.logspace(-4, 4, 17)
    ]
    assert min(float(np.abs(said - each).max()) for each in by_hand) < 1e-4


# -- training ----------------------------------------------------------------------------------------------------------


def test_two_workers_train_as_one(made: Path, launch: Launch, tmp_path: Path) -> None:
    found = {}
    for size in (1, 2):
        result = tmp_path / f"{size}.npz"
        script = SUPPORT / "examples" / "train_cosmoflow.py"
        launch(size, script, arguments=[str(made), str(result)], environment=LEAN, deadline_s=200.0).ok()
        found[size] = dict(np.load(result))
    assert found[1]["losses"] == pytest.approx(found[2]["losses"], rel=1e-2)
    assert len(found[1]) > 20
    for name, value in found[1].items():
        assert found[2][name] == pytest.approx(value, abs=5e-3, rel=5e-3), name


def test_each_volume_counts_once_when_a_worker_is_killed(tmp_path: Path) -> None:
    write(tmp_path / "made", Sizes(train=640, validation=4, test=4), Box(), seed=0)
    arguments = ["--data", str(tmp_path / "made"), "--epochs", "3"]
    history = trained_with_a_kill(
        "examples.cosmoflow.train", arguments, tmp_path, steps=1, environment=LEAN, deadline_s=400.0
    )
    assert history.problems(640, 3) == []
    assert {record.size for records in history.begun.values() for record in records} >= {1, 2}


def test_a_training_goes_on_from_its_checkpoint_and_from_a_stage(made: Path, tmp_path: Path) -> None:
    continues(
        "examples.cosmoflow.train",
        ["--data", str(made)],
        tmp_path,
        says="mean absolute error",
        ends="test error",
        first=STAGED,
        environment=LEAN,
    )


def test_the_table_is_made(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.cosmoflow", "--reproduce", "--quick", "--out", str(tmp_path)]
    said = run_to_end(command, tmp_path, 300.0, LEAN).ok().stdout
    assert "shuffled labels tell nothing" in said
    assert {path.name for path in (tmp_path / "cosmoflow").iterdir()} == {"results.json", "table.md", "picture.png"}
