"""Defects planted in Farandole while a plan is executed, to show that the fuzzer would find such defects.

with planted("factor", rank):
    ...                                     # gradients of rank 1 count for more than those of the others

Each changes one function of the package in this process, until the block ends. ``FrameworkPlan.planted`` names one.

Threads: a compiled program calls the changed function in a thread of its framework; the plan waits for that thread.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from farandole.gradients.snapshots import StepSnapshots
from farandole.graphs.gradients import GraphGradients

BAD_RANK = 1
"""Rank of a defect that a single rank has."""


def _factor(rank: int) -> Any:
    """Gradients of one rank count 1 % more."""

    def change(reduce: Callable[..., Any], given: Any, *rest: Any, **named: Any) -> Any:
        more = [None if each is None else each * each.dtype.type(1.01) for each in given] if rank == BAD_RANK else given
        return reduce(more, *rest, **named)

    return _around_reduction(change)


def _swapped(_rank: int) -> Any:
    """The first numbers of two gradients are swapped, on every rank."""

    def change(reduce: Callable[..., Any], *given: Any, **named: Any) -> Any:
        first, second, *others = (None if each is None else each.copy() for each in reduce(*given, **named))
        if first is not None and second is not None:
            first.flat[0], second.flat[0] = second.flat[0], first.flat[0]
        return [first, second, *others]

    return _around_reduction(change)


def _late(rank: int) -> Any:
    """One rank gets the result of the last time."""
    last: list[Any] = []

    def change(reduce: Callable[..., Any], *given: Any, **named: Any) -> Any:
        found = [None if each is None else each.copy() for each in reduce(*given, **named)]
        late, last[:] = list(last) or found, found
        return late if rank == BAD_RANK else found

    return _around_reduction(change)


def _blind(_rank: int) -> Any:
    """No step is compared."""
    return mock.patch.object(StepSnapshots, "is_due", return_value=False)


def _unnamed(_rank: int) -> Any:
    """Collectives of a compiled program are matched in the order in which a rank traces them, not by their names."""
    from farandole.jax import collectives

    numbers = itertools.count()
    return mock.patch.object(collectives, "named", side_effect=lambda *_: f"call {next(numbers)}")


def _stale(_rank: int) -> Any:
    """Constants and tables of Keras's layers are not updated; seeds of random layers are copied."""
    from farandole.adapters import layer_tables
    from farandole.keras import variables

    changes = contextlib.ExitStack()
    changes.enter_context(mock.patch.multiple(layer_tables, refresh=mock.DEFAULT, write=mock.DEFAULT))
    changes.enter_context(mock.patch.object(variables, "is_seed", return_value=False))
    return changes


def _around_reduction(change: Callable[..., Any]) -> Any:
    reduce = GraphGradients.reduce
    return mock.patch.object(
        GraphGradients, "reduce", lambda self, *given, **named: change(reduce.__get__(self), *given, **named)
    )


DEFECTS: dict[str, Callable[[int], Any]] = {
    "factor": _factor, "swapped": _swapped, "late": _late, "blind": _blind, "unnamed": _unnamed,
    "stale": _stale,
}  # fmt: skip


@contextlib.contextmanager
def planted(name: str, rank: int) -> Iterator[None]:
    """Context in which Farandole has the defect of that name; none with an empty name."""
    with DEFECTS[name](rank) if name else contextlib.nullcontext():
        yield
