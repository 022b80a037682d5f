"""Gradients of all ranks as one call, for training loops of a user's own: the class that frameworks derive from.

class DistributedGradients(ReducedGradients[np.ndarray]):
    tensors, verbs = tensors, verbs
    ...

average = DistributedGradients(weights, Reduction())
means = average(gradients)                          # of this rank, by the names of the weights
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
    """Reduction of gradients that are given as a dict or a list, like those of which it was made.

    ``how``: checked by ``terms_of_gradients``. ``kind`` begins its label: ranks match what is of one kind and has the
    same names, or no names, in the order in which they make it. ``group_count``: see ``DistributedOptimizer``.
    ``virtual_workers``: the same bits for any number of workers, see ``shards``; ``seed`` is that of the shards' random
    streams. ``titles``: what errors call parameters that are given as a list.
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
        self._outlast = lag > 0 or backward_passes_per_step > 1  # then gradients are used after the call
        self.reducer: ListReducer[T] | ListShardReducer[T]
        """What reduces them, for observers; not for scripts."""
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
        """Reduced ``gradients``, a dict or a list of new tensors; ``None`` while more passes are to come. Collective.

        ``None`` in the place of a gradient: this rank has none, and contributes zeros; where no rank has one, the
        result is ``None`` there. ``weights``: what the gradients will change, as it is now, in the same form; ranks
        compare theirs now and then, and raise ``DivergenceError`` where they differ. Raises ``UsageError`` for
        gradients of other shapes or under other names, and ``HorovodInternalError`` on every rank where they do not fit
        each other.
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
        """Number of steps with virtual workers, on which shards' random streams depend: keep it with the weights."""
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
        """Hand in the gradients of the shard that was given out last."""
        self._sharded("add()").add(self._listed(gradients))

    def total(self, weights: GivenGradients | None = None) -> Any:
        """Gradients of the global batch, of the shards of all ranks. Collective; for ``weights`` see ``__call__``."""
        return self._stepped(self._sharded("total()").reduce(self._compared(weights)))

    def rejoin(self, label: str) -> None:
        """Reduce with the ranks of a generation that begins; ``label`` is the same on all of them."""
        self.reducer.rejoin(label)

    @abstractmethod
    def _shaped(self, like: Any) -> Param:
        """Something with the shape and dtype of ``like`` that keeps nothing of it."""

    @abstractmethod
    def _given(self, gradient: Any, param: Param) -> T:
        """A gradient as the tensor that is reduced."""

    def _listed(self, gradients: GivenGradients) -> list[T | None]:
        """Gradients in the order of the tensors that this was made of."""
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
        """Weights in the order of the tensors that this was made of; none, where there are none to compare."""
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
        """The result of a step, as the script wants it, once all ranks have it."""
        if reduced is None:
            return None
        self.reducer.vote()
        self.reducer.stepped()
        return dict(zip(self._keys, reduced, strict=True)) if self._keys is not None else reduced

    def _unlike(self, gradients: GivenGradients) -> str:
        """Difference in form between ``gradients`` and what this was made of, in words; "" if there is none."""
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
    """Names that ranks match gradients by; raises ``UsageError`` for ``keys`` that read alike."""
    names = list(map(str, range(count) if keys is None else keys))
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise UsageError(
            f"DistributedGradients: the keys of two arrays both read {twice[0]!r}, and ranks match gradients by that: "
            "give them other keys"
        )
    return names


def terms_of_gradients(op: int, gradient_predivide_factor: float, passes: int, lag: int) -> Reduction:
    """Checked reduction of the gradients that ``DistributedGradients`` is given; raises ``UsageError``."""
    how = gradient_reduction(op, gradient_predivide_factor)
    if op == ReduceOp.ADASUM:
        raise UsageError("DistributedGradients(op=Adasum): it combines changes of weights; allreduce these instead")
    if passes < 1 or lag < 0:
        raise UsageError(f"backward_passes_per_step={passes}, lag={lag}: they start from 1, and from 0")
    return how
