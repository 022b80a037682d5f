"""Published headline efficiencies, beside those of one cost model with two numbers fitted to Horovod's results.

    for each in headlines(): print(each.name, each.published, each.says)

Horovod's three networks (Sergeev and Del Balso 2018, arXiv 1802.05799) determine the hidden share of the backward pass
and the jitter. The same two numbers then predict three other results: the model does not explain what remains.
"""

from __future__ import annotations

from typing import NamedTuple, final

from farandole.predict import costs
from farandole.predict.costs import FABRICS, NVLINK, hierarchical, ring
from farandole.predict.outlook import BACKWARD

MESSAGE_S, TENSORS = 1e-6, 100
"""Least time of a control message, and number of tensors of a network: both assumed."""


@final
class Headline(NamedTuple):
    """Published efficiency on ``ranks``, and the model's with a control tree and with a flat coordinator."""

    name: str
    ranks: int
    published: float
    says: float
    flat: float


@final
class _Known(NamedTuple):
    """Facts of a headline; ``step_s`` on one rank, ``comm_s`` by the formula of its all-reduce."""

    name: str
    ranks: int
    published: float
    step_s: float
    comm_s: float


def _known() -> list[_Known]:
    """Steps are recalled (64 images on a P100; Kurth et al. 2018), and so are bytes, except 178 and 553 MB."""
    fabric, summit, aries = FABRICS["25gbe"], FABRICS["edr-dual"], FABRICS["aries"]
    return [
        _Known("Inception V3, Horovod", 512, 0.90, 0.46, ring(95e6, 128, fabric)),
        _Known("ResNet-101, Horovod", 512, 0.90, 0.46, ring(178e6, 128, fabric)),
        _Known("VGG-16, Horovod", 512, 0.68, 0.46, ring(553e6, 128, fabric)),
        _Known("CosmoFlow, Cori", 8192, 0.77, 0.13, hierarchical(28.2e6, 1, 8192, NVLINK, aries)),
        _Known("Tiramisu, Piz Daint", 5300, 0.79, 0.83, hierarchical(31e6, 1, 5300, NVLINK, aries)),
        _Known("DeepLabv3+, Summit", 27360, 0.907, 1.15, hierarchical(174e6, 6, 4560, NVLINK, summit)),
    ]


def _efficiency(known: _Known, hidden: float, sigma: float, queue_s: float) -> float:
    behind = max(0.0, known.comm_s - hidden * BACKWARD * known.step_s)
    waits = costs.readiness(queue_s, costs.stragglers(known.ranks, sigma * known.step_s))
    return known.step_s / (known.step_s + behind + waits)


def fitted() -> tuple[float, float]:
    """Hidden share of a backward pass, and jitter as a share of a step: least squares over a grid."""
    grid = [(hidden / 100, sigma / 1000) for hidden in range(101) for sigma in range(101)]
    horovod = _known()[:3]

    def error(at: tuple[float, float]) -> float:
        return sum((_efficiency(each, *at, queue_s=0.0) - each.published) ** 2 for each in horovod)

    return min(grid, key=error)


def headlines() -> list[Headline]:
    """All headlines."""
    at = fitted()
    return [
        Headline(
            each.name,
            each.ranks,
            each.published,
            _efficiency(each, *at, costs.tree_control(each.ranks, TENSORS, MESSAGE_S)),
            _efficiency(each, *at, costs.flat_control(each.ranks, TENSORS, MESSAGE_S)),
        )
        for each in _known()
    ]
