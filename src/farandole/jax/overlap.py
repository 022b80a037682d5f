"""Reduction of gradients during the backward pass: ``value_and_grad``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from farandole.collective import ReduceOp
from farandole.errors import UsageError
from farandole.jax.collectives import Collective, run_collective
from farandole.jax.programs import named, place
from farandole.runtime.lanes.reduction import reduction
from farandole.runtime.session.process_sets import ProcessSet, global_process_set

_BUCKET_BYTES = 4 << 20


def value_and_grad(
    function: Callable[..., Any],
    has_aux: bool = False,
    *,
    argnums: int | Sequence[int] = 0,
    op: int = ReduceOp.AVERAGE,
    name: str | None = None,
    bucket_bytes: int = _BUCKET_BYTES,
    process_set: ProcessSet = global_process_set,
) -> Callable[..., tuple[Any, Any]]:
    """``jax.value_and_grad`` with the gradients of all ranks; the value is this rank's.

    >>> loss, gradients = jax.jit(hvd.value_and_grad(loss_of))(params, x, y)

    The gradients of a bucket (adjacent arrays in the pytree, up to ``bucket_bytes``) are reduced as soon as the
    backward pass has computed all of them, while the pass continues. Use it instead of ``DistributedOptimizer`` (never
    both) if the network would be idle during the backward pass. ``argnums``: positions of the arguments, as in JAX.
    ``name``: name of the calls, unique within a program. Raises ``UsageError`` if ``op`` is neither ``Average`` nor
    ``Sum``.
    """
    how = reduction(None, op, 1.0, 1.0).checked()
    if how.op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise UsageError(f"value_and_grad(op={how.op.label}): gradients are averaged or summed, pass op=Average or Sum")

    def reduced(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        where = place()
        positions = [each % len(args) for each in ([argnums] if isinstance(argnums, int) else argnums)]

        def through(*chosen: Any) -> Any:
            leaves, structure = jax.tree.flatten(chosen)
            base = named("value_and_grad", name, where, leaves)
            tapped: list[Any] = []
            for i, (begin, end) in enumerate(_buckets(leaves, bucket_bytes)):
                each = None if base is None else f"{base}.{i}"
                what = Collective("allreduce", each, process_set, how, where=f"{where}.{i}")
                tapped += _tap(what, *leaves[begin:end])
            given = list(args)
            for position, value in zip(positions, jax.tree.unflatten(structure, tapped), strict=True):
                given[position] = value
            return function(*given, **kwargs)

        every = jax.value_and_grad(through, argnums=tuple(range(len(positions))), has_aux=has_aux)
        value, gradients = every(*(args[position] for position in positions))
        return value, gradients[0] if isinstance(argnums, int) else gradients

    return reduced


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _tap(what: Collective, *leaves: Any) -> tuple[Any, ...]:  # noqa: ARG001 (its backward pass has it)
    """Identity on the arrays; its backward pass reduces their gradients."""
    return leaves


def _forward(what: Collective, *leaves: Any) -> tuple[tuple[Any, ...], None]:  # noqa: ARG001
    return leaves, None


def _backward(what: Collective, _: None, gradients: Sequence[Any]) -> tuple[Any, ...]:
    where = [i for i, each in enumerate(gradients) if each.dtype != jax.dtypes.float0]
    back: list[Any] = [None] * len(gradients)
    for i, found in zip(where, run_collective(what, [gradients[i] for i in where])[0], strict=True):
        back[i] = found
    return tuple(back)


_tap.defvjp(_forward, _backward)


def _buckets(leaves: Sequence[Any], bucket_bytes: int) -> list[tuple[int, int]]:
    """Begin and end of each bucket; a larger array is a bucket by itself."""
    found: list[tuple[int, int]] = []
    begin = size = 0
    for i, leaf in enumerate(leaves):
        nbytes = np.size(leaf) * np.dtype(leaf.dtype).itemsize
        if i > begin and size + nbytes > bucket_bytes:
            found.append((begin, i))
            begin, size = i, 0
        size += nbytes
    return [*found, (begin, len(leaves))] if len(leaves) > begin else found
