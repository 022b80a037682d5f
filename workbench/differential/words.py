"""Functions that generated programs call: small networks, data of each rank, and actions that take several lines.

    net = Net("conv", seed=3)
    net(data(7, rank)).square().mean().backward()

The same seed gives the same numbers in every process. In the oracle, whose ranks are threads of one process, actions
on a process (children, signals) leave out the process and keep the numbers.

Threads: a program runs in the main thread of a rank's process, where signal handlers run too, or in a thread of the
oracle, which can have neither signals nor a fork of its own. Only ``in_threads`` adds threads that call collectives.
The oracle must know their number at every moment (see ``meeting``): the caller, which only waits, lends its own count
to one of them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, final

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

Hvd: TypeAlias = Any
"""``farandole.torch``, or the oracle's stand-in for it."""

SPAWNED_S = 150.0

RNG: dict[str, Any] = {"preserve_rng_state": False}
"""Arguments of checkpoints: two threads of the oracle that read PyTorch's random state can deadlock."""


@final
class HookError(Exception):
    """Raised by hooks of generated programs."""


@final
class Net(nn.Module):
    """Two layers from four features to two, of one of the kinds below."""

    def __init__(self, kind: str, seed: int) -> None:
        super().__init__()
        self.kind = kind
        self.first: nn.Module = nn.Linear(4, 4)
        self.second: nn.Module = nn.Linear(4, 2)
        if kind == "tied":
            self.second = nn.Linear(4, 4)
            self.second.weight = self.first.weight
        elif kind == "square":  # parameters that only their names tell apart
            self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        elif kind == "conv":
            self.first = nn.Conv2d(4, 4, 2)
        elif kind == "embedding":
            self.first = nn.Embedding(10, 4, sparse=True)
        elif kind == "large":  # the middle weight exceeds 1 MiB, above which gradients are reduced in place
            self.first = nn.Sequential(nn.Linear(4, 512), nn.Linear(512, 513), nn.Linear(513, 4))
        elif kind == "scalars":
            self.scale, self.nothing = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(0))
        fill(self, seed)

    def forward(self, x: torch.Tensor, reentrant: bool | None = None, skip: bool = False) -> torch.Tensor:
        """The output; ``reentrant`` selects the kind of checkpointing, ``skip`` leaves out the second layer."""
        x = x.to(next(self.parameters()).dtype)
        if reentrant:
            x = x.requires_grad_()
        for part in (self.begin,) if skip else (self.begin, self.end):
            x = part(x) if reentrant is None else checkpoint(part, x, use_reentrant=reentrant, **RNG)
        return x

    def end(self, hidden: torch.Tensor) -> torch.Tensor:
        """The second layer."""
        found: torch.Tensor = self.second(hidden)
        return found

    def begin(self, x: torch.Tensor) -> torch.Tensor:
        """The first layer, with what its kind needs around it."""
        if self.kind == "conv":
            return torch.tanh(self.first(x.reshape(-1, 4, 1, 1).expand(-1, 4, 2, 2)).flatten(1))
        if self.kind == "embedding":
            return torch.tanh(self.first((x.detach()[:, 0] * 5).long().abs() % 10))
        hidden = torch.tanh(self.first(x))
        return hidden * self.scale + self.nothing.sum() if self.kind == "scalars" else hidden


def fill(module: nn.Module, seed: int) -> None:
    """Give every parameter values that follow from ``seed``."""
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_((torch.rand(p.shape, generator=source) - 0.5) * (0.1 if p.numel() > 1000 else 1.0))


def linear(inputs: int, outputs: int, seed: int) -> nn.Linear:
    """A layer that replaces another."""
    layer = nn.Linear(inputs, outputs)
    fill(layer, seed)
    return layer


def data(number: int, rank: int, rows: int = 3) -> torch.Tensor:
    """A batch of four features, different on every rank."""
    source = torch.Generator().manual_seed(1000 * number + rank)
    return torch.rand(rows, 4, generator=source) * 2 - 1 + rank / 4


def noise(like: torch.Tensor, number: int, rank: int) -> torch.Tensor:
    """A dense tensor like ``like``, different on every rank."""
    source = torch.Generator().manual_seed(1000 * number + rank + 500)
    return (torch.rand(like.shape, generator=source) - 0.5).to(like.dtype)


def graded(*models: nn.Module) -> list[torch.Tensor]:
    """The parameters that have a dense gradient."""
    return [p for m in models for p in m.parameters() if p.grad is not None and not p.grad.is_sparse]


def state(model: nn.Module) -> list[torch.Tensor | None]:
    """Weights and gradients, to be recorded."""
    return [t for p in model.parameters() for t in (p.detach(), p.grad)]


