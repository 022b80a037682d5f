"""Elastic training with JAX: workers join and leave while the training continues.

state = JaxState(params=params, opt_state=optimizer.init(params), step=0)

@run
def train(state):
    while state.step < 1000:
        state.params, state.opt_state = step(state.params, state.opt_state, *batch(state.step))
        state.step += 1
        state.commit()

train(state)

JAX wraps an error of a collective in a compiled program into its own error class. ``run`` and ``translated`` restore
the Farandole error.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar, cast, final

import jax
import numpy as np

from farandole.adapters.jax import new_array
from farandole.adapters.numpy import adapter
from farandole.elastic.worker import run as elastic_run
from farandole.elastic.worker.epoch_sampler import EpochSampler as ElasticSampler
from farandole.elastic.worker.state import ObjectState, State
from farandole.elastic.worker.state_parts import HandlerRegistry, StateHandler, StatePart, random_parts
from farandole.errors import HorovodInternalError, HostsUpdatedInterrupt, UsageError
from farandole.graphs.library import original
from farandole.jax.executables import keep_executables
from farandole.jax.optimizer import DistributedState
from farandole.largebatch.report import report
from farandole.numpy.elastic import ArrayGeneratorPart, ArraysPart, TiesPart
from farandole.runtime.collectives.leaves import Leaves

__all__ = [
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "JaxState",
    "ObjectState",
    "State",
    "report",
    "run",
    "translated",
]

S = TypeVar("S", bound=State)
P = ParamSpec("P")
R = TypeVar("R")


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Context in which errors of compiled programs are replaced by the errors of their collectives.

    >>> with translated():
    ...     jax.block_until_ready(step(params))      # raises HorovodInternalError, and not JaxRuntimeError
    """
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        # If a program fails while JAX dispatches it from its native cache, JAX raises a plain ``ValueError``.
        is_jaxs = isinstance(error, jax.errors.JaxRuntimeError) or str(error).startswith("INTERNAL: ")
        found = original(error) if is_jaxs else error
        if found is error:
            raise
        raise found from error


def run(func: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Call ``func(state, ...)``, and again after every change of the workers, until it returns.

    >>> @run
    ... def train(state): ...
    >>> train(JaxState(params=params, opt_state=opt_state, step=0))

    Like ``run`` of the other frameworks, with errors of compiled programs ``translated``. JAX traces programs again in
    every generation, because they may contain ranks and sizes, and compiles those that changed.
    """

    @functools.wraps(func)
    def train(state: S, *args: P.args, **kwargs: P.kwargs) -> R:
        with translated():
            return func(state, *args, **kwargs)

    again = elastic_run.run(cast("Any", train))

    @functools.wraps(func)
    def begin(state: S, *args: P.args, **kwargs: P.kwargs) -> R:
        keep_executables()
        return cast("R", again(state, *args, **kwargs))

    return cast("Callable[Concatenate[S, P], R]", begin)


@final
class TreePart(StatePart):
    """A pytree of arrays and other values, replaced as a whole, because JAX arrays never change."""

    is_copied = True

    def tree(self) -> Any:
        """See ``StatePart``; only the leaves of a pytree with classes other than named tuples.

        Such classes may hold objects that belong to one worker, and cannot be sent: functions, optimizers with locks.
        """
        kept = self._copied()
        return kept if _is_plain(kept["tree"], travels=True) else self._listed(kept)

    def load(self, tree: Any) -> None:
        """See ``StatePart``; raises ``UsageError`` for another structure, or arrays of other shapes or dtypes."""
        if "leaves" in tree:
            tree = self.whole(tree)
        old, structure = jax.tree.flatten(self.value)
        new, theirs = jax.tree.flatten(tree["tree"])
        is_alike = bool(structure == theirs)  # type: ignore[operator]
        if is_alike and any(map(_differ, old, new)):
            raise UsageError(
                f"the state of the job has {', '.join(map(_looks, new))} where this worker has "
                f"{', '.join(map(_looks, old))}: every worker must run the same script"
            )
        self._put(tree)

    def restore(self) -> None:
        """See ``StateHandler``; restores the saved structure, even if the script has changed it since."""
        if self._saved is not None:
            self._put(self._saved)

    def strengthen(self) -> None:
        """Remove the weak types of arrays, because workers that receive the arrays get strong types."""
        self.value = jax.tree.map(_strong, self.value)

    def _copied(self) -> Any:
        """Copies in host memory, because a program may reuse the memory of donated arrays.

        Also records which leaves are JAX arrays: NumPy arrays stay NumPy's, because JAX may cut them to 32 bits. Raises
        the error of a failed computation of an array.
        """
        with translated():
            kept = jax.tree.map(_kept, self.value)
        return {"tree": kept, "of_jax": [isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(self.value)]}

    def _listed(self, kept: Any) -> Any:
        return {"of_jax": kept["of_jax"], "leaves": jax.tree.leaves(kept["tree"]), "paths": _paths(self.value)}

    def _put(self, tree: Any) -> None:
        old, structure = jax.tree.flatten(self.value)
        new, theirs = jax.tree.flatten(tree["tree"])
        new = copy.deepcopy(new)  # only the leaves: the tree's classes may hold objects that cannot be copied
        if str(structure) != str(theirs):
            old = [None] * len(new)
        made = [
            new_array(now, before, copy=True) if of_jax else now  # on the devices of the array before
            for before, now, of_jax in zip(old, new, tree["of_jax"], strict=True)
        ]
        self.value = jax.tree.unflatten(theirs, made)

    def plain(self) -> Any:
        """``tree`` for files, which store no classes: only the leaves unless all nodes are dicts, lists or tuples."""
        kept = self._copied()
        return kept if _is_plain(kept["tree"]) else self._listed(kept)

    def whole(self, kept: Any) -> Any:
        """Rebuild a pytree from the leaves in ``kept``; raises ``UsageError`` if its paths differ from this one's."""
        mine = _paths(self.value)
        if mine != kept["paths"]:
            raise UsageError(
                f"the state to go on from has arrays at {', '.join(kept['paths'])} where this one has "
                f"{', '.join(mine)}: register what the same model and optimizer have made"
            )
        tree = jax.tree.unflatten(jax.tree.structure(self.value), kept["leaves"])
        return {"tree": tree, "of_jax": kept["of_jax"]}

    def begin_anew(self, name: str) -> None:
        """See ``StatePart``; drops sums of an accumulation, which may be gradients of a lost rank."""
        self.value = jax.tree.map(_begun_anew, self.value, is_leaf=_is_distributed)

    def save(self) -> None:
        """See ``StateHandler``."""
        self._saved = self._copied()

    def set_value(self, value: Any) -> None:
        """See ``StateHandler``; every step calls this, and the saved copy stays that of the last commit."""
        self.value = value


def _is_plain(node: Any, travels: bool = False) -> bool:
    """True for dicts, lists and tuples of leaves; if it ``travels`` between workers, for named tuples, too."""
    if type(node) is dict or (type(node) is OrderedDict and not travels):
        return all(_is_plain(each, travels) for each in node.values())
    if type(node) in (list, tuple) or (travels and isinstance(node, tuple) and hasattr(node, "_fields")):
        return all(_is_plain(each, travels) for each in node)
    return node is None or bool(jax.tree_util.all_leaves([node]))


def _paths(tree: Any) -> list[str]:
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]


