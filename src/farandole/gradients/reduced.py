"""Reduction of gradients in one call, for the user's own training loop: base class of ``DistributedGradients``.

class DistributedGradients(ReducedGradients[np.ndarray]):
    tensors, verbs = tensors, verbs
    ...

average = DistributedGradients(weights, Reduction())
means = average(gradients)                          # this rank's gradients, by the names of the weights
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeAlias

from farandole.collective import ReduceOp, Reduction
from farandole.errors import UsageError
from farandole.gradients.list_reducer import ListReducer
from farandole.gradients.list_shard_reducer import ListShardReducer
from farandole.gradients.optimizer_key import Names, OptimizerKey
from farandole.gradients.reduction_options import ReductionOptions, gradient_reduction
from farandole.gradients.shard_reducer import Shard, require_plain
from farandole.gradients.tensors import Param, T, Tensors
from farandole.runtime.collectives.verbs import Verbs
from farandole.runtime.session.process_sets import ProcessSet, global_process_set

GivenGradients: TypeAlias = Mapping[str, Any] | Sequence[Any]
"""One gradient for each parameter, ``None`` where there is none."""


class ReducedGradients(ABC, Generic[T]):
    """Reduction of gradients in a dict or a list, in the form of ``like``.

    ``how``: checked by ``terms_of_gradients``. ``kind`` begins its label: ranks match objects of the same kind and the
    same names (or without names) in the order in which they are made. ``group_count``: see ``DistributedOptimizer``.
    ``virtual_workers``: the same bits for any number of workers, see ``shards``; ``seed`` seeds the shards' random
    streams. ``titles``: names in errors for parameters that are given as a list.
    """

    tensors: ClassVar[Tensors[Any]]
    verbs: ClassVar[Verbs[Any]]

    def __init__(
        self,
        like: Mapping[str, Any] | Sequence[Any],
        how: Reduction,
        *,
        backward_passes_per_step: int = 1,
        lag: int = 0,
        process_set: ProcessSet = global_process_set,
        kind: str = "gradients",
        group_count: int = 0,
        virtual_workers: int | None = None,
        seed: int = 0,
        titles: Sequence[str] = (),
    ) -> None:
        self._keys = list(like) if isinstance(like, Mapping) else None
        params = self._params = [self._shaped(each) for each in (like.values() if isinstance(like, Mapping) else like)]
        names = Names(zip(_names(self._keys, len(params)), params, strict=True), self._keys is not None)
        terms = ReductionOptions(
            how, None, {id(p): 0 for p in params if group_count}, group_count, process_set=process_set
        )
        self._outlast = lag > 0 or backward_passes_per_step > 1  # the reducer uses gradients after the call
        self.reducer: ListReducer[T] | ListShardReducer[T]
        """Reducer of the gradients, for observers; not for scripts."""
        if virtual_workers is None:
            identity = OptimizerKey(params, names, process_set, kind)
            self.reducer = ListReducer(
                self.tensors, self.verbs, lambda: params, identity, terms, backward_passes_per_step, titles
            )
            if lag:
                self.reducer.delay(lag)
            return
        require_plain(terms, virtual_workers, backward_passes_per_step)
        if lag:
            raise UsageError("lag= with virtual workers: their gradients belong to one step, use either")
        identity = OptimizerKey(params, names, process_set, f"virtual {kind}")
        self.reducer = ListShardReducer(self.tensors, lambda: params, identity, terms, virtual_workers, seed)

    def __call__(self, gradients: GivenGradients, weights: GivenGradients | None = None) -> Any:
        """Reduced ``gradients``, a dict or a list of new tensors; ``None`` before the last pass. Collective.

        ``None`` instead of a gradient: this rank has none and contributes zeros; if no rank has one, the result is
        ``None`` there. ``weights``: the current values that the gradients will change, in the same form; at some steps
        the ranks compare them, and raise ``DivergenceError`` if they differ. Raises ``UsageError`` for gradients of
        other shapes or names, and ``HorovodInternalError`` on every rank if the gradients of the ranks do not match.
        """
        if isinstance(self.reducer, ListShardReducer):
            self.reducer.refuse()
            raise UsageError(
                "DistributedGradients with virtual workers takes those of each shard: for shard in "
                "average.shards(rows): average.add(gradients), and then average.total()"
            )
        given = self._listed(gradients)
        if self._outlast:  # a script may reuse its tensors
            given = [None if each is None else self.tensors.clone(each) for each in given]
        return self._stepped(self.reducer.reduce(given, self._compared(weights)))

    @property
    def steps(self) -> int:
        """Number of steps with virtual workers. Shards' random streams depend on it: save it with the weights."""
        return self._sharded("steps").steps

    @steps.setter
    def steps(self, steps: int) -> None:
        self._sharded("steps").steps = steps

    def shards(self, rows: int) -> Iterator[Shard]:
        """Iterate over this rank's shards of a global batch of ``rows`` rows; needs ``virtual_workers``.

        >>> average = hvd.DistributedGradients(weights, virtual_workers=8)
        >>> for shard in average.shards(len(x)):
        ...     average.add(gradient_of(weights, x[shard.rows], y[shard.rows]))
        >>> gradients = average.total()

        The gradients are means over the shard's rows. Inside the loop the global random generators are the shard's.
        """
        return self._sharded("shards()").shards(rows)

    def add(self, gradients: GivenGradients) -> None:
        """Add the gradients of the current shard."""
        self._sharded("add()").add(self._listed(gradients))

    def total(self, weights: GivenGradients | None = None) -> Any:
        """Gradients of the global batch, over the shards of all ranks. Collective; for ``weights`` see ``__call__``."""
        return self._stepped(self._sharded("total()").reduce(self._compared(weights)))

    def rejoin(self, label: str) -> None:
        """Reduce with the ranks of a new generation; ``label`` must be the same on all of them."""
        self.reducer.rejoin(label)

    @abstractmethod
    def _shaped(self, like: Any) -> Param:
        """Object with the shape and dtype of ``like`` that does not refer to ``like``."""

    @abstractmethod
    def _given(self, gradient: Any, param: Param) -> T:
        """Convert a gradient to the tensor that is reduced."""

    def _listed(self, gradients: GivenGradients) -> list[T | None]:
        """Gradients as a list in the order of ``like``."""
        if wrong := self._unlike(gradients):
            self.reducer.refuse()
            raise UsageError(f"DistributedGradients: {wrong}")
        values = map(gradients.get, self._keys or ()) if isinstance(gradients, Mapping) else gradients
        pairs = zip(values, self._params, strict=True)
        try:
            return [None if value is None else self._given(value, param) for value, param in pairs]
        except UsageError:
            self.reducer.refuse()
            raise

    def _compared(self, weights: GivenGradients | None) -> list[T]:
        """Weights as a list in the order of ``like``; empty if there are none to compare."""
        if weights is None:
            return []
        keys: Sequence[Any] = range(len(self._params)) if self._keys is None else self._keys
        try:
            return [self._given(weights[key], param) for key, param in zip(keys, self._params, strict=True)]
        except (KeyError, IndexError, TypeError) as error:
            self.reducer.refuse()
            raise UsageError(f"DistributedGradients: weights= lacks {error}: give them as the gradients") from error

    def _sharded(self, what: str) -> ListShardReducer[T]:
        if isinstance(self.reducer, ListShardReducer):
            return self.reducer
        raise UsageError(f"{what} needs virtual workers: DistributedGradients(..., virtual_workers=8)")

    def _stepped(self, reduced: list[T | None] | None) -> Any:
        """Vote on the step, and return its result in the form of ``like``."""
        if reduced is None:
            return None
        self.reducer.vote()
        self.reducer.stepped()
        return dict(zip(self._keys, reduced, strict=True)) if self._keys is not None else reduced

    def _unlike(self, gradients: GivenGradients) -> str:
        """Difference in form between ``gradients`` and ``like``, in words; "" if there is none."""
        if isinstance(gradients, Mapping) is (self._keys is None):
            return "a dict where it was made of a list, or the other way round: give the gradients as the arrays"
        if isinstance(gradients, Mapping):
            unknown = [key for key in gradients if key not in (self._keys or ())]
            known = ", ".join(map(str, self._keys or ()))
            return f"{unknown[0]!r} is not among the arrays that it was made of: {known}" if unknown else ""
        if len(gradients) != len(self._params):
            return f"{len(gradients)} gradients for {len(self._params)} arrays: give one for each, or None"
        return ""


def _names(keys: Sequence[Any] | None, count: int) -> Sequence[str]:
    """Names by which ranks match gradients; raises ``UsageError`` if two ``keys`` have the same text."""
    names = list(map(str, range(count) if keys is None else keys))
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise UsageError(
            f"DistributedGradients: the keys of two arrays both read {twice[0]!r}, and ranks match gradients by that: "
            "give them other keys"
        )
    return names


def terms_of_gradients(op: int, gradient_predivide_factor: float, passes: int, lag: int) -> Reduction:
    """Reduction for ``DistributedGradients``; raises ``UsageError`` for arguments that are not allowed."""
    how = gradient_reduction(op, gradient_predivide_factor)
    if op == ReduceOp.ADASUM:
        raise UsageError("DistributedGradients(op=Adasum): it combines changes of weights; allreduce these instead")
    if passes < 1 or lag < 0:
        raise UsageError(f"backward_passes_per_step={passes}, lag={lag}: they start from 1, and from 0")
    return how
