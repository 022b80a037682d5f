"""Elastic jobs whose data comes from processes that are spawned or forked by a server, and a kill in an epoch."""

from __future__ import annotations

import random
import re
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from farandole.control import process
from tests.support.launch.running import StartJob

ROWS, EPOCHS = 64, 2
SCRIPT = """
import multiprocessing, os, sys
import torch
import farandole.torch as hvd

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((4,), float(index))

def main(how, persistent):
    hvd.init()
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-6))
    sampler, place = hvd.elastic.ElasticSampler(Rows()), os.environ["FARANDOLE_WORKER_ID"]
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)
    loader = hvd.elastic.DataLoader(
        Rows(), global_batch_size=8, sampler=sampler, num_workers=1, multiprocessing_context=how,
        persistent_workers=persistent,
    )

    @hvd.elastic.run
    def train(state):
        while state.epoch < 2:
            sampler.set_epoch(state.epoch)
            for rows in loader:
                optimizer.zero_grad()
                model(rows).sum().backward()
                optimizer.step()
                with open(f"seen-{place}", "a") as file:  # the step is whole: all have voted for it
                    file.writelines(f"{state.epoch} {int(row[0])}\\n" for row in rows)
                if place == "1" and not os.path.exists("struck") and state.epoch == 1:
                    open("struck", "w").close()
                    os.kill(os.getpid(), 9)
                state.commit()
            state.epoch += 1
        weights = hvd.allgather(model.weight.data)
        assert (weights == weights[0]).all()

    train(state)
    hvd.shutdown()
    assert persistent or not multiprocessing.active_children(), multiprocessing.active_children()

if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "kept")
"""


LOADERS = [("spawn", "kept"), ("fork", "new"), ("spawn", "new"), ("forkserver", "new")]


@pytest.mark.parametrize(("how", "kept"), LOADERS)
def test_each_row_counts_once(job: StartJob, tmp_path: Path, how: str, kept: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    patience = ("--hang-timeout", "60")  # a loader imports torch before it loads
    command = [sys.executable, "script.py", how, kept]
    running = job("-np", "2", "--min-np", "1", *patience, command=command, environment={"OMP_NUM_THREADS": "1"})
    assert running.end() == 0, running.stderr  # and no process is left, loaders of the killed worker included
    assert "worker 1 on" in running.stderr
    seen = Counter(line for file in tmp_path.glob("seen-*") for line in file.read_text().splitlines())
    assert seen == Counter(f"{epoch} {row}" for epoch in range(EPOCHS) for row in range(ROWS))


TOLD = """
import os, sys, torch
import farandole.torch as hvd

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        return torch.full((4,), float(index))

def main(how, persistent, moment):
    hvd.init()
    if moment == 0:
        print("trains", flush=True)
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-9))
    sampler = hvd.elastic.ElasticSampler(Rows())
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, step=0)
    loader = hvd.elastic.DataLoader(
        Rows(), global_batch_size=8, sampler=sampler, num_workers=2, multiprocessing_context=how,
        persistent_workers=persistent,
    )
    checkpoints = hvd.Checkpoints("saved")

    @hvd.elastic.run
    def train(state):
        for rows in loader:
            optimizer.zero_grad()
            model(rows).sum().backward()
            optimizer.step()
            state.step += 1
            state.commit()
            if state.step == moment:
                print("trains", flush=True)

    try:
        train(state)
    except SystemExit:
        if hvd.rank() == 0:
            checkpoints.save(state.step, {"step": state.step})
        checkpoints.close()
        print("left", state.step, flush=True)
        raise

if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "kept", int(sys.argv[3]))
"""

DRAWN = random.Random(1)
MOMENTS = [("fork", "new", moment) for moment in (0, 1, 2, *(DRAWN.randint(3, 200) for _ in range(3)))]


@pytest.mark.parametrize(("how", "kept", "moment"), [*((*each, 20) for each in LOADERS), *MOMENTS])
def test_a_notice_to_all_processes_leaves_time_for_a_checkpoint(
    job: StartJob, tmp_path: Path, how: str, kept: str, moment: int
) -> None:
    """As Slurm sends it to every process of a step, at any moment, also before there are loaders."""
    (tmp_path / "script.py").write_text(TOLD)
    command = [sys.executable, "script.py", how, kept, str(moment)]
    patience = ("--grace-seconds", "90", "--hang-timeout", "60")  # torch takes seconds to end what is spawned
    running = job("-np", "2", "--min-np", "1", *patience, command=command, environment={"OMP_NUM_THREADS": "1"})
    running.prints("trains", times=2)
    process.kill(set(running.left()) - process.trackers(running.left()), signal.SIGTERM)
    assert running.end() == 128 + signal.SIGTERM, running.stderr
    assert "Traceback" not in running.stderr
    left = re.findall(r"left (\d+)", running.stdout)
    assert left or not moment  # before the training there is nothing that could be lost
    assert not left or left == [left[0]] * 2
    assert all((tmp_path / "saved" / f"step-{int(step):012}").is_dir() for step in left)
