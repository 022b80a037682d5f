"""Training under faults: ``python -m workbench.survival.training_script FOLDER PLAN`` is one of its workers.

Its global batches do not depend on the workers, and nothing in it is random: with virtual workers the parameters after
every step have the same bits as in one process that trains alone.
"""

from __future__ import annotations

import math
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import msgspec
import torch

import farandole.torch as hvd
from farandole.testing.ledger import Ledger, who
from workbench.survival import fault_actions
from workbench.survival.fault_injection import FaultInjection
from workbench.survival.records import LENGTH, Point, Skipped, TrainingPlan, generation_record, write_record

GLOBAL_BATCH = 16
CURVE_EVERY = 25
STEP_S, SLOW_STEPS = 0.01, 3
"""About the time of a step, and the number of slow steps of one fault."""


class Samples(torch.utils.data.Dataset[Any]):
    """A small data set, in which no two samples are equal."""

    def __init__(self) -> None:
        row = torch.arange(LENGTH, dtype=torch.float64)
        self.x = torch.stack([torch.sin(row * k) for k in (1, 3, 7, 11)], 1)
        self.y = self.x.square().sum(1, keepdim=True)

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.y[index]


class Descent(torch.optim.Optimizer):
    """Gradient descent with momentum. PyTorch's version imports its compiler, which takes a worker a second."""

    for _name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
        locals()[_name] = getattr(torch.optim.Optimizer, _name).__wrapped__

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override] # it needs no closure
        """One step."""
        for group in self.param_groups:
            for param in group["params"]:
                momentum = self.state[param].setdefault("momentum", torch.zeros_like(param))
                momentum.mul_(group["momentum"]).add_(param.grad)
                param.sub_(momentum, alpha=group["lr"])


@final
class Trainee:
    """Training loop of one worker, with the faults that only the script can do."""

    def __init__(self, folder: Path, plan: TrainingPlan) -> None:
        self._folder, self._plan = folder, plan
        self._samples = Samples()
        self._poison = 0.0
        self._pauses: list[float] = []
        on = {
            "nan": lambda: self._spoil(math.nan),
            "inf": lambda: self._spoil(math.inf),
            "2 x slower": lambda: self._pauses.extend([STEP_S] * SLOW_STEPS),
            "10 x slower": lambda: self._pauses.extend([STEP_S * 10] * SLOW_STEPS),
            "100 x slower": lambda: self._pauses.extend([STEP_S * 100] * SLOW_STEPS),
            "other model": lambda: self._build(plan.hidden + 1),
            "loader": _lose_loader,
            "first chunk": lambda: fault_actions.take_away(0.0),
            "middle chunk": lambda: fault_actions.take_away(0.5),
            "last chunk": lambda: fault_actions.take_away(1.0),
            "damage": fault_actions.damage,
            "stale": fault_actions.speak_of_the_past,
            "no room": fault_actions.leave_no_room,
            "room": fault_actions.make_room,
        }
        self.faults = FaultInjection(folder, on)
        self._build(plan.hidden)

    def _build(self, hidden: int) -> None:
        plan = self._plan
        torch.manual_seed(11)
        layers = torch.nn.Linear(4, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 1)
        self._model = torch.nn.Sequential(*layers).double()
        virtual = hvd.VirtualWorkers(plan.virtual, self._model) if plan.virtual else None
        inner = Descent(self._model.parameters(), {"lr": 0.16 / hidden, "momentum": 0.9})
        self._optimizer: Any = hvd.DistributedOptimizer(inner, virtual_workers=virtual)
        self._scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=not plan.virtual)
        self._sampler = hvd.elastic.ElasticSampler(self._samples, seed=3)
        self._loader = hvd.elastic.DataLoader(
            self._samples, global_batch_size=GLOBAL_BATCH, sampler=self._sampler, whole=bool(plan.virtual)
        )
        self.state: Any = hvd.elastic.TorchState(
            self._model, self._optimizer, sampler=self._sampler, scaler=self._scaler, epoch=0
        )

    def train(self, state: Any) -> None:
        """Train until the end that the plan defines."""
        self._write("generations", generation_record(state))
        while True:
            self._sampler.set_epoch(state.epoch)
            for x, y in self._batches():
                self._step(x, y)
                if self._plan.steps and state._step_vote.step >= self._plan.steps:
                    return
                self._ask_to_reform(state._step_vote.step)
                state.commit()
            self.faults.reach("epoch end")
            # Of all ranks: the file may appear between the checks of two of them, and they must end alike.
            is_end = any(hvd.allgather_object((self._folder / "end").exists(), name="end"))
            state.epoch += 1
            if is_end:
                return

    def _batches(self) -> Iterator[Any]:
        batches = iter(self._loader)
        while True:
            self.faults.reach("idle")
            time.sleep(self._plan.step_s)
            self.faults.reach("loading")
            if (batch := next(batches, None)) is None:
                return
            yield batch

    def _step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer, scaler = self._optimizer, self._scaler
        optimizer.zero_grad()
        if self._plan.virtual:
            for shard in optimizer.shards(len(x)):
                self._loss(x[shard.rows], y[shard.rows]).backward()
        else:
            self.faults.reach("forward")
            self._dawdle()
            loss = self._loss(x, y)
            self.faults.reach("backward")
            if self._poison and not self._is_last():
                loss, self._poison = loss * self._poison, 0.0
            scaler.scale(loss).backward()
        before = self.state._step_vote.step
        scaler.step(optimizer)
        scaler.update()
        step = self.state._step_vote.step
        if step == before:
            self._write("skipped", Skipped(who(), step, scaler.get_scale(), self._digest()))
        elif step % CURVE_EVERY == 0:
            with torch.no_grad():
                loss = self._loss(self._samples.x, self._samples.y)
            self._write("curve", Point(step, loss.item(), self._digest()))

    def _is_last(self) -> bool:
        """True if this batch ends the epoch: no later step commits its samples if this one is skipped."""
        cursor = self._sampler.cursor
        return cursor.in_flight[-1].stop == cursor.length

    def _digest(self) -> str:
        return f"{zlib.crc32(b''.join(p.detach().numpy().tobytes() for p in self._model.parameters())):08x}"

    def _loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self._model(x), y)

    def _write(self, what: str, record: msgspec.Struct) -> None:
        write_record(self._folder, what, record)

    def _ask_to_reform(self, step: int) -> None:
        if self._plan.reform_every and step % self._plan.reform_every == 0 and hvd.rank() == 0:
            self.state.on_hosts_updated()

    def _spoil(self, factor: float) -> None:
        self._poison = factor

    def _dawdle(self) -> None:
        if self._pauses:
            time.sleep(self._pauses.pop())


def _lose_loader() -> None:
    """A data-loading process is killed, as when memory is full: torch raises at the next batch."""
    loader = torch.utils.data.DataLoader(Samples(), batch_size=2, num_workers=1)
    batches: Any = iter(loader)
    next(batches)
    batches._workers[0].kill()
    for _ in batches:
        pass


def main(folder: Path, plan: TrainingPlan) -> None:
    """Train as one worker, and shut down in order."""
    torch.set_num_threads(1)
    hvd.init()
    trainee = Trainee(folder, plan)
    trainee.faults.reach("building")
    ledger = Ledger(folder, trainee.state)
    train = hvd.elastic.run(trainee.train)
    train(trainee.state)
    trainee.faults.reach("shutdown")
    ledger.close()
    trainee.faults.cancel()
    hvd.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=TrainingPlan))
