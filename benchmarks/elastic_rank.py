"""One worker of an elastic job that makes the faults it is measured by: ``FOLDER NETWORK WORKERS STRIKES [HOST]``.

``STRIKES`` are words with commas between them: ``kill`` (a worker kills itself with SIGKILL), ``power`` (whoever reads
the output takes a host's power away), ``leave`` and ``join`` (the file of hosts, which names HOST, changes). Each comes
when the generation before it has trained for a while. What happens is written to a ledger, and the times of strikes.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, final

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import farandole.torch as hvd
from benchmarks.models import make
from farandole import events
from farandole.testing.ledger import Ledger

SAMPLES, BATCH = 1024, 64
STEPS = 12
"""How many steps a generation makes before anything happens to it."""

MOMENTS = ("reduce", "vote", "voted", "commit")
"""Milestones at which workers are killed, in turn."""


@final
class Striker:
    """Knows what happens next, and makes it happen."""

    def __init__(self, folder: Path, workers: int, faults: list[str], host: str) -> None:
        self._folder, self._workers, self._faults, self._host = folder, workers, faults, host
        self._due, self._at_step, self._number = "", 0, 0
        events.subscribe(self._watch)

    def begin(self, state: Any) -> None:
        """A generation begins: perhaps with what the last strike was for."""
        is_full = hvd.size() == self._workers
        if state.done < len(self._faults) and is_full == (self._faults[state.done] == "join"):
            state.done += 1
            if hvd.rank() == 0:
                print(f"{self._faults[state.done - 1]} is over", flush=True)
        self._number, self._due, self._at_step = state.done, "", state._step_vote.step + STEPS
        if state.done < len(self._faults) and is_full == (self._faults[state.done] != "join"):
            self._due = self._faults[state.done]

    def is_over(self, state: Any) -> bool:
        """Nothing more will happen, and the last strike has been survived."""
        return bool(state.done == len(self._faults) and state._step_vote.step >= self._at_step)

    def _watch(self, event: events.Event) -> None:
        if not isinstance(event, events.Milestone) or event.step != self._at_step or not self._due:
            return
        if self._due == "kill":
            if event.phase == MOMENTS[self._number % len(MOMENTS)] and event.rank == self._number % self._workers:
                self._note()
                os.kill(os.getpid(), signal.SIGKILL)
        elif event.phase == "vote" and event.rank == 0:
            if self._due == "power":
                print("power is wanted", flush=True)
            else:
                self._note()
                write_hosts(self._folder, self._host, self._workers - (self._due == "leave"))

    def _note(self) -> None:
        with (self._folder / "strikes").open("a") as file:
            file.write(f"{self._due} {time.monotonic()}\n")


def write_hosts(folder: Path, host: str, slots: int) -> None:
    """A file of hosts with one line."""
    new = folder / "hosts.new"
    new.write_text(f"{host}:{slots}\n")
    new.rename(folder / "hosts")


@hvd.elastic.run
def train(state: Any, loader: Any, sampler: Any, striker: Striker) -> None:
    """Train until all strikes have been survived."""
    striker.begin(state)
    while True:
        sampler.set_epoch(state.epoch)
        for inputs, labels in loader:
            state.optimizer.zero_grad()
            cross_entropy(state.model(inputs), labels).backward()
            state.optimizer.step()
            state.commit()
            if striker.is_over(state):
                return
        state.epoch += 1


def main() -> None:
    """Train, and leave in good order."""
    folder, name, workers, faults = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4].split(",")
    hvd.init()
    torch.set_num_threads(1)
    task = make(name)
    inputs = torch.rand(SAMPLES, *task.inputs.shape[1:])
    dataset = TensorDataset(inputs, torch.randint(0, 10, (SAMPLES,)))
    sampler: Any = hvd.elastic.ElasticSampler(dataset, seed=1)
    loader = hvd.elastic.DataLoader(dataset, global_batch_size=BATCH, sampler=sampler)
    optimizer = hvd.DistributedOptimizer(task.optimizer(), named_parameters=task.network.named_parameters())
    state = hvd.elastic.TorchState(task.network, optimizer, sampler=sampler, epoch=0, done=0)
    ledger = Ledger(folder, state)
    train(state, loader, sampler, Striker(folder, workers, faults, sys.argv[5] if sys.argv[5:] else ""))
    ledger.close()
    hvd.shutdown()


if __name__ == "__main__":
    main()
