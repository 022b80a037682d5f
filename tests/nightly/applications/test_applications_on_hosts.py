"""Two applications on two hosts: data are staged, and none is read twice from the storage that both see."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, final

import pytest

from examples.climate import files
from examples.common.volumes import Box
from examples.cosmoflow import data
from farandole.testing.ledger import read
from tests.support.frameworks import without_compiler
from tests.support.paths import ROOT
from tests.support.patience import PATIENCE_S
from workbench.cluster import HEAD, Cluster, UnavailableError
from workbench.cluster.shared_folder import SharedFolder

SAMPLES = 12


@final
class Application(NamedTuple):
    """How the data of an application are made, in which files, how often these are read, and how it is started."""

    write: Callable[[Path], object]
    names: str
    reads: int
    arguments: tuple[str, ...]
    score: str


APPLICATIONS = {
    "climate": Application(
        lambda folder: files.write(folder, (SAMPLES, 4), seed=2),
        "data-*.h5",
        1,
        ("--model", "deeplab"),
        "on other states",
    ),
    "cosmoflow": Application(
        lambda folder: data.write(folder, data.Sizes(train=SAMPLES, validation=1, test=1), Box(cells=32), 2),
        "*/*.gz",
        2,  # files that are compressed as a whole are read where records are listed, too: farandole data index
        ("--global-batch", "4"),
        "test error",
    ),
}


@pytest.mark.parametrize("name", APPLICATIONS)
def test_two_hosts_train_on_staged_data(name: str, tmp_path: Path) -> None:
    application = APPLICATIONS[name]
    application.write(tmp_path / "set")
    for folder in ("cache", "ledger"):
        (tmp_path / folder).mkdir()
    total = sum(path.stat().st_size for path in (tmp_path / "set").rglob(application.names))
    try:
        with Cluster(2) as cluster, SharedFolder(tmp_path / "set") as storage:
            [shared] = {storage.mount(host, cluster) for host in cluster.nodes}
            hosts = ",".join(f"{node}:1" for node in cluster.nodes)
            environment = {**without_compiler(), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
            path = f"{ROOT}:{environment.pop('PYTHONPATH', '')}".rstrip(":")
            command = [sys.executable, "-m", "farandole", "run", "-H", hosts, "--start-timeout", "120", "env"]
            command += [f"PYTHONPATH={path}", *(f"{key}={value}" for key, value in environment.items())]
            command += [sys.executable, "-m", f"examples.{name}.train", "--data", str(shared), *application.arguments]
            command += ["--epochs", "2", "--stage", str(tmp_path / "cache"), "--limit", "50MB"]
            command += ["--ledger", str(tmp_path / "ledger")]
            job = cluster.popen(HEAD, command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            said, _ = job.communicate(timeout=4 * PATIENCE_S)
            assert job.returncode == 0, said
            read_once = storage.bytes()
    except UnavailableError as reason:
        pytest.skip(str(reason))
    assert "2/2 " in said
    assert application.score in said
    history = read(tmp_path / "ledger")
    assert history.problems(SAMPLES, 2) == []
    assert len(history.workers) == 2
    assert read_once < (application.reads + 0.05) * total, f"{read_once} bytes were read of {total}"
