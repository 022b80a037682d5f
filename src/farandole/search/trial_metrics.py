"""Metrics of a trial: numbers by name that it reports beside its value; the search decides by the value alone.

numbers_of({"accuracy": np.float32(0.5)}, parameters={"lr": 0.1})       # {"accuracy": 0.5}
by_name({1: {"accuracy": 0.5}, 2: {"accuracy": 0.75}})                  # {"accuracy": {1: 0.5, 2: 0.75}}
"""

from __future__ import annotations

import functools
import keyword
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

from farandole.errors import UsageError

P = ParamSpec("P")
S = TypeVar("S")

ARGUMENTS = ("value", "epoch", "noise")
"""Arguments of ``Trial.report``, which cannot be names of metrics."""


def numbers_of(told: Mapping[str, Any], parameters: Collection[str]) -> dict[str, float]:
    """Metrics as floats; raises ``UsageError`` for a value that is no number, and for an invalid name.

    >>> numbers_of({"accuracy": 1}, parameters=("lr",))
    {'accuracy': 1.0}
    """
    for name in told:
        own = plain_name(name, parameters)
        if name != own:
            why = "the trial's hyper-parameter" if name in parameters else "no name of a metric"
            raise UsageError(f"trial.report({name}=...): {name!r} is {why}; type {own}=...")
    return {name: number_of(name, value) for name, value in told.items()}


def plain_name(name: str, parameters: Collection[str]) -> str:
    """A valid name for a metric; a name that is valid stays the same.

    >>> plain_name("top-5 error", ()), plain_name("lr", ("lr",)), plain_name("val_loss", ("lr",))
    ('top_5_error', 'lr_now', 'val_loss')
    """
    own = re.sub(r"\W", "_", name)
    own = own if own.isidentifier() else f"m_{own}"
    if keyword.iskeyword(own):
        own += "_"
    while own in parameters or own in ARGUMENTS:
        own += "_now"
    return own


def number_of(name: str, value: Any) -> float:
    """A number of any type, such as NumPy's or a framework's, as a float."""
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        what = f"{value!r:.40}" if isinstance(value, str) else f"a {type(value).__name__}"
        raise UsageError(f"trial.report({name}=...) takes one number, found {what}") from error


def by_name(metrics: Mapping[int, Mapping[str, float]]) -> dict[str, dict[int, float]]:
    """Metrics by name and epoch, from metrics by epoch and name.

    >>> by_name({1: {"accuracy": 0.5}})
    {'accuracy': {1: 0.5}}
    """
    found: dict[str, dict[int, float]] = {}
    for epoch, values in sorted(metrics.items()):
        for name, value in values.items():
            found.setdefault(name, {})[epoch] = value
    return found


def refusing_collisions(report: Callable[Concatenate[S, P], None]) -> Callable[Concatenate[S, P], None]:
    """Make ``Trial.report`` suggest a name for a metric that has the name of an argument that is also given."""

    @functools.wraps(report)
    def checked(self: S, /, *args: P.args, **kwargs: P.kwargs) -> None:
        for name in ARGUMENTS[: len(args)]:
            if name in kwargs:
                own = plain_name(name, ())
                raise UsageError(f"trial.report({name}=...) is given twice; for a metric of that name type {own}=...")
        report(self, *args, **kwargs)

    return checked