def _is_distributed(node: Any) -> bool:
    return isinstance(node, DistributedState) and node.passes is not None


def _begun_anew(node: Any) -> Any:
    return node.begun_anew() if _is_distributed(node) else node


def _kept(leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array):
        return copy.deepcopy(leaf)
    if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        raise UsageError(
            "the state cannot keep random keys of a dtype of their own: keep jax.random.key_data() of them"
        )
    return np.array(leaf)


def _strong(leaf: Any) -> Any:
    return leaf.astype(leaf.dtype) if isinstance(leaf, jax.Array) and leaf.weak_type else leaf


def _differ(one: Any, other: Any) -> bool:
    are_arrays = all(isinstance(each, jax.Array | np.ndarray) for each in (one, other))
    return are_arrays and (one.shape, one.dtype) != (other.shape, other.dtype)


def _looks(leaf: Any) -> str:
    is_array = isinstance(leaf, jax.Array | np.ndarray)
    return f"an array of {leaf.dtype} with shape {leaf.shape}" if is_array else "another value"


registry = HandlerRegistry(
    [
        (np.ndarray, ArraysPart),
        (np.random.Generator, ArrayGeneratorPart),
        *((kind, TreePart) for kind in (jax.Array, dict, list, tuple)),
    ]
)
"""Classes of values with their handlers; put your own first: ``registry.replace([..., *registry.table])``."""


class JaxState(ObjectState):
    """Training state of pytrees; its values are attributes.

    >>> state = JaxState(params=params, opt_state=optimizer.init(params), key=jax.random.PRNGKey(7), epoch=0)

    Pytrees of arrays are replaced as a whole, by the script and by ``restore`` or ``sync``: read them from the state in
    every step. NumPy arrays are restored and received in place. Generators, samplers, and all objects with
    ``state_dict`` and ``load_state_dict`` are saved by these, other values by pickle; the global random generators of
    Python and NumPy are always included. ``commit`` waits for all arrays, and copies everything; after a fault the
    state goes back to the last commit.
    """

    _leaves: ClassVar[Leaves[Any]] = Leaves(adapter)
    _registry: ClassVar[HandlerRegistry] = registry

    def restore(self) -> None:
        """See ``State``."""
        super().restore()
        self._take_trees()

    def state_dict(self) -> dict[str, Any]:
        """See ``ObjectState``. Contains only the leaves of named tuples (optax states) and other classes."""
        content = super().state_dict()
        for name in content["trees"]:
            part = self._parts[name]
            if isinstance(part, TreePart):
                content["trees"][name] = part.plain()
        return content

    def load_state_dict(self, content: Mapping[str, Any]) -> None:
        """See ``ObjectState``. Pytrees with classes must exist with the structure that was saved (from ``init``)."""
        trees = dict(content["trees"])
        for name, tree in trees.items():
            part = self._parts.get(name)
            if isinstance(part, TreePart) and "leaves" in tree:
                trees[name] = part.whole(tree)
        super().load_state_dict({**content, "trees": trees})
        self._take_trees()

    def sync(self) -> None:
        """See ``State``."""
        super().sync()
        for part in self._parts.values():
            if isinstance(part, TreePart):
                part.strengthen()
        self._take_trees()

    def _handler(self, value: Any) -> StateHandler | None:
        """See ``ObjectState``; handles all classes that are registered with JAX as pytrees."""
        if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(value)):
            return TreePart(value)
        return super()._handler(value)

    def _await_values(self) -> None:
        """See ``ObjectState``."""
        with translated():
            jax.block_until_ready([part.value for part in self._parts.values() if isinstance(part, TreePart)])

    def _take_trees(self) -> None:
        trees = {name: part.value for name, part in self._parts.items() if isinstance(part, TreePart)}
        self._set_attributes(trees)

    def _generators(self) -> Mapping[str, StatePart]:
        return {**random_parts(), "numpy.shared": TiesPart(self)}
