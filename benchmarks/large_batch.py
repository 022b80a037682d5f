"""What large batches cost beside plain SGD: steps of the optimizers, and communication that a lag hides."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.job import launch
from benchmarks.lag_rank import LATE_S
from benchmarks.measure import Row, Sample, Table, Verdict
from farandole.torch import optim


def run(quick: bool) -> list[Table]:
    """All tables of this section."""
    return [_steps(5 if quick else 25), _lag(3 if quick else 9)]


def resnet50() -> list[torch.nn.Parameter]:
    """Parameters of the shapes of ResNet-50's, with gradients: 161 tensors, 25.6 million elements."""
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            convolutions = [(width, inputs, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)]
            if block == 0:
                convolutions.append((4 * width, inputs, 1, 1))
            shapes += [shape for c in convolutions for shape in (c, (c[0],), (c[0],))]
            inputs = 4 * width
    shapes += [(1000, inputs), (1000,)]
    params = [torch.nn.Parameter(0.05 * torch.randn(shape)) for shape in shapes]
    for param in params:
        param.grad = 0.01 * torch.randn(param.shape)
    return params


def _steps(rounds: int) -> Table:
    """Rounds of each optimizer in turn; a ratio is that of two steps of the same round."""
    params = resnet50()
    sgd = torch.optim.SGD(params, lr=1e-3, momentum=0.9, foreach=True)
    optimizers: dict[str, torch.optim.Optimizer] = {
        "SGD, foreach": sgd,
        "LARS": optim.LARS(params, lr=1e-3, weight_decay=1e-4),
        "LARC of SGD": optim.LARC(torch.optim.SGD(params, lr=1e-3, momentum=0.9, foreach=True)),
        "Adam, foreach": torch.optim.Adam(params, lr=1e-3, foreach=True),
        "LAMB": optim.LAMB(params, lr=1e-3, weight_decay=1e-2),
        "RMSprop warm-up": optim.RMSpropWarmupSGD(params, lr=1e-3, steps_per_epoch=100),
    }
    taken: dict[str, list[float]] = {name: [] for name in optimizers}
    for round_ in range(-1, rounds):
        for name, optimizer in optimizers.items():
            spent = _milliseconds(optimizer.step)
            if round_ >= 0:
                taken[name].append(spent)
    samples = {name: Sample.of(values) for name, values in taken.items()}
    verdicts = (
        Verdict(_ratio(taken, "LARS", "SGD, foreach"), "LARS / SGD", most=1.3),
        Verdict(_ratio(taken, "LAMB", "Adam, foreach"), "LAMB / Adam"),
    )
    count, size = len(params), sum(p.numel() for p in params)
    row = Row(f"ResNet-50, {count} tensors, {size / 1e6:.1f} M", samples, verdicts)
    return Table(f"Step of an optimizer, {torch.get_num_threads()} threads", "ms", rows=[row])


def _ratio(taken: dict[str, list[float]], one: str, other: str) -> float:
    return statistics.median(a / b for a, b in zip(taken[one], taken[other], strict=True))


def _milliseconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e3


def _lag(rounds: int) -> Table:
    taken: dict[str, list[float]] = launch("lag_rank", rounds)
    shown_ms = statistics.median(b - a for a, b in zip(taken["lag 1"], taken["lag 1, 30 ms"], strict=True))
    hidden = 100 * (1 - shown_ms / (1e3 * LATE_S))
    samples = {name: Sample.of(values) for name, values in taken.items()}
    row = Row("MLP, one bucket of gradients, 30 ms late", samples, (Verdict(hidden, "% hidden", least=90.0),))
    return Table("Gradient lag, 2 ranks", "ms", rows=[row])
