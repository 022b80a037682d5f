"""Gradients of all ranks for training loops without optax, and for virtual workers: ``DistributedGradients``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import jax
import numpy as np

from farandole.adapters.jax import is_cut, new_array, toward_host
from farandole.collective import ReduceOp
from farandole.errors import UsageError
from farandole.gradients.shard_reducer import Shard
from farandole.jax.optimizer import named_leaves
from farandole.jax.programs import is_traced
from farandole.jax.tracing import is_tracing
from farandole.jax.trees import refuse_sparse
from farandole.numpy.gradients import DistributedGradients as NumpyGradients
from farandole.runtime.session.process_sets import ProcessSet, global_process_set


@final
class JaxDistributedGradients:
    """Reduced gradients as a pytree, outside of ``jit``; with virtual workers, the same bits on any number of ranks.

    >>> average = hvd.DistributedGradients(params, virtual_workers=8)
    >>> loss_and_gradients = jax.jit(jax.value_and_grad(loss_of))
    >>> for x, y in global_batches:                         # the same ones on every rank
    ...     for shard in average.shards(len(x)):            # those of the 8 shards that this rank computes
    ...         loss, gradients = loss_and_gradients(params, x[shard.rows], y[shard.rows])
    ...         average.add(gradients)
    ...     params, state = step(params, state, average.total(params))

    Step with the plain optimizer: a distributed one would reduce again. ``like``: a pytree of arrays with the shapes
    and dtypes of the gradients, for example the parameters. ``op``: ``Average`` or ``Sum``; without virtual workers
    also ``Min``, ``Max`` and ``Product``. ``process_set``: the ranks that share gradients. ``virtual_workers``: number
    of shards of a global batch, at least the number of ranks. ``seed``: seed of the generators of Python and NumPy
    inside a shard. Raises ``ValueError`` for invalid arguments.
    """

    def __init__(
        self,
        like: Any,
        op: int = ReduceOp.AVERAGE,
        *,
        process_set: ProcessSet = global_process_set,
        virtual_workers: int | None = None,
        seed: int = 0,
    ) -> None:
        refuse_sparse("DistributedGradients", like)
        self._names, leaves, self._structure = named_leaves(like)
        shaped = {
            name: np.broadcast_to(np.zeros((), jax.numpy.asarray(leaf).dtype), np.shape(leaf))
            for name, leaf in zip(self._names, leaves, strict=True)
            if leaf is not None  # ``None`` is no parameter and has no gradient
        }
        self._trained = frozenset(shaped)
        self._inner = NumpyGradients(shaped, op, process_set=process_set, virtual_workers=virtual_workers, seed=seed)
        self._given: list[Any] = [None] * len(leaves)
        """Input gradients until their reduction: the results are put on the same devices."""

    def __call__(self, gradients: Any, params: Any = None) -> Any:
        """Reduced ``gradients``, new arrays in a pytree like that of the parameters. Collective.

        ``None`` instead of a gradient: this rank has none and contributes zeros. ``params``: the current values that
        the gradients will change; at some steps the ranks compare them, and raise ``DivergenceError`` if they differ.
        Raises ``UsageError`` for another pytree, or inside ``jit``.
        """
        return self._made(self._inner(self._listed(gradients), self._compared(params)))

    @property
    def steps(self) -> int:
        """Number of steps with virtual workers. Shards' random streams depend on it: save it with the parameters."""
        return self._inner.steps

    @steps.setter
    def steps(self, steps: int) -> None:
        self._inner.steps = steps

    def shards(self, rows: int) -> Iterator[Shard]:
        """Iterate over this rank's shards of a global batch of ``rows`` rows; needs ``virtual_workers``.

        >>> for shard in average.shards(len(x)):
        ...     key = jax.random.fold_in(jax.random.fold_in(base_key, average.steps), shard.number)     # of dropout
        ...     average.add(gradients_of(params, x[shard.rows], y[shard.rows], key))

        Each loss is the mean over its shard's rows. Apply ``jit`` inside this loop and not around it: then the
        gradients of a shard are one program, the same on every rank.
        """
        return self._inner.shards(rows)

    def add(self, gradients: Any) -> None:
        """Add the gradients of the current shard.

        >>> average.add({"params": gradients, "statistics": new_statistics})

        Other arrays in ``like``, for example the running statistics of batch norm, are averaged over the shards, too.
        Raises ``UsageError`` for another pytree, or inside ``jit``.
        """
        self._inner.add(self._listed(gradients))

    def total(self, params: Any = None) -> Any:
        """Gradients of the global batch, over the shards of all ranks. Collective; for ``params`` see ``__call__``."""
        return self._made(self._inner.total(self._compared(params)))

    def rejoin(self, label: str) -> None:
        """Reduce with the ranks of a new generation; ``label`` must be the same on all of them."""
        self._inner.rejoin(label)

    def _listed(self, gradients: Any) -> dict[str, Any]:
        """Leaves of ``gradients`` by name, as NumPy views."""
        names, leaves, _ = named_leaves(gradients)
        if wrong := self._unlike(names, leaves):
            self._inner.reducer.refuse()
            raise UsageError(f"DistributedGradients: {wrong}")
        self._given = leaves
        pairs = [pair for pair in zip(names, toward_host(leaves), strict=True) if pair[0] in self._trained]
        return {name: leaf if leaf is None else np.asarray(leaf) for name, leaf in pairs}

    def _unlike(self, names: tuple[str, ...], leaves: list[Any]) -> str:
        """Difference in form between gradients and ``like``, in words; "" if there is none."""
        if names != self._names:
            return f"a pytree of {', '.join(names)}, where it was made of one of {', '.join(self._names)}"
        if is_traced(*leaves) or is_tracing():
            return (
                "it was called inside of jit, grad or vmap: call it with what a jitted function returns. In one "
                "program XLA could compute shards together, and they would round otherwise where a rank has others"
            )
        extra = [n for n, leaf in zip(names, leaves, strict=True) if leaf is not None and n not in self._trained]
        if extra:
            return f"a gradient of {extra[0]}, where it was made of None there"
        cut = next((name for name, leaf in zip(names, leaves, strict=True) if is_cut(leaf)), None)
        if cut is not None:  # refuse before the reduction, in which the other ranks would take part
            return (
                f"{cut} is an array of NumPy of 64 bits, which JAX would cut to 32: pass x.astype(np.float32), or call "
                'jax.config.update("jax_enable_x64", True) first'
            )
        return ""

    def _compared(self, params: Any) -> dict[str, Any] | None:
        if params is None:
            return None
        names, leaves, _ = named_leaves(params)
        return {name: np.asarray(leaf) for name, leaf in zip(names, leaves, strict=True) if name in self._trained}

    def _made(self, reduced: dict[str, Any]) -> Any:
        """Pytree of JAX arrays on the devices of the input gradients."""
        found = [
            None if reduced.get(name) is None else new_array(reduced[name], leaf, copy=True)
            for name, leaf in zip(self._names, self._given, strict=True)
        ]
        self._given = [None] * len(found)
        return jax.tree.unflatten(self._structure, found)
