"""Training with MXNet on all ranks, and the same alone: what differs is printed, and nothing else."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

warnings.filterwarnings("ignore", category=DeprecationWarning)  # MXNet 1.9 asks NumPy for np.bool

import mxnet as mx  # noqa: E402
import numpy as np  # noqa: E402

import farandole.mxnet as hvd  # noqa: E402

STEPS, BATCH = 100, 24
Weights = list[Any]
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-3},
    "adam": {"learning_rate": 0.01},
}


def data(step: int) -> tuple[Any, Any]:
    """The rows of all ranks in a step."""
    rng = np.random.default_rng(step)
    x = rng.normal(size=(BATCH, 6))
    return x, (x[:, :3] ** 2).sum(1) + 0.1 * rng.normal(size=BATCH)


def net(seed: int, units: int = 0) -> Any:
    """A network; the shapes of its weights are known at the first pass if ``units`` is 0."""
    mx.random.seed(seed)
    made = mx.gluon.nn.HybridSequential()
    made.add(mx.gluon.nn.Dense(8, activation="tanh", in_units=units), mx.gluon.nn.Dense(1, in_units=8 if units else 0))
    made.initialize(mx.init.Xavier())
    made.cast("float64")
    made.hybridize()
    return made


def weights(made: Any) -> Weights:
    """Copies of its parameters, in their order."""
    return [param.data().asnumpy() for param in made.collect_params().values()]


def pass_of(made: Any, step: int, rows: Any) -> int:
    """Compute gradients of the sum of the losses of some rows; returns their number."""
    x, y = (mx.nd.array(part[rows], dtype="float64") for part in data(step))
    with mx.autograd.record():
        loss = mx.gluon.loss.L2Loss()(made(x), y)
    loss.backward()
    return len(x)


def alone(optimizer: str, units: int = 6) -> Weights:
    """Train on all rows in this process."""
    made = net(0, units)
    trainer = mx.gluon.Trainer(made.collect_params(), optimizer, dict(OPTIMIZERS[optimizer]), kvstore=None)
    for step in range(STEPS):
        trainer.step(pass_of(made, step, slice(None)))
    return weights(made)


def together(optimizer: str, cut: Callable[[], Any], units: int, **options: Any) -> Weights:
    """Train on this rank's rows; weights begin as those of rank 0, whose seed is 0."""
    made = net(hvd.rank(), units)
    params = made.collect_params()
    trainer = hvd.DistributedTrainer(params, optimizer, dict(OPTIMIZERS[optimizer]), **options)
    hvd.broadcast_parameters(params, root_rank=0)
    for step in range(STEPS):
        trainer.step(pass_of(made, step, cut()))
    return weights(made)


def by_hand(optimizer: str) -> Weights:
    """Train with ``DistributedOptimizer`` in a loop of its own, as the Module API has it."""
    made = net(hvd.rank(), 6)
    params = made.collect_params()
    hvd.broadcast_parameters(params, root_rank=0)
    rows = BATCH // hvd.size()
    plain = mx.optimizer.create(optimizer, rescale_grad=1 / rows, **OPTIMIZERS[optimizer])
    update = mx.optimizer.get_updater(hvd.DistributedOptimizer(plain, gradient_predivide_factor=2.0))
    for step in range(STEPS):
        pass_of(made, step, slice(hvd.rank() * rows, (hvd.rank() + 1) * rows))
        arrays = list(params.values())
        update(list(range(len(arrays))), [p.grad() for p in arrays], [p.data() for p in arrays])
    return weights(made)


def check(what: str, found: Weights, expected: Weights) -> None:
    """Print what differs from training alone, or from rank 0."""
    # To 1e-6 of each: MXNet's optimizers take the factor of gradients, 1/24 or 1/8, in single precision.
    worst = max(float((abs(a - b) / np.maximum(1, abs(b))).max()) for a, b in zip(found, expected, strict=True))
    if not worst < 1e-6:
        sys.stdout.write(f"{what}: differs from one worker by {worst}\n")
    every = hvd.allgather_object([each.tobytes() for each in found])
    if any(each != every[0] for each in every):
        sys.stdout.write(f"{what}: differs between ranks\n")


def main() -> None:
    """One rank."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    even = slice(rank, None, size)
    uneven = slice(5 * rank, 5 * (rank + 1) if rank < size - 1 else None)
    for optimizer in OPTIMIZERS:
        expected = alone(optimizer)
        check(optimizer, together(optimizer, lambda: even, 6), expected)
        check(f"{optimizer}, deferred", together(optimizer, lambda: even, 0), alone(optimizer, 0))
        check(f"{optimizer}, uneven batches", together(optimizer, lambda: uneven, 6), expected)
        options: dict[str, Any] = {"gradient_predivide_factor": 4.0, "num_groups": 2, "prefix": "b"}
        check(f"{optimizer}, options", together(optimizer, lambda: even, 6, **options), expected)
        check(f"{optimizer}, DistributedOptimizer", by_hand(optimizer), expected)
    hvd.shutdown()


if __name__ == "__main__":
    main()
