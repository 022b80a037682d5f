"""Broadcast of many named tensors at once: all of them, or an error on all ranks alike.

    broadcast_named(verbs, torch.Tensor, named_pairs(model.state_dict()), 0, global_process_set, in_place=True)

Each tensor is a collective of its own, ``parameter.NAME``, and none waits for another. Ranks whose tensors differ learn
so from the collective of that name; then those that all members have begun are awaited, so that the names are free.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from farandole.collective import Kind
from farandole.errors import MismatchError, UsageError
from farandole.runtime.collectives.objects import allgather_object
from farandole.runtime.collectives.verbs import Pending, Verbs
from farandole.runtime.session.process_sets import ProcessSet

T = TypeVar("T")


def named_pairs(params: Mapping[str, T] | Iterable[tuple[str, T] | T]) -> list[tuple[str, T]]:
    """Names and tensors of a mapping, of pairs, or of tensors, which get numbers."""
    pairs: list[Any] = list(params.items() if isinstance(params, Mapping) else params)
    return [p if isinstance(p, tuple) and len(p) == 2 else (f"number{i}", p) for i, p in enumerate(pairs)]


def broadcast_named(
    verbs: Verbs[T],
    kind: type,
    named: Iterable[tuple[str, T]],
    root_rank: int,
    process_set: ProcessSet,
    *,
    in_place: bool,
) -> list[T]:
    """Broadcast tensors of class ``kind``; raises ``UsageError`` or ``MismatchError`` on all ranks."""
    pending: dict[str, Pending[Any]] = {}
    results: list[T] = []
    error: MismatchError | UsageError | None = None
    for name, tensor in named:
        try:
            with verbs.telling(Kind.BROADCAST, f"parameter.{name}", process_set):
                _require(kind, name, tensor)
            request = verbs.broadcast([tensor], root_rank, f"parameter.{name}", process_set, in_place=in_place)
            pending[name] = request.begin()
        except UsageError as found:
            error = error or found
    begun = set(pending)
    try:
        while pending:
            results += pending.pop(next(iter(pending))).wait()
    except MismatchError as found:
        error = error or found
    if error is not None:
        _collect(pending, begun, process_set)
        raise error
    return results


def _require(kind: type, name: str, tensor: object) -> None:
    if not isinstance(tensor, kind):
        raise UsageError(
            f"broadcast_parameters: {name!r} is a {type(tensor).__name__}, expected a {kind.__name__}: "
            "give a mapping of names to them (a state_dict()), or a list of them or of (name, value) pairs"
        )


def _collect(pending: Mapping[str, Pending[Any]], begun: set[str], process_set: ProcessSet) -> None:
    """Wait for the broadcasts that all members have begun, after one has failed on all, so that names are free."""
    everywhere = begun.intersection(*allgather_object(begun, "broadcast_parameters.begun", process_set))
    for name, each in pending.items():
        if name in everywhere:
            with contextlib.suppress(MismatchError):
                each.wait()
