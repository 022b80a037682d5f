"""Optax transformation with the gradients of all ranks: ``DistributedOptimizer``."""

# Threads. The script may trace programs on several threads; each trace gets the reduction of a structure from
# ``TreeGradients``, which must make it only once. XLA's threads run the calls: see ``graphs/gradients``.
#
# Weights are additional inputs of the reducing call: ranks compare them in some steps. The call has no derivative for
# them and no output, so XLA does not copy them. A program without parameters compares none.

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np

from farandole.adapters.jax import adapter, new_array, toward_host, travelling, travels
from farandole.collective import ReduceOp
from farandole.errors import UsageError
from farandole.gradients.reduction_options import ReductionOptions, gradient_reduction
from farandole.graphs.calls import FUNCTION, forget
from farandole.graphs.gradients import GraphGradients, ReadWhenCompared
from farandole.jax.programs import await_programs, call, is_traced, keep_for_programs, release_kept
from farandole.jax.tracing import constant, is_tracing, lifted
from farandole.jax.trees import paths_of, refuse_sparse
from farandole.runtime.collectives.compression import CompressorLike, NoneCompressor
from farandole.runtime.session.process_sets import ProcessSet, global_process_set

Shape = tuple[tuple[int, ...], np.dtype[Any]]


class DistributedState(NamedTuple):
    """State of a ``DistributedOptimizer``: the optimizer's state, and the passes and the sum of an accumulation."""

    inner: Any
    passes: Any = None
    summed: Any = None

    def begun_anew(self) -> DistributedState:
        """State before the first pass of an accumulation, because the sum is of this rank's gradients only."""
        if self.passes is None:
            return self
        return self._replace(passes=jnp.zeros_like(self.passes), summed=jax.tree.map(jnp.zeros_like, self.summed))


