"""Functions of ``farandole.jax``: ``Ops`` on pytrees, where each pytree is a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast, final

import jax
import jax.numpy as jnp

from farandole.adapters.jax import placed, toward_host, verbs
from farandole.collective import Kind, Reduction
from farandole.errors import UsageError
from farandole.jax.collectives import Collective, run_collective
from farandole.jax.programs import await_runs, is_traced
from farandole.jax.tracing import is_tracing
from farandole.jax.trees import as_signed, paths_of, refuse_sparse
from farandole.runtime.collectives.named_broadcast import broadcast_named
from farandole.runtime.collectives.ops import Ops
from farandole.runtime.collectives.verbs import Request
from farandole.runtime.session.process_sets import ProcessSet


@final
class TreeVerbs:
    """``Verbs`` on pytrees, for the functions that return handles. In-place calls are refused."""

    def allreduce(
        self, trees: Sequence[Any], name: str | None, how: Reduction, process_set: ProcessSet, *, in_place: bool = False
    ) -> Request[list[Any]]:
        """See ``Verbs``."""
        leaves, whole = _taken("allreduce", name, trees)
        return verbs.allreduce(leaves, name, how, process_set, in_place=in_place).then(whole)

    def reducescatter(
        self, trees: Sequence[Any], name: str | None, how: Reduction, process_set: ProcessSet
    ) -> Request[list[Any]]:
        """See ``Verbs``."""
        leaves, whole = _taken("reducescatter", name, trees)
        return verbs.reducescatter(leaves, name, how, process_set).then(whole)

    def allgather(
        self, trees: Sequence[Any], name: str | None, process_set: ProcessSet
    ) -> Request[list[tuple[Any, None]]]:
        """See ``Verbs``."""
        leaves, whole = _taken("allgather", name, trees)
        request = verbs.allgather(leaves, name, process_set)
        return request.then(lambda done: [(tree, None) for tree in whole([result for result, _ in done])])

    def broadcast(
        self, trees: Sequence[Any], root: int, name: str | None, process_set: ProcessSet, *, in_place: bool = False
    ) -> Request[list[Any]]:
        """See ``Verbs``."""
        leaves, whole = _taken("broadcast", name, trees)
        return verbs.broadcast(leaves, root, name, process_set, in_place=in_place).then(whole)

    def alltoall(
        self, tree: Any, splits: Sequence[int] | None, name: str | None, process_set: ProcessSet
    ) -> Request[tuple[Any, tuple[int, ...]]]:
        """See ``Verbs``; for a single array."""
        _taken("alltoall", name, [tree])
        request = verbs.alltoall(tree, splits, name, process_set)
        return request.then(lambda done: (placed(tree, done[0]), done[1]))

    def telling(self, kind: Kind, name: str | None, process_set: ProcessSet) -> AbstractContextManager[None]:
        """See ``Verbs``."""
        return verbs.telling(kind, name, process_set)


def _taken(verb: str, name: str | None, trees: Sequence[Any]) -> tuple[list[Any], Callable[[list[Any]], list[Any]]]:
    """Leaves of trees for an eager call, and a function that rebuilds trees from results; waits for programs first."""
    leaves, structure = _flat(verb, trees)
    if is_traced(*leaves) or is_tracing():
        raise UsageError(
            "a handle is a number of this process, and a compiled program has none: call the function without _async, "
            "which lets the program go on until the result is used"
        )
    await_runs(verb, name)

    def whole(results: list[Any]) -> list[Any]:
        results = [placed(leaf, result) for leaf, result in zip(leaves, results, strict=True)]
        return cast("list[Any]", jax.tree.unflatten(structure, results))

    return list(toward_host(leaves)), whole


@final
class JaxOps(Ops[Any]):
    """Functions of ``farandole.jax``."""

    def _reduced(self, tensors: Sequence[Any], name: str | None, how: Reduction, process_set: ProcessSet) -> list[Any]:
        return _run_on_trees(Collective("allreduce", name, process_set, how), tensors)

    def _scattered(
        self, tensors: Sequence[Any], name: str | None, how: Reduction, process_set: ProcessSet
    ) -> list[Any]:
        return _run_on_trees(Collective("reducescatter", name, process_set, how), tensors)

    def _gathered(self, tensors: Sequence[Any], name: str | None, process_set: ProcessSet) -> list[Any]:
        return _run_on_trees(Collective("allgather", name, process_set), tensors)

    def _copied(self, tensor: Any, root: int, name: str | None, process_set: ProcessSet) -> Any:
        return _run_on_trees(Collective("broadcast", name, process_set, root=root), [tensor])[0]

    def _exchanged(
        self, tensor: Any, rows: tuple[int, ...] | None, name: str | None, process_set: ProcessSet
    ) -> tuple[Any, tuple[int, ...]]:
        leaves, _ = _flat("alltoall", [tensor])
        if len(leaves) != 1:
            raise UsageError(f"alltoall of {len(leaves)} arrays: call it for each, as they are cut one by one")
        [received], [counts] = run_collective(Collective("alltoall", name, process_set, splits=rows), leaves)
        return received, counts

    def _counts(self, counts: Any) -> Any:
        return jnp.asarray(counts, jnp.int32)

    def _shared(self, params: Any, root_rank: int, process_set: ProcessSet) -> Any:
        """Pytree of the root; arrays are matched by their path, and structures and shapes must be equal."""
        paths, structure = jax.tree_util.tree_flatten_with_path(params)
        signed = [as_signed(leaf) for _, leaf in paths]
        leaves = [leaf for leaf, _ in signed]
        if is_traced(*leaves) or is_tracing():
            results = _run_on_trees(Collective("broadcast", None, process_set, root=root_rank), leaves)
        else:
            named = list(zip(paths_of([path for path, _ in paths]), leaves, strict=True))
            # Of any class: leaves may be whatever the adapter accepts, and the verb raises for others.
            results = broadcast_named(self._verbs, object, named, root_rank, process_set, in_place=False)
        return jax.tree.unflatten(structure, [back(result) for (_, back), result in zip(signed, results, strict=True)])


def _run_on_trees(what: Collective, trees: Sequence[Any]) -> list[Any]:
    leaves, structure = _flat(what.verb, trees)
    return cast("list[Any]", jax.tree.unflatten(structure, run_collective(what, leaves)[0]))


def _flat(verb: str, trees: Sequence[Any]) -> tuple[list[Any], Any]:
    """Leaves of trees and their structure; only a broadcast may have sparse arrays, whose indices it copies."""
    if verb != "broadcast":
        refuse_sparse(verb, list(trees))
    return jax.tree.flatten(list(trees))
