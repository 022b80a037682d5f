"""Layer-wise learning rates from the norms of a layer's weights and of its gradient.

>>> lars_rate(weights=9.4, gradient=0.135, coefficient=1.0)    # AlexNet's conv3 at the first step
69.62962962962963

If a norm is zero, the rate is 1, as in an optimizer without layer-wise rates.

Checks of the settings of optimizers for large batches.

at_least("weight_decay", 1e-4)
between("momentum", 0.9)

Exemption from weight decay and layer-wise rates: biases, and parameters of normalization layers.

    [group["exempt"] for group in split({"params": [weight, bias], "lr": 3.2})]     # [False, True]

A group is split in two, parameters with two dimensions or more and all others, unless the group has the key ``exempt``:
``{"params": [...], "exempt": False}``. Decay and layer-wise rates are for weights whose scale a normalization makes
irrelevant, or that have fan-in; see Goyal et al. 2017, arXiv 1706.02677, section 5.3, and You et al. 2017.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from farandole.errors import UsageError

Group: TypeAlias = dict[str, Any]


def split(group: Group) -> list[Group]:
    """One or two groups with the key ``exempt``; exempt groups have no weight decay."""
    params = group["params"]
    if "exempt" in group or isinstance(params, set):  # sets have no order: PyTorch refuses them
        return [_marked(group, params, bool(group.get("exempt")))]
    every = [params] if hasattr(params, "ndim") else list(params)
    small = [param for param in every if _dimensions(param) < 2]
    large = [param for param in every if _dimensions(param) >= 2]
    if not small or not large:
        return [_marked(group, every, not large and bool(small))]
    return [_marked(group, large, False), _marked(group, small, True)]


def _marked(group: Group, params: Any, exempt: bool) -> Group:
    return {**group, "params": params, "exempt": exempt, **({"weight_decay": 0.0} if exempt else {})}


def _dimensions(param: Any) -> int:
    """Number of dimensions of a parameter, or of the parameter in a pair of name and parameter.

    From its shape, which raises for a parameter that PyTorch has yet to initialize; its ``ndim`` would be wrong.
    """
    return len((param[1] if isinstance(param, tuple) else param).shape)


def at_least(name: str, value: float, least: float = 0.0) -> None:
    """Refuse a setting below ``least``, and a setting that is no number."""
    if not float(value) >= least:
        raise UsageError(f"{name}={value}: expected a number from {least:g}")


def between(name: str, value: float) -> None:
    """Refuse a share that is not in [0, 1)."""
    if not 0.0 <= value < 1.0:
        raise UsageError(f"{name}={value}: expected a number from 0, below 1")


def lars_rate(weights: float, gradient: float, coefficient: float, weight_decay: float = 0.0) -> float:
    """λ = η‖w‖ / (‖g‖ + β‖w‖): You, Gitman, Ginsburg 2017, arXiv 1708.03888, equation 6.

    ``coefficient`` is η: 0.001 to 0.02 in practice. Some descriptions leave it out; every step would then change a
    layer by as much as its own norm, and training would diverge.
    """
    if not weights or not gradient:
        return 1.0
    return coefficient * weights / (gradient + weight_decay * weights)


def clipped_rate(rate: float, lr: float) -> float:
    """Factor of the gradients in LARC's mode *clip*: min(λ, γ) / γ, so that λ is at most the ``lr`` γ."""
    return min(rate / lr, 1.0) if lr else 1.0


def lamb_rate(weights: float, update: float) -> float:
    """‖w‖ / ‖u‖, where u is Adam's update with the decay: You et al. 2020, arXiv 1904.00962, algorithm 2, φ(z) = z."""
    return weights / update if weights and update else 1.0