def DistributedOptimizer(  # noqa: N802 (Horovod's name)
    optimizer: Any,
    op: int = ReduceOp.AVERAGE,
    *,
    compression: CompressorLike = NoneCompressor,
    backward_passes_per_step: int = 1,
    gradient_predivide_factor: float = 1.0,
    lag: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Optax transformation that uses the gradients of all ranks, inside and outside of ``jit``.

    >>> optimizer = hvd.DistributedOptimizer(optax.sgd(0.1, momentum=0.9))
    >>> state = optimizer.init(params)
    >>> updates, state = optimizer.update(gradients, state, params)

    All gradients are one call, in buckets, matched by their path in the pytree. ``op``: ``Average``, ``Sum``, ``Min``,
    ``Max`` or ``Product``. ``compression``: for the transfer. ``backward_passes_per_step``: sum the gradients of that
    many updates before the reduction; the other updates are zeros, and do not change the optimizer's state. The sum is
    in the state: after ``shutdown`` and ``init``, begin with a new state, or ``state.begun_anew()``.
    ``gradient_predivide_factor``: divide by it before the sum, and by *size* / factor after it. ``lag``: use the
    gradients of that many updates ago (at first zeros) while the current ones are reduced; pending gradients belong to
    this process, and are in no state. ``process_set``: the ranks that share gradients. ``None`` as a gradient outside
    of ``jit``: this rank has none and contributes zeros. Raises ``ValueError`` for invalid arguments.
    """
    try:
        import optax
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "DistributedOptimizer needs optax, which is not installed here: pip install optax", name="optax"
        ) from error

    if not isinstance(optimizer, optax.GradientTransformation):
        raise UsageError(
            f"DistributedOptimizer() of a {type(optimizer).__name__}: give a transformation of optax, as optax.sgd(0.1)"
        )
    if op == ReduceOp.ADASUM:
        raise UsageError(
            "DistributedOptimizer(op=Adasum): it combines changes of weights; allreduce the updates instead"
        )
    if backward_passes_per_step < 1 or lag < 0:
        raise UsageError(
            f"backward_passes_per_step={backward_passes_per_step}, lag={lag}: they start from 1, and from 0"
        )
    how = gradient_reduction(op, gradient_predivide_factor)
    if not is_tracing():
        release_kept()  # reductions of dropped optimizers
    gradients = TreeGradients(ReductionOptions(how, process_set=process_set), compression, lag)
    update = Update(optax.with_extra_args_support(optimizer), gradients, backward_passes_per_step)
    return optax.GradientTransformationExtraArgs(update.init, update)


@final
class Update:
    """``update`` and ``init`` of a distributed optimizer; ``gradients`` reduces."""

    def __init__(self, inner: Any, gradients: TreeGradients, passes: int) -> None:
        self._inner, self.gradients, self.passes = inner, gradients, passes

    def init(self, params: Any) -> DistributedState:
        """Initial state for ``params``."""
        self.gradients.note(params)
        inner = self._inner.init(params)
        if self.passes == 1:
            return DistributedState(inner)
        return DistributedState(inner, jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params))

    def __call__(self, updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        """Reduce the gradients, and compute updates by the inner optimizer. Collective."""
        if not isinstance(state, DistributedState):
            raise UsageError(
                f"update() with the state of another optimizer, a {type(state).__name__}: pass what init() of the "
                "DistributedOptimizer has returned"
            )
        if self.passes == 1:
            return self._step(updates, state, params, extra)
        summed = jax.tree.map(
            lambda own, total: total if own is None else total + own, updates, state.summed, is_leaf=_is_none
        )
        state = DistributedState(state.inner, state.passes + 1, summed)
        operands = updates, state, params, extra
        if is_traced(state.passes, *jax.tree.leaves(summed)):
            return jax.lax.cond(state.passes < self.passes, _skip, self._step_of_sum, *operands)  # type: ignore[no-any-return]
        return (_skip if int(state.passes) < self.passes else self._step_of_sum)(*operands)

    def _step(self, updates: Any, state: DistributedState, params: Any, extra: dict[str, Any]) -> tuple[Any, Any]:
        reduced = self.gradients.reduce(updates, params)
        updates, inner = self._inner.update(reduced, state.inner, params, **extra)
        return updates, state._replace(inner=inner)

    def _step_of_sum(
        self, updates: Any, state: DistributedState, params: Any, extra: dict[str, Any]
    ) -> tuple[Any, Any]:
        updates, done = self._step(state.summed, state, params, extra)
        return updates, DistributedState(
            done.inner, jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, state.summed)
        )


def _skip(updates: Any, state: DistributedState, params: Any, extra: dict[str, Any]) -> tuple[Any, Any]:  # noqa: ARG001
    return jax.tree.map(jnp.zeros_like, state.summed), state  # not from ``updates``, which may contain ``None``


def _is_none(leaf: Any) -> bool:
    return leaf is None


@final
class TreeGradients:
    """Reduction of pytrees of gradients, with one ``GraphGradients`` for each structure and its shapes."""

    def __init__(self, terms: ReductionOptions, compression: CompressorLike, lag: int) -> None:
        self._terms, self._compression, self._lag = terms, compression, lag
        self._lock = threading.Lock()  # guards the three dicts below: several threads may trace programs
        self._made: dict[tuple[tuple[str, ...], tuple[Shape, ...]], GraphGradients] = {}
        weakref.finalize(self, _outlive, self._made).atexit = False
        self._known: dict[tuple[str, ...], tuple[Shape, ...]] = {}
        self._whole: dict[tuple[str, ...], tuple[Shape | None, ...]] = {}  # before compression, with ``None`` leaves

    def note(self, params: Any) -> None:
        """Remember shapes and dtypes, for gradients that this rank lacks."""
        names, leaves, _ = named_leaves(self._compression.compress(params)[0])
        _, whole, _ = named_leaves(params)
        with self._lock:
            self._known[_present(names, leaves)] = tuple(map(_shape, filter(_is_given, leaves)))
            self._whole[names] = tuple(None if leaf is None else _shape(leaf) for leaf in whole)

    def reduce(self, gradients: Any, params: Any) -> Any:
        """Reduce the ``gradients`` of a step. Collective."""
        refuse_sparse("DistributedOptimizer", gradients)
        whole = jax.tree.leaves(gradients, is_leaf=_is_none)
        if any(map(_is_none, whole)) and not is_traced(*whole) and not is_tracing():
            return self._reduce_some(gradients, params)
        small, context = self._compression.compress(gradients)
        leaves, structure = jax.tree.flatten(small)  # here ``None`` is a part of the structure, as in the parameters
        names = _present(*named_leaves(small)[:2])
        reduced = jax.tree.unflatten(structure, self._reduced(names, leaves, _compared(names, params)))
        return self._compression.decompress(reduced, context)

    def _reduce_some(self, gradients: Any, params: Any) -> Any:
        """``reduce`` if this rank lacks some gradients; zeros give the context to decompress the others'."""
        if params is not None:
            self.note(params)
        names, leaves, structure = named_leaves(gradients)
        whole = self._whole.get(names)
        if whole is None:
            raise UsageError("gradients of which some are None: call init(params) first, or pass params to update()")
        filled = [
            jnp.zeros(*like) if leaf is None and like is not None else leaf
            for leaf, like in zip(leaves, whole, strict=True)
        ]
        small, context = self._compression.compress(jax.tree.unflatten(structure, filled))
        zeros, trainable = jax.tree.flatten(small)
        own = [leaf for leaf, like in zip(leaves, filled, strict=True) if like is not None]
        carried = [None if leaf is None else each for leaf, each in zip(own, zeros, strict=True)]
        names = _present(names, filled)
        reduced = self._reduced(names, carried, _compared(names, params))
        found = [zero if each is None else each for each, zero in zip(reduced, zeros, strict=True)]
        back = jax.tree.leaves(self._compression.decompress(jax.tree.unflatten(trainable, found), context))
        given = [None if each is None else result for each, result in zip(reduced, back, strict=True)]
        return jax.tree.unflatten(trainable, given)

    def of(self, names: tuple[str, ...], shapes: tuple[Shape, ...]) -> GraphGradients:
        """Reduction of gradients with these names, shapes and dtypes."""
        with self._lock:
            self._known[names] = shapes
            found = self._made.get((names, shapes))
            if found is None:
                found = self._made[names, shapes] = GraphGradients(shapes, names, self._terms, "jax", self._lag)
            return found

    def reducing(self, params: Any) -> GraphGradients:
        """Reduction of the gradients of ``params``."""
        self.note(params)
        names = _present(*named_leaves(params)[:2])
        return self.of(names, self._known[names])

    def _reduced(self, names: tuple[str, ...], leaves: Sequence[Any], weights: Sequence[Any]) -> list[Any]:
        if is_traced(*leaves) or is_tracing():
            return self._traced(names, leaves, weights)
        # In JAX's dtypes, as in a program: NumPy arrays may have wider ones.
        leaves = [None if leaf is None else jnp.asarray(leaf) for leaf in leaves]
        arrays = [None if leaf is None else adapter.dense(leaf) for leaf in toward_host(leaves)]
        if any(each is None for each in arrays):
            shapes = self._known[names]
        else:
            shapes = tuple((tuple(each.shape), each.dtype) for each in arrays if each is not None)
        gradients = self.of(names, shapes)
        if gradients.is_in_programs:
            await_programs()  # this step must not overtake them
        reduced = gradients.reduce(arrays, weights=ReadWhenCompared(weights, np.asarray))
        return [
            leaf if new is None or new is old else new_array(new, leaf)
            for new, old, leaf in zip(reduced, arrays, leaves, strict=True)
        ]

    def _traced(self, names: tuple[str, ...], leaves: Sequence[Any], weights: Sequence[Any]) -> list[Any]:
        leaves = [leaf if isinstance(leaf, jax.core.Tracer) else constant(leaf) for leaf in lifted(leaves)]
        for leaf in leaves:
            travelling(leaf.dtype)
        gradients = self.of(names, tuple((tuple(leaf.shape), leaf.dtype) for leaf in leaves))
        forget(FUNCTION, gradients.name)
        results = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
        return call(gradients.spec, [*leaves, *map(jax.lax.stop_gradient, weights)], results)


def _outlive(made: dict[Any, GraphGradients]) -> None:
    """Keep the reductions of a freed optimizer for programs that have yet to run."""
    if kept := [gradients for gradients in made.values() if gradients.is_in_programs]:
        keep_for_programs(kept)


def _compared(names: tuple[str, ...], params: Any) -> list[Any]:
    """Parameters whose gradients have these ``names``, for ranks to compare; [] unless all are comparable."""
    found, leaves, _ = named_leaves(params)
    return comparable(list(filter(_is_given, leaves))) if _present(found, leaves) == names else []


def comparable(leaves: Sequence[Any]) -> list[Any]:
    """``leaves`` if ranks can compare all of them, else []."""
    return list(leaves) if all(map(_is_comparable, leaves)) else []


def _is_comparable(leaf: Any) -> bool:
    """True for an array in one piece, now or when the program runs."""
    if not hasattr(leaf, "dtype") or not travels(leaf.dtype):
        return False
    if not isinstance(leaf, jax.Array) or is_traced(leaf):
        return True
    return len(leaf.sharding.device_set) == 1


def _is_given(leaf: Any) -> bool:
    return leaf is not None


def _present(names: Sequence[str], leaves: Sequence[Any]) -> tuple[str, ...]:
    """Names of the ``leaves`` that are not ``None``."""
    return tuple(name for name, leaf in zip(names, leaves, strict=True) if leaf is not None)


def _shape(leaf: Any) -> Shape:
    return tuple(np.shape(leaf)), jnp.asarray(leaf).dtype


def named_leaves(tree: Any) -> tuple[tuple[str, ...], list[Any], Any]:
    """Names, leaves and structure of a tree, in which ``None`` is a leaf."""
    pairs, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_none)
    names = tuple(paths_of([path for path, _ in pairs]))
    return names, [leaf for _, leaf in pairs], structure


def broadcast_optimizer_state(state: Any, root_rank: int, process_set: ProcessSet = global_process_set) -> Any:
    """Return the optax optimizer state of the rank ``root_rank``.

    >>> state = hvd.broadcast_optimizer_state(optimizer.init(params), root_rank=0)
    """
    from farandole.jax import ops

    return ops.broadcast_parameters({"optimizer": state}, root_rank, process_set)["optimizer"]