def dots(kept: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    """The products of each list of gradients with the one before."""
    return [
        torch.stack([(a.double() * b.double()).sum() for a, b in zip(one, other, strict=False)]).sum()
        for one, other in itertools.pairwise(kept)
        if one and other
    ]


@contextlib.contextmanager
def raising(layer: nn.Module, here: bool) -> Iterator[None]:
    """Make the gradient of a layer's first parameter raise, if ``here``, and catch the error after the block."""
    parameter = next(layer.parameters())

    def hook(_: torch.Tensor) -> None:
        raise HookError

    handle = parameter.register_hook(hook) if here and parameter.requires_grad else None
    try:
        yield
    except HookError:
        pass
    finally:
        if handle is not None:
            handle.remove()


def is_oracle(hvd: Hvd) -> bool:
    """True if ranks are threads of this process."""
    return getattr(hvd, "is_oracle", False)


def metrics(hvd: Hvd, number: int, names: int = 4) -> list[torch.Tensor]:
    """Averages by name, each from a thread of its own, started in another order on every rank."""
    found: dict[int, torch.Tensor] = {}

    def reduce(i: int) -> None:
        found[i] = hvd.allreduce(torch.tensor([hvd.rank() + i / 2.0]), name=f"metric {number}.{i}")

    def call(i: int) -> Callable[[], None]:
        return lambda: reduce(i)

    in_threads(hvd, *(call((i + hvd.rank()) % names) for i in range(names)))
    return [found[i] for i in sorted(found)]


def in_threads(hvd: Hvd, *calls: Callable[[], Any]) -> None:
    """Call each in a thread of its own, and return when all have returned; raises the error of one of them."""
    left, lock, errors = [len(calls)], threading.Lock(), []

    def run(call: Callable[[], Any]) -> None:
        try:
            with hvd.another_thread() if is_oracle(hvd) else contextlib.nullcontext():
                call()
        except Exception as error:
            errors.append(error)
        with lock:  # else two that end together could both count as the last, or neither
            left[0] -= 1
            if left[0] and is_oracle(hvd):
                hvd.more_threads(-1)

    if is_oracle(hvd):
        hvd.more_threads(len(calls) - 1)  # before any of them runs: one that waits alone would look like a deadlock
    threads = [threading.Thread(target=run, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def batches(hvd: Hvd, number: int, method: str) -> list[torch.Tensor]:
    """Two batches, from a loader with a worker process that is started by ``method``."""
    rows = data(number, hvd.rank(), 4)
    apart: dict[str, Any] = {} if is_oracle(hvd) else {"num_workers": 1, "multiprocessing_context": method}
    return [batch[0] for batch in DataLoader(TensorDataset(rows), batch_size=2, **apart)]


def child_with_init(hvd: Hvd) -> None:
    """A child process that calls ``init()``, like spawned loaders of a script without a main guard."""
    if is_oracle(hvd):
        return
    code = "from farandole.runtime.session.init import init; init()"
    subprocess.run([sys.executable, "-c", code], timeout=SPAWNED_S, capture_output=True, check=False)


def child_that_writes(hvd: Hvd, model: nn.Module) -> None:
    """A forked child that overwrites its gradients."""
    if is_oracle(hvd):
        return
    child = os.fork()  # the child lacks the session's threads: it may do no more than write
    if child == 0:
        try:
            for p in graded(model):
                assert p.grad is not None
                p.grad.fill_(777.0)
        finally:
            os._exit(0)  # whatever happens: this copy of the rank must not go on with the program or run exit hooks
    os.waitpid(child, 0)


SAVES = """
import sys
import torch
import farandole.torch as hvd
hvd.init()
checkpoints = hvd.Checkpoints(sys.argv[1])
for step in range(3):
    checkpoints.save(step, {"weights": torch.ones(3_000_000) * step})
"""
"""A script that ends without ``close()``."""


def last_checkpoint(hvd: Hvd) -> list[int]:
    """Exit code of a job of one that exits right after it has saved step 2, and the step that can be restored."""
    if is_oracle(hvd):
        return [0, 2]
    with tempfile.TemporaryDirectory() as root:
        bare = {k: v for k, v in os.environ.items() if not k.startswith(("FARANDOLE_", "HOROVOD_"))}
        command = [sys.executable, "-c", SAVES, root]
        done = subprocess.run(command, env=bare, timeout=SPAWNED_S, capture_output=True, check=False)
        found = hvd.Checkpoints(root).restore()  # of the folder of rank 0; all ranks make one, to take equally long
        return [done.returncode, found.step if found else -1]


def interrupted(hvd: Hvd, number: int, nbytes: int = 4) -> list[torch.Tensor]:
    """A collective whose waiting ranks get a signal; the handler calls another collective."""
    found: list[torch.Tensor] = []

    entered: list[None] = []

    def handle(*_: object) -> None:
        if not entered:  # the timer also fires while the collective below waits: the handler would nest
            entered.append(None)
            found.append(hvd.allreduce(torch.ones(1) + hvd.rank(), name=f"in handler {number}"))

    if is_oracle(hvd):
        handle()
        return [*found, hvd.allreduce(torch.ones(nbytes // 4), name=f"interrupted {number}")]
    inherited = signal.signal(signal.SIGALRM, handle)
    try:
        # It repeats: a signal between the check of `found` and pause() does not end that pause, the next signal does.
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        while hvd.rank() == 0 and not found:
            signal.pause()  # the others wait meanwhile
        outer = hvd.allreduce(torch.ones(nbytes // 4), name=f"interrupted {number}")
        while not found:
            signal.pause()
    finally:
        # In this order: by default SIGALRM kills the process.
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, inherited)
    return [*found, outer]


def call_in_order(*calls: Callable[[], Any], backwards: bool) -> list[Any]:
    """The results of ``calls``, in their order; the calls are made forwards or backwards."""
    made: dict[int, Any] = {}
    order = range(len(calls))
    for i in reversed(order) if backwards else order:
        made[i] = calls[i]()
    return [made[i] for i in order]
