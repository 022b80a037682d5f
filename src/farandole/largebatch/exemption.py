"""Exemption from weight decay and layer-wise rates: biases, and what normalization layers learn.

    [group["exempt"] for group in split({"params": [weight, bias], "lr": 3.2})]     # [False, True]

A group becomes two, of the parameters with two dimensions and more and of the others, unless it says itself what it is:
``{"params": [...], "exempt": False}``. Decay and layer-wise rates are for weights that a normalization makes invariant
to their scale, or that have fan-in; see Goyal et al. 2017, arXiv 1706.02677, section 5.3, and You et al. 2017.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Group: TypeAlias = dict[str, Any]


def split(group: Group) -> list[Group]:
    """One or two groups that say ``exempt``; exempt ones have no weight decay."""
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
    """Number of dimensions of a parameter, or of that in a pair of name and parameter.

    By its shape, which one that PyTorch has yet to initialize refuses to tell; its ``ndim`` is that of something else.
    """
    return len((param[1] if isinstance(param, tuple) else param).shape)
