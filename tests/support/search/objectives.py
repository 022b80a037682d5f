"""Functions of searches, as users write them; workers import them from here."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from pathlib import Path
from typing import Any

from farandole.search.trial import Trial

STEPS = 3


def note(path: Path, line: str) -> None:
    """Append a line, whole, to a file that other processes write, too."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, f"{line}\n".encode())
    os.close(fd)


def once(path: Path) -> bool:
    """True for the first who asks, of all processes and all times."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def loss(x: float, epoch: int) -> float:
    """Loss of a training whose final value is known early, as that of a good benchmark is."""
    return (x - 0.3) ** 2 + 0.1 / epoch


def curve(trial: Trial) -> None:
    """Train nothing, on one worker, without ranks."""
    for epoch in range(1, trial.epochs + 1):
        trial.report(loss(float(trial.parameters["x"]), epoch), epoch)


def value_only(trial: Trial) -> float:
    """Return a value without reports."""
    return float(trial.parameters["x"]) ** 2


def sometimes_raises(trial: Trial) -> float:
    """Raise where x is large."""
    if float(trial.parameters["x"]) > 0.5:
        raise RuntimeError("x is too large")
    return float(trial.parameters["x"])


def waits(trial: Trial) -> None:
    """Wait to be ended."""
    signal.pause()


def loses_rank_1(trial: Trial) -> None:
    """Train on two ranks, of which the second dies in the second epoch."""
    import numpy as np

    import farandole.numpy as hvd
    from farandole.numpy import elastic

    hvd.init()
    state = elastic.NumpyState(weights={"w": np.zeros(3)}, epoch=0)
    trial.resume(state)

    @elastic.run
    def epochs(state: Any) -> None:
        while state.epoch < trial.epochs:
            if state.epoch == 1 and hvd.rank() == 1 and once(trial.folder.parent.parent / "killed-rank-1"):
                os.kill(os.getpid(), signal.SIGKILL)
            state.weights["w"] += hvd.allreduce(np.ones(3), name="gradient")
            state.epoch += 1
            if hvd.rank() == 0:
                note(trial.folder / "epochs.txt", f"{state.epoch} {os.getpid()} {hvd.size()}")
            trial.report(1.0 / state.epoch, state.epoch)
        assert state.weights["w"].tolist() == [4.0, 4.0, 4.0], state.weights

    epochs(state)


def ranks(trial: Trial) -> None:
    """Train weights on all ranks of the trial, and write down every epoch, and which process trained it."""
    import numpy as np

    import farandole.numpy as hvd
    from farandole.numpy import elastic

    hvd.init()
    state = elastic.NumpyState(weights={"w": np.zeros(3)}, epoch=0)
    trial.resume(state)
    whole = trial.folder.parent.parent

    @elastic.run
    def epochs(state: Any) -> None:
        while state.epoch < trial.epochs:
            for _ in range(STEPS):
                gradient = hvd.allreduce(np.full(3, float(trial.parameters["x"])), name="gradient")
                state.weights["w"] += gradient
            state.epoch += 1
            if hvd.rank() == 0:
                note(trial.folder / "epochs.txt", f"{state.epoch} {os.getpid()} {hvd.size()}")
            disturb(trial, state.epoch, whole)
            expected = STEPS * state.epoch * float(trial.parameters["x"])
            assert abs(state.weights["w"][0] - expected) < 1e-9, (state.weights, expected)
            trial.report(loss(float(trial.parameters["x"]), state.epoch), state.epoch)

    epochs(state)


def disturb(trial: Trial, epoch: int, folder: Path) -> None:
    """Kill this worker, and later the search, each once, in the middle of an epoch of a trial that is ahead."""
    if (folder / "calm").exists():
        return
    if epoch == 2 and once(folder / "killed-worker"):
        os.kill(os.getpid(), signal.SIGKILL)
    if epoch == 5 and once(folder / "killed-search"):
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()  # the kernel ends this process with the search


def digest(model: Any) -> str:
    """Digest of the weights of a model of PyTorch."""
    weights = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
    return hashlib.sha256(weights).hexdigest()


def bits(trial: Trial) -> None:
    """Train with virtual workers; write down a digest of the weights, and the pause at each change of the workers.

    All trials but the first end when that is under way: it gets their workers in the middle of its training.
    """
    from torch.nn.functional import mse_loss

    import farandole.torch as hvd

    first = trial.folder.parent / "trial-0000" / "begun"
    if trial.number:
        await_file(first)
        return
    hvd.init()
    model, optimizer, inputs, targets = virtual(trial)
    trial.resume(state := hvd.elastic.TorchState(model, optimizer, step=0))
    wanted, last = int(os.environ["SEARCH_TEST_SIZE"]), (0, 0.0)

    @hvd.elastic.run
    def steps(state: Any) -> None:
        nonlocal last
        while state.step < STEPS_OF_BITS:
            if hvd.size() < wanted and state.step >= 20:
                time.sleep(0.1)  # a slow step, until the workers that are to come have loaded what they need
                last = (last[0], time.monotonic())
                if state.step == STEPS_OF_BITS - 20:  # the last ones are theirs, too
                    state.commit()
                    continue
            for shard in optimizer.shards(len(inputs)):
                mse_loss(model(inputs[shard.rows]), targets[shard.rows]).backward()
            optimizer.step()
            state.step += 1
            if hvd.rank() == 0 and last[0] not in (0, hvd.size()):
                gap_s = time.monotonic() - last[1]
                note(trial.folder / "pauses.txt", f"{last[0]} {hvd.size()} {os.getpid()} {gap_s:.4f}")
            last = (hvd.size(), time.monotonic())
            state.commit()
            if state.step == 20:
                first.touch()

    steps(state)
    if hvd.rank() == 0:
        note(trial.folder / "bits.txt", f"{hvd.size()} {os.getpid()} {digest(model)}")
    trial.report(1.0, 1)


def measures(trial: Trial) -> None:
    """Train on samples that are almost the same, of which a larger batch has nothing to tell; write down the sizes."""
    import torch
    from torch.nn.functional import mse_loss

    import farandole.torch as hvd

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(trial.seed)
    model = torch.nn.Linear(4, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-4))
    noise = hvd.NoiseScale(optimizer, every=1)
    state = hvd.elastic.TorchState(model, optimizer, epoch=0)
    trial.resume(state)

    @hvd.elastic.run
    def epochs(state: Any) -> None:
        while state.epoch < trial.epochs:
            while state.epoch == 0 and hvd.size() < 2:  # the free worker is to come
                time.sleep(0.02)
                state.commit()
            own = torch.Generator().manual_seed(100 * state.epoch + hvd.rank())
            for _ in range(20):
                inputs = torch.ones(16, 4) + 0.01 * torch.randn(16, 4, generator=own)
                noise.saw(len(inputs))
                optimizer.zero_grad()
                mse_loss(model(inputs), torch.full((16, 1), 9.0)).backward()
                optimizer.step()
            state.epoch += 1
            if hvd.rank() == 0:
                note(trial.folder / "sizes.txt", f"{state.epoch} {hvd.size()} {noise.estimate()}")
            trial.report(1.0 / state.epoch, state.epoch, noise)

    epochs(state)


def await_file(path: Path) -> None:
    """Return when another process has made a file."""
    until_s = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < until_s, f"{path} does not come"
        time.sleep(0.01)


def virtual(trial: Trial) -> tuple[Any, Any, Any, Any]:
    """Model, optimizer, inputs and targets of a training with eight virtual workers."""
    import torch
    from torch import nn

    import farandole.torch as hvd

    torch.set_num_threads(1)
    torch.manual_seed(trial.seed)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))
    optimizer: Any = hvd.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=float(trial.parameters["lr"])),
        virtual_workers=hvd.VirtualWorkers(8, model, seed=1),
    )
    inputs = torch.randn(64, 16, generator=torch.Generator().manual_seed(3))
    return model, optimizer, inputs, inputs[:, :4].sum(1, keepdim=True)


STEPS_OF_BITS = 200
