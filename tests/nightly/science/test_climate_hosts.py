"""The climate example on two hosts: states are staged, and none is read twice from the storage that both see."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from examples.climate.files import write
from farandole.testing.ledger import read
from tests.support.frameworks import without_compiler
from tests.support.paths import ROOT
from tests.support.patience import PATIENCE_S
from workbench.cluster import HEAD, Cluster, UnavailableError
from workbench.cluster.shared_folder import SharedFolder


def test_two_hosts_train_on_staged_states(tmp_path: Path) -> None:
    write(tmp_path / "set", train=12, validation=4, seed=2)
    for name in ("cache", "ledger"):
        (tmp_path / name).mkdir()
    total = sum(path.stat().st_size for path in (tmp_path / "set").rglob("data-*.h5"))
    try:
        with Cluster(2) as cluster, SharedFolder(tmp_path / "set") as storage:
            [folder] = {storage.mount(host, cluster) for host in cluster.nodes}
            hosts = ",".join(f"{node}:1" for node in cluster.nodes)
            environment = {**without_compiler(), "OMP_NUM_THREADS": "1"}
            path = f"{ROOT}:{environment.pop('PYTHONPATH', '')}".rstrip(":")
            command = [sys.executable, "-m", "farandole", "run", "-H", hosts, "--start-timeout", "120", "env"]
            command += [f"PYTHONPATH={path}", *(f"{name}={value}" for name, value in environment.items())]
            command += [sys.executable, "-m", "examples.climate.train", "--data", str(folder), "--model", "deeplab"]
            command += ["--epochs", "2", "--stage", str(tmp_path / "cache"), "--limit", "50MB"]
            command += ["--ledger", str(tmp_path / "ledger")]
            job = cluster.popen(HEAD, command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            said, _ = job.communicate(timeout=4 * PATIENCE_S)
            assert job.returncode == 0, said
            read_once = storage.bytes()
    except UnavailableError as reason:
        pytest.skip(str(reason))
    assert "2/2 loss" in said
    assert "on other states" in said
    history = read(tmp_path / "ledger")
    assert history.problems(12, 2) == []
    assert len(history.workers) == 2
    assert total <= read_once < 1.05 * total, f"{read_once} bytes were read of {total}"
