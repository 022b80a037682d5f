"""Virtual workers for frameworks that pass gradients as lists: Keras, JAX, TensorFlow, NumPy arrays.

    for shard in reducer.shards(rows):
        reducer.add(gradients)                  # of the shard's rows
    sums = reducer.reduce()                     # the same bits, whatever the number of workers
    reducer.vote()
    ...                                         # the framework's own step
    reducer.stepped()

Input tensors are never written to, and no returned tensor shares memory with an input tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from typing import final

from farandole.errors import UsageError
from farandole.gradients.list_reducer import named
from farandole.gradients.optimizer_key import OptimizerKey
from farandole.gradients.reduction_options import ReductionOptions
from farandole.gradients.shard_reducer import Shard, ShardReducer
from farandole.gradients.tensors import Param, T, Tensors


@final
class ListShardReducer(ShardReducer[T]):
    """``ShardReducer`` of gradients in the order of ``params``: any objects with the gradients' shapes and dtypes.

    ``steps`` counts the steps. The shards' random streams depend on it: set it after loading a checkpoint.
    """

    def __init__(
        self,
        tensors: Tensors[T],
        params: Callable[[], list[Param]],
        identity: OptimizerKey,
        terms: ReductionOptions,
        count: int,
        seed: int = 0,
    ) -> None:
        super().__init__(tensors, identity, terms, count, seed)
        self.steps = 0
        self._params = params
        self._present: dict[int, T | None] = {}  # by the ``id`` of the parameter
        self._weights: Sequence[T] = ()
        self._is_open = self._is_given = False  # inside a shard's loop body; its gradients were added

    def params(self) -> list[Param]:
        """See ``ShardReducer``."""
        return self._params()

    def shards(self, rows: int) -> Generator[Shard, None, None]:
        """See ``ShardReducer``. Raises ``UsageError`` at the end of a shard for which ``add`` was not called."""
        with closing(super().shards(rows)) as shards:  # closes at once: that restores the random generators
            for shard in shards:
                self._is_open, self._is_given = True, False
                try:
                    yield shard
                finally:  # also if the script breaks out of the loop
                    self._is_open = False
                if not self._is_given:
                    self.refuse()
                    raise UsageError(f"shard {shard.number} has no gradients: call add() once for each of shards()")

    def add(self, gradients: Sequence[T | None]) -> None:
        """Add the gradients of the current shard; ``None`` for a parameter that the shard did not use."""
        try:
            given = self._checked(gradients)
        except UsageError:
            self.refuse()
            raise
        self._is_given = True
        self._present.update((id(param), gradient) for param, gradient in zip(self.params(), given, strict=True))

    def reduce(self, weights: Sequence[T] = ()) -> list[T | None]:
        """Add up the shards of all workers. Collective; ``None`` for a parameter that no shard has used.

        ``weights``: see ``ListReducer.reduce``. Raises ``UsageError`` unless all shards were computed.
        """
        params, self._weights = self.params(), weights
        self.settle()
        reduced = [self._present.get(id(param)) for param in params]
        self._present.clear()
        return reduced

    def stepped(self) -> None:
        """See ``Reducer``."""
        self._weights = ()
        super().stepped()

    def _checked(self, gradients: Sequence[T | None]) -> list[T | None]:
        """Copies of ``gradients``, because the gradients of other shards are added to them in place."""
        params, adapter = self.params(), self._tensors.adapter
        if not self._is_open or self._is_given:
            raise UsageError("add() is for the loop over shards(), once for each shard")
        if len(gradients) != len(params):
            raise UsageError(f"add() of {len(gradients)} gradients for {len(params)} parameters: give one for each")
        copies = [None if gradient is None else adapter.clone(gradient) for gradient in gradients]
        for param, copy in zip(params, copies, strict=True):
            if copy is None:
                continue
            known, found = ((adapter.shape(each), adapter.array(each).dtype.label) for each in (param, copy))
            if found != known:
                raise UsageError(f"add() of a gradient of {found[1]} with shape {found[0]}, where {known} is expected")
        return copies

    def _named(self) -> list[tuple[str, Param]]:
        return named(self._identity, self.params(), self._weights) if self._lanes and self._weights else []

    def _buffers(self) -> tuple[list[T], list[T]]:
        return [], []

    def _step(self) -> int:
        return self.steps

    def _count_step(self) -> None:
        self.steps += 1

    def _take_gradients(self, params: Sequence[Param]) -> list[T | None]:
        return [self._present.pop(id(param), None) for param in params]

    def _set_gradient(self, param: Param, gradient: T | None) -> None:
        self._present[id(param)] = gradient

    def _generators(self, seed: int) -> AbstractContextManager[object]:
        return nullcontext()
