"""Engines that ``ipcluster`` has started: after a notebook's kernel dies, the next one trains their models on."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.launching import run_to_end

pytest.importorskip("ipyparallel")

LIMIT_S = 120.0

BEGIN = """
import sys
import ipyparallel as ipp
import farandole.notebook

rc = ipp.Client(connection_info=sys.argv[1], timeout=60)
rc.wait_for_engines(2, timeout=60)
ranks = farandole.notebook.attach(rc, live=False)
"""

FIRST = f"""{BEGIN}
cell = '''
import farandole.torch as hvd, torch
hvd.init()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(8, 4) + hvd.rank()).pow(2).mean().backward()
        optimizer.step()
train(3)
weight = model.weight.tolist()
'''
rc[:].execute(cell, block=True)
print(rc[:]["weight"], flush=True)
import os
os.kill(os.getpid(), 9)  # as a kernel dies that runs out of memory
"""

SECOND = f"""{BEGIN}
print(rc[:]["weight"], flush=True)
rc[:].execute("train(2); after = model.weight.tolist(), hvd.rank(), hvd.size()", block=True)
print(rc[:]["after"], flush=True)
"""


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Path]:
    """The file by which clients find two engines that a terminal has started."""
    command = [sys.executable, "-m", "ipyparallel.cluster", "start", "-n", "2", "--engines=farandole"]
    command += [f"--profile-dir={tmp_path / 'profile'}", "--IPClusterStart.log_level=ERROR"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as cluster:
        try:
            yield tmp_path / "profile" / "security" / "ipcontroller-client.json"
        finally:
            cluster.send_signal(signal.SIGINT)


def test_ranks_of_a_kernel_that_has_died_train_on_in_the_next(connection: Path, tmp_path: Path) -> None:
    told = f"import os, select\nwhile not os.path.exists({str(connection)!r}): select.select([], [], [], 0.05)\n"
    first = run_to_end([sys.executable, "-c", told + FIRST, str(connection)], tmp_path, LIMIT_S, {})
    assert first.code == -signal.SIGKILL, first.stderr
    second = run_to_end([sys.executable, "-c", told + SECOND, str(connection)], tmp_path, LIMIT_S, {}).ok()
    kept, after = second.stdout.strip().splitlines()
    assert kept == first.stdout.strip()
    [(one, *place), (other, *beside)] = eval(after)
    assert one == other
    assert [place, beside] == [[0, 2], [1, 2]]
