"""Reducer for frameworks that pass gradients as a list and get a list back: Keras, JAX, TensorFlow, NumPy arrays.

    reducer = ListReducer(tensors, lambda: params, key, ReductionOptions())
    means = reducer.reduce(gradients)           # None while an accumulation goes on
    reducer.vote()
    ...                                         # the framework's own step
    reducer.stepped()

Input tensors are never written to, and no returned tensor shares memory with an input tensor or with engine memory:
the values are copied into buckets and out of them. ``copied`` counts the bytes of both. If the caller names the result
tensors in ``into``, a step copies each gradient once into its bucket and once out of it. A large gradient, which has no
place in a bucket, is copied into its result tensor, unless it is that tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, final

from farandole.collective import Array, DType
from farandole.engines.engine import Memory
from farandole.errors import UsageError
from farandole.gradients.agreement import Agreed, code
from farandole.gradients.buckets import Bucket, BucketLayout, Piece
from farandole.gradients.optimizer_key import OptimizerKey
from farandole.gradients.parameters import GradientBucket, Parameters
from farandole.gradients.reduction_options import ReductionOptions
from farandole.gradients.step_reducer import GradientReducer
from farandole.gradients.tensors import Gradients, Param, T, Tensors
from farandole.runtime.collectives.adapter import TensorAdapter
from farandole.runtime.collectives.verbs import Verbs
from farandole.runtime.session.init import current

NOWHERE: Mapping[int, Any] = MappingProxyType({})
"""Empty map of targets, for reductions without ``into``."""


@final
class Copied:
    """Bytes of gradients that the reducers of this process have copied into buckets, and out of them.

    No lock: the steps of one process are sequential, and a race would only lose counts.
    """

    def __init__(self) -> None:
        self.into_bytes = 0
        self.out_bytes = 0


copied = Copied()


@final
class ListReducer(GradientReducer[T]):
    """Reducer of gradients in the order of ``params``: any objects with the shapes and dtypes of the gradients.

    ``titles``: names of the parameters in errors, if they have no names that are the same on all ranks.
    """

    def __init__(
        self,
        tensors: Tensors[T],
        verbs: Verbs[T],
        params: Callable[[], list[Param]],
        identity: OptimizerKey,
        terms: ReductionOptions,
        passes_per_step: int = 1,
        titles: Sequence[str] = (),
    ) -> None:
        if terms.compression is not None:
            raise UsageError("compression of gradients that are handed in: cast them before reduce(), and back after")
        self._verbs = verbs
        self._present: dict[int, T | None] = {}  # by ``id`` of the parameter; the exchange shares this dict
        self._into: dict[int, T] = {}  # likewise shared: the tensors for the results of this call
        self._weights: Sequence[T | None] = ()
        self._titles = titles
        super().__init__(tensors, params, identity, terms, passes_per_step)

    def reduce(
        self, gradients: Sequence[T | None], weights: Sequence[T | None] = (), into: Sequence[T] = ()
    ) -> list[T | None] | None:
        """Reduce the gradients of one pass, or the sum over ``passes_per_step`` passes; ``None`` before the last pass.

        Collective in the last pass. ``None`` in ``gradients``: this rank has no gradient for the parameter and
        contributes zeros; if no rank has one, the result is ``None``, too. ``weights``, one for each parameter: tensors
        that the next step changes; ``vote`` compares them across ranks (``None``: not compared). ``into``, one for each
        parameter: tensors that results from buckets are copied to, and that are returned for them; other results are
        returned as they are. ``into`` may hold the same tensors as ``gradients``. Raises ``UsageError`` for a list of
        wrong length.
        """
        params = self.params()
        for what, given in (("gradients", gradients), ("weights", weights), ("results", into)):
            if len(given) != len(params) and (given or what == "gradients"):
                self.refuse()
                raise UsageError(f"reduce() of {len(given)} {what} for {len(params)} parameters: give one for each")
        self._weights = weights
        self._into.clear()  # a failed call may have left entries
        self._into.update((id(param), target) for param, target in zip(params, into, strict=False))
        for param, gradient in zip(params, gradients, strict=True):
            self._add(param, gradient)
        self.begin_pass()
        for param in params:  # all of them at once; an observer reads each before the background thread reduces it
            self.completed(param)
        self.end_pass()
        if not self._reduced:
            return None
        reduced = [self._present.get(id(param)) for param in params]
        self._present.clear()
        self._into.clear()
        return reduced

    def gradients(self, params: Sequence[Param]) -> list[T]:
        """Existing gradients of these parameters: of this rank, or after the reduction of all ranks."""
        found = (self._present.get(id(param)) for param in params)
        return [gradient for gradient in found if gradient is not None]

    def refuse(self) -> None:
        """Make the other ranks raise in their ``reduce``, because the input of this rank cannot be reduced."""
        session = current("the reduction of gradients")
        if self._is_needed(session):
            self._bind(session).refuse(self._where())

    def held(self, param: Param) -> T | None:
        """Gradient of a parameter during a reduction: the input tensor, or the result once it exists."""
        return self._present.get(id(param))

    def rejoin(self, label: str) -> None:
        """See ``Reducer``."""
        self._present.clear()
        super().rejoin(label)

    def zeroed(self) -> None:
        """See ``Reducer``."""
        self._present.clear()
        super().zeroed()

    def restart(self) -> None:
        """See ``Reducer``."""
        self._present.clear()
        super().restart()

    def _add(self, param: Param, gradient: T | None) -> None:
        """Add a gradient to the sum of earlier passes."""
        before = self._present.get(id(param)) if self._passes else None
        if before is None or gradient is None:
            self._present[id(param)] = gradient if before is None else before
            return
        shape = self._tensors.adapter.shape
        if shape(before) != shape(gradient):  # an addition could succeed by broadcasting
            self.refuse()
            raise UsageError(f"a gradient of shape {shape(gradient)} in a pass after one of {shape(before)}")
        total = self._tensors.adapter.clone(before)
        self._tensors.add([total], [gradient])
        self._present[id(param)] = total

    def _watch(self) -> list[Param]:
        return list(self.params())

    def stepped(self) -> None:
        """See ``Reducer``."""
        self._weights = ()  # do not keep the script's tensors alive
        super().stepped()

    def _named(self) -> list[tuple[str, Param]]:
        if not self._weights or not self._is_needed(current("step()")):
            return []
        return named(self._identity, self.params(), self._weights, self._titles)

    def _bound(self, params: Sequence[Param], groups: Sequence[int]) -> Parameters[T]:
        return ListParameters(self._tensors, self._verbs, params, groups, self._terms, self._present, self._into)


def named(
    identity: OptimizerKey, params: Sequence[Param], weights: Sequence[T | None], titles: Sequence[str] = ()
) -> list[tuple[str, Param]]:
    """The ``weights`` that are not ``None``, with the title or name of their parameter, in the order of all ranks."""
    positions = {id(param): i for i, param in enumerate(params)}
    arranged = [positions[id(param)] for param in identity.arrange(params)]
    titled = [(titles[i] if titles else identity.name(params[i], i), weights[i]) for i in arranged]
    return [(title, weight) for title, weight in titled if weight is not None]


@final
class ListParameters(Parameters[T]):
    """See ``Parameters``; the gradients are in ``present``, by the ``id`` of their parameter."""

    def __init__(
        self,
        tensors: Tensors[T],
        verbs: Verbs[T],
        params: Sequence[Param],
        groups: Sequence[int],
        terms: ReductionOptions,
        present: dict[int, T | None],
        into: dict[int, T],
    ) -> None:
        super().__init__(tensors, params, groups, terms)
        self._verbs, self._present, self._into = verbs, present, into
        arrays = [tensors.adapter.array(param) for param in self.params]
        self._shapes = [tensors.adapter.shape(param) for param in self.params]
        self._counts = [array.count for array in arrays]
        self._device = [array.device for array in arrays]
        self.dtypes: list[DType] = [array.dtype for array in arrays]

    def described(self) -> list[object]:
        """See ``Parameters``."""
        return list(zip([dtype.label for dtype in self.dtypes], self._shapes, strict=True))

    def reshaped(self) -> tuple[int, str] | None:
        """See ``Parameters``."""
        shape = self.tensors.adapter.shape
        for i, (param, gradient, known) in enumerate(zip(self.params, self.present(), self._shapes, strict=True)):
            now = shape(param) if gradient is None or shape(param) != known else shape(gradient)
            if now != known:
                return i, f"the shape {now}, it was {known}"
        return None

    def present(self) -> list[T | None]:
        """See ``Parameters``."""
        return [self._present.get(id(param)) for param in self.params]

    def put(self, gradients: Gradients[T]) -> None:
        """See ``Parameters``."""
        for param, gradient in zip(self.params, gradients, strict=True):
            self._present[id(param)] = gradient

    def are_ordinary(self, gradients: Gradients[T]) -> bool:
        """See ``Parameters``; checks shapes too, because it is called before ``reshaped``."""
        adapter = self.tensors.adapter
        return all(
            gradient is not None and adapter.shape(gradient) == shape and adapter.array(gradient).dtype is dtype
            for gradient, shape, dtype in zip(gradients, self._shapes, self.dtypes, strict=True)
        )

    def targets(self, gradients: Gradients[T]) -> Gradients[T]:
        """See ``Parameters``; no input gradient is ever overwritten."""
        return [None] * len(gradients)

    def kept_apart(self, gradients: Gradients[T], targets: Gradients[T]) -> Gradients[T]:
        """See ``Parameters``."""
        return gradients

    def codes(self, gradients: Gradients[T]) -> list[int]:
        """See ``Parameters``."""
        array = self.tensors.adapter.array
        pairs = zip(gradients, self.dtypes, strict=True)
        return [code(dtype, 0) if grad is None else code(array(grad).dtype, 1) for grad, dtype in pairs]

    def can_overlap(self) -> bool:
        """See ``Parameters``; all gradients exist already, so only their dtypes and shapes are checked."""
        return self.are_ordinary(self.present())

    def adopt(self, dtypes: Sequence[DType | None]) -> None:
        """See ``Parameters``."""
        self.dtypes = [before if now is None else now for before, now in zip(self.dtypes, dtypes, strict=True)]

    def piece(self, index: int) -> Piece:
        """See ``Parameters``."""
        return Piece(self._counts[index], self.dtypes[index], self._device[index], self.groups[index])

    def buckets(self, layout: BucketLayout, memory: Memory) -> list[GradientBucket[T]]:
        """See ``Parameters``."""
        given = self._present, self._into
        return [ListBucket(self.tensors, bucket, self.params, memory, *given) for bucket in layout.buckets]

    def begin_alone(self, index: int, gradient: T | None, kind: int, name: str, weight: float) -> Callable[[], None]:
        """See ``Parameters``."""
        if kind > 1:
            raise UsageError(f"{name}: sparse gradients cannot be handed in: hand in dense ones, on every rank")
        param, tensors = self.params[index], self.tensors
        given = tensors.zeros_like(param) if gradient is None else tensors.adapter.clone(gradient)
        if weight != 1.0:
            tensors.scale([given], weight)
        copied.into_bytes += tensors.adapter.array(given).nbytes
        pending = self._verbs.allreduce([given], name, self._terms.how, self._terms.process_set, in_place=True).begin()

        def finish() -> None:
            [self._present[id(param)]] = pending.wait()

        return finish

    def shadowed(self) -> ListParameters[T]:
        """See ``Parameters``."""
        return ListParameters(self.tensors, self._verbs, self.params, self.groups, self._terms, {}, {})

    def difference(self, shadows: Parameters[T]) -> str | None:
        """See ``Parameters``."""
        return None

    def zeros(self, present: Gradients[T]) -> list[T | None]:
        """See ``Parameters``."""
        return [self.tensors.zeros_like(param) for param in self.params]


@final
class ListBucket(GradientBucket[T]):
    """See ``GradientBucket``; in engine memory, or for a large gradient in its result tensor or in a copy."""

    def __init__(
        self,
        tensors: Tensors[T],
        bucket: Bucket,
        params: Sequence[Param],
        memory: Memory,
        present: dict[int, T | None],
        into: dict[int, T],
    ) -> None:
        self._tensors, self._bucket, self._present, self._into = tensors, bucket, present, into
        self.nbytes = bucket.nbytes
        self._values_bytes = sum(slot.count for slot in bucket.slots) * bucket.dtype.itemsize  # without alignment gaps
        self.pieces = [slot.piece for slot in bucket.slots]
        self.params = [params[piece] for piece in self.pieces]
        self._views: list[T] = []
        if not bucket.lone:
            self.array = memory.array(bucket.dtype, bucket.start, bucket.count)
            slots = zip(bucket.slots, self.params, strict=True)
            self._views = [tensors.on_memory(self.array.slice(s.offset, s.count), param) for s, param in slots]

    def clear(self) -> None:
        """See ``GradientBucket``."""
        self._fill([None] * len(self.params))

    def fill(self, gradients: Gradients[T], targets: Gradients[T]) -> None:
        """See ``GradientBucket``."""
        self._fill(gradients, self._into)

    def fill_alone(self) -> None:
        """See ``GradientBucket``; writes no target, because targets are the caller's again if the pass fails."""
        self._fill([self._present.get(id(param)) for param in self.params])

    def weigh(self, weight: float) -> None:
        """See ``GradientBucket``."""
        self._tensors.scale(self._views, weight)

    def publish(self, agreed: Agreed) -> None:
        """See ``GradientBucket``."""
        for piece, param, view in zip(self.pieces, self.params, self._views, strict=True):
            if agreed.kinds[piece]:
                self._present[id(param)] = self._given(view, self._into.get(id(param)))
        if self._bucket.lone:
            self._views = []  # the tensor belongs to the caller now

    def _given(self, view: T, target: T | None) -> T:
        """The values of ``view`` in memory that is not the engine's."""
        if self._bucket.lone and (target is None or view is target):
            return view
        copied.out_bytes += self._tensors.adapter.array(view).nbytes
        if target is None:
            return self._tensors.adapter.clone(view)
        self._tensors.copy([target], [view])
        return target

    def _fill(self, gradients: Gradients[T], into: Mapping[int, T] = NOWHERE) -> None:
        pairs = zip(gradients, self.params, strict=True)
        given = [self._tensors.zeros_like(param) if grad is None else grad for grad, param in pairs]
        if self._bucket.lone:
            self._views = [self._apart(given[0], into.get(id(self.params[0])))]
            self.array: Array = self._tensors.adapter.array(self._views[0])
        else:
            copied.into_bytes += self._values_bytes
            self._tensors.copy(self._views, given)

    def _apart(self, gradient: T, target: T | None) -> T:
        """Copy the large ``gradient`` into memory where it may be reduced: its ``target`` if usable, or new memory."""
        adapter = self._tensors.adapter
        if target is None or adapter.dense(target) is not target or not _are_alike(adapter, target, gradient):
            target = adapter.clone(gradient)
        elif adapter.dense(gradient) is gradient and adapter.array(gradient).address == adapter.array(target).address:
            return target
        else:
            self._tensors.copy([target], [gradient])
        copied.into_bytes += self._values_bytes
        return target


def _are_alike(adapter: TensorAdapter[T], one: T, other: T) -> bool:
    """True for two tensors of one shape and dtype."""
    a, b = adapter.spec(one), adapter.spec(other)
    return (a.shape, a.dtype) == (b.shape, b.dtype)
