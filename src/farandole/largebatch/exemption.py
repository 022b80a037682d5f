"""Exemption from weight decay and layer-wise rates: biases, and parameters of normalization layers.

    [group["exempt"] for group in split({"params": [weight, bias], "lr": 3.2})]     # [False, True]

A group is split in two, parameters with two dimensions or more and all others, unless the group has the key ``exempt``:
``{"params": [...], "exempt": False}``. Decay and layer-wise rates are for weights whose scale a normalization makes
irrelevant, or that have fan-in; see Goyal et al. 2017, arXiv 1706.02677, section 5.3, and You et al. 2017.
"""

from __future__ import annotations

from typing import Any, TypeAlias

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
