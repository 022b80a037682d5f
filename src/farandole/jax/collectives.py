"""Differentiable collectives on lists of arrays, eager or under trace.

    [mean] = run(Collective("allreduce", "loss", global_process_set, how=Reduction()), [loss])

Gradients are derivatives of the sum of the losses of all ranks, as in ``farandole.torch``. So a backward pass runs
collectives too, and every member must run it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from farandole.adapters.jax import placed, toward_host, travelling, verbs
from farandole.collective import ReduceOp, Reduction
from farandole.errors import UnsupportedError, UsageError
from farandole.graphs.calls import Spec
from farandole.jax.programs import await_runs, call, is_mapped, is_traced, named, numbered, place
from farandole.jax.tracing import constant, lifted
from farandole.runtime.collectives.verbs import number_of
from farandole.runtime.session.init import takes_part
from farandole.runtime.session.process_sets import ProcessSet

_SUM = Reduction(ReduceOp.SUM)
_ELEMENTWISE = ("allreduce", "broadcast")


@final
@dataclass(frozen=True)
class Collective:
    """One collective of ``run_collective``. ``rows``: rows of each member's part; ``None``: as here, or as received."""

    verb: str
    name: str | None
    process_set: ProcessSet
    how: Reduction = field(default_factory=Reduction)
    root: int = -1
    splits: tuple[int, ...] | None = None
    rows: tuple[int, ...] | None = None
    where: str = ""
    shapes: tuple[tuple[int, ...], ...] = ()

    def derived(self, verb: str, suffix: str = "grad", **changes: Any) -> Collective:
        """Collective of the backward pass, with a name derived from this one."""
        name = None if self.name is None else f"{self.name}.{suffix}"
        plain = Collective(verb, name, self.process_set, where=f"{self.where}.{suffix}")
        return replace(plain, **changes)

    @property
    def is_elementwise(self) -> bool:
        """True if a batch of calls equals one call of the batch (for ``vmap``)."""
        return self.verb in _ELEMENTWISE and self.how.op is not ReduceOp.ADASUM

    @property
    def members(self) -> int:
        """Number of members."""
        return len(self.process_set.ranks)

    @property
    def member(self) -> int:
        """Index of this rank among the members."""
        return self.process_set.rank() or 0


def run_collective(what: Collective, leaves: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Run the collective, or add it to the program under trace; return results, and the rows from each member.

    Raises the errors of the eager verbs; under trace also ``UsageError`` if the shape of a result is not known.
    """
    leaves = lifted(leaves)
    if not is_traced(*leaves):
        return _eager(what, leaves)
    _require_member(what)
    if not what.is_elementwise and is_mapped(*leaves):
        raise UnsupportedError(
            f"{what.verb}{f' with op={what.how.op.label}' if what.verb == 'allreduce' else ''} under vmap: its result "
            "is not made element by element, so call it outside of the mapped function, on the whole batch"
        )
    leaves = [leaf if isinstance(leaf, jax.core.Tracer) else constant(leaf) for leaf in leaves]
    where = what.where or place()
    what = replace(
        what,
        where=where,
        name=named(what.verb, what.name, where, leaves),
        shapes=tuple(tuple(leaf.shape) for leaf in leaves),
    )
    found = _differentiable(what, *leaves)
    return list(found[: len(leaves)]), list(found[len(leaves) :])


def _eager(what: Collective, leaves: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    await_runs(what.verb, what.name)
    given, rows = toward_host(leaves), []
    if what.verb == "allreduce":
        results = verbs.allreduce(given, what.name, what.how, what.process_set).run()
    elif what.verb == "broadcast":
        results = verbs.broadcast(given, what.root, what.name, what.process_set).run()
    elif what.verb == "reducescatter":
        results = verbs.reducescatter(given, what.name, what.how, what.process_set).run()
    elif what.verb == "allgather":
        gathered = verbs.allgather(given, what.name, what.process_set).run()
        results, rows = [result for result, _ in gathered], [np.array(counts, np.int32) for _, counts in gathered]
    else:
        received, counts = verbs.alltoall(given[0], what.splits, what.name, what.process_set).run()
        results, rows = [received], [np.array(counts, np.int32)]
    return [placed(leaf, result) for leaf, result in zip(leaves, results, strict=True)], rows


# -- under trace ----------------------------------------------------------------------------------------------------


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _differentiable(what: Collective, *leaves: Any) -> tuple[Any, ...]:
    """Results, then rows: values, or tracers of a program."""
    if not is_traced(*leaves):  # ``jax.grad`` outside of a program: the values are known
        known, came = _eager(what, leaves)
        return *known, *map(jnp.asarray, came)
    rows = tuple(_rows(what, leaf.shape) for leaf in leaves) if what.verb in ("allgather", "alltoall") else ()
    spec = Spec(
        what.verb,
        what.name or f"mapped.{what.where}",
        int(what.how.op),
        what.how.prescale,
        what.how.postscale,
        number_of(what.process_set),
        what.root,
        what.splits,
        rows=rows,
        seat=None if what.verb == "allreduce" else (what.member, what.members),
    )
    for leaf in leaves:
        travelling(leaf.dtype)
    results = [jax.ShapeDtypeStruct(_shape(what, leaf.shape), leaf.dtype) for leaf in leaves]
    found = call(spec.encode(), leaves, results, what.is_elementwise)
    return *found, *(jnp.array(each, jnp.int32) for each in rows)


def _shape(what: Collective, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of a result, for the compiler."""
    if what.verb in _ELEMENTWISE:
        return shape
    if what.verb == "allgather":
        return sum(_rows(what, shape)), *shape[1:]
    if not shape:
        raise UnsupportedError(f"{what.verb} cuts dimension 0, but the array is a scalar: give it at least one")
    if what.verb == "alltoall":
        return sum(_rows(what, shape)), *shape[1:]
    return _shares(shape[0], what.members)[what.member], *shape[1:]


def _rows(what: Collective, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Numbers of rows from each member; under trace they must not depend on other ranks."""
    if what.rows is not None:
        return what.rows
    rows = shape[0] if shape else 1
    if what.verb == "allgather":
        return (rows,) * what.members
    if what.splits is not None:
        raise UsageError(
            "alltoall with splits inside of a compiled program: how many rows arrive depends on the other ranks, and "
            "shapes must be known there, so leave splits out or call it outside"
        )
    if rows % what.members:
        raise UsageError(f"alltoall of {rows} rows for {what.members} members: they cannot be split evenly")
    return (rows // what.members,) * what.members


def _shares(rows: int, members: int) -> list[int]:
    return [rows // members + (i < rows % members) for i in range(members)]


def _require_member(what: Collective) -> None:
    if not takes_part(what.process_set, f"{what.verb} in a program"):
        raise UsageError(f"{what.verb}: this rank is not in {what.process_set}: call it only where it is included()")
    if what.verb == "broadcast" and what.root not in what.process_set.ranks:
        raise UsageError(
            f"broadcast from root_rank={what.root!r}, but the process set holds the ranks {what.process_set.ranks}: "
            "the root is a global rank among them"
        )


# -- backward ---------------------------------------------------------------------------------------------------------


def _forward(what: Collective, *leaves: Any) -> Any:
    found = _differentiable(what, *leaves)
    return found, found[len(leaves) :]


def _backward(what: Collective, rows: Sequence[Any], given: Sequence[Any]) -> tuple[Any, ...]:
    """Gradients of the leaves; ``None`` for leaves without a gradient (integers)."""
    cotangents = given[: len(what.shapes)]
    where = [i for i, each in enumerate(cotangents) if each.dtype != jax.dtypes.float0]
    floating = [cotangents[i] for i in where]
    back: list[Any] = [None] * len(cotangents)
    if not floating:
        return tuple(back)
    for i, found in zip(where, _BACK[what.verb](what, floating, where, rows), strict=True):
        back[i] = found
    return tuple(back)


def _linear(what: Collective) -> None:
    if what.how.op not in (ReduceOp.SUM, ReduceOp.AVERAGE):
        raise UnsupportedError(
            f"the gradient of {what.verb} is known for op=Sum and op=Average, found op={what.how.op.label}: "
            "call it on jax.lax.stop_gradient(x)"
        )


def _back_allreduce(what: Collective, given: list[Any], _: list[int], __: Sequence[Any]) -> list[Any]:
    _linear(what)
    return _apply(what.derived("allreduce", how=what.how), given)


def _back_broadcast(what: Collective, given: list[Any], _: list[int], __: Sequence[Any]) -> list[Any]:
    total = _apply(what.derived("allreduce", how=_SUM), given)
    is_root = what.process_set.ranks[what.member] == what.root
    return total if is_root else [jnp.zeros_like(each) for each in total]


def _back_reducescatter(what: Collective, given: list[Any], where: list[int], _: Sequence[Any]) -> list[Any]:
    _linear(what)
    scale = what.how.prescale * what.how.postscale
    if what.how.op is ReduceOp.AVERAGE:
        scale /= what.members
    gathered = []
    for i, each in zip(where, given, strict=True):
        rows = tuple(_shares(what.shapes[i][0], what.members))
        gathered += _apply(what.derived("allgather", f"grad{i}", rows=rows), [each])
    return [each * jnp.asarray(scale, each.dtype) for each in gathered]


def _back_allgather(what: Collective, given: list[Any], where: list[int], rows: Sequence[Any]) -> list[Any]:
    back = []
    for i, each in zip(where, given, strict=True):
        mine = what.shapes[i][0] if what.shapes[i] else 1
        way = what.derived("alltoall", f"grad{i}", splits=_known(what, i, rows), rows=(mine,) * what.members)
        [received] = _apply(way, [each])
        back.append(received.reshape(what.members, *what.shapes[i]).sum(axis=0))
    return back


def _back_alltoall(what: Collective, given: list[Any], _: list[int], rows: Sequence[Any]) -> list[Any]:
    own = what.splits or (what.shapes[0][0] // what.members,) * what.members
    return _apply(what.derived("alltoall", splits=_known(what, 0, rows), rows=own), given)


def _known(what: Collective, i: int, rows: Sequence[Any]) -> tuple[int, ...]:
    """Numbers of rows from the members: as received, or under trace as known beforehand."""
    return _rows(what, what.shapes[i]) if is_traced(rows[i]) else tuple(map(int, rows[i]))


def _apply(what: Collective, leaves: list[Any]) -> list[Any]:
    name = what.name and numbered(what.verb, what.name, leaves)
    what = replace(what, name=name, shapes=tuple(tuple(leaf.shape) for leaf in leaves))
    return list(_differentiable(what, *leaves)[: len(leaves)])


_BACK = {
    "allreduce": _back_allreduce,
    "broadcast": _back_broadcast,
    "reducescatter": _back_reducescatter,
    "allgather": _back_allgather,
    "alltoall": _back_alltoall,
}

_differentiable.defvjp(_forward, _backward)
