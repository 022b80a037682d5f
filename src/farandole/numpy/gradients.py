"""Gradients of all ranks, for training loops written with NumPy: ``DistributedGradients``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from farandole.adapters.numpy import adapter, verbs
from farandole.collective import ReduceOp
from farandole.errors import UsageError
from farandole.gradients.handed import HandedReducer
from farandole.gradients.identity import Identity, Names
from farandole.gradients.snapshots import PARTS, SAMPLE_BYTES, processor_model
from farandole.gradients.tensors import Gradients, Tensors
from farandole.gradients.terms import Terms
from farandole.native import core
from farandole.runtime.lanes.reduction import reduction
from farandole.runtime.session.process_sets import ProcessSet, global_process_set

AnyArray: TypeAlias = npt.NDArray[Any]
GivenGradients: TypeAlias = Mapping[str, npt.ArrayLike | None] | Sequence[npt.ArrayLike | None]


@final
class NumpyTensors(Tensors[AnyArray]):
    """See ``Tensors``."""

    adapter = adapter

    def zeros_like(self, tensor: AnyArray) -> AnyArray:
        """See ``Tensors``; in the byte order of this machine."""
        return np.zeros(tensor.shape, tensor.dtype.newbyteorder("="))

    def clone(self, tensor: AnyArray) -> AnyArray:
        """See ``Tensors``."""
        return tensor.copy("K")

    def part(self, tensor: AnyArray, begin: int, end: int) -> AnyArray:
        """See ``Tensors``."""
        return tensor.reshape(-1)[begin:end]

    def copy(self, targets: Sequence[AnyArray], sources: Sequence[AnyArray]) -> None:
        """See ``Tensors``."""
        for target, source in zip(targets, sources, strict=True):
            np.copyto(target, source, casting="equiv")

    def add(self, targets: Sequence[AnyArray], others: Sequence[AnyArray]) -> None:
        """See ``Tensors``."""
        for target, other in zip(targets, others, strict=True):
            np.add(target, other, out=target)

    def scale(self, tensors: Sequence[AnyArray], factor: float) -> None:
        """See ``Tensors``."""
        for tensor in tensors:
            np.multiply(tensor, factor, out=tensor, casting="unsafe")

    def fill(self, tensor: AnyArray, value: int) -> None:
        """See ``Tensors``."""
        tensor.fill(value)

    def digests(self, tensors: Gradients[AnyArray]) -> list[int]:
        """See ``Tensors``."""
        dense = [None if tensor is None else np.ascontiguousarray(tensor) for tensor in tensors]
        return core.digest(
            [0 if tensor is None else tensor.ctypes.data for tensor in dense],
            [0 if tensor is None else tensor.nbytes for tensor in dense],
        )

    def sample(self, tensor: AnyArray, turn: int) -> AnyArray:
        """See ``Tensors``."""
        if tensor.nbytes <= SAMPLE_BYTES:
            return tensor
        flat = tensor.reshape(-1)
        section = -(-len(flat) // PARTS)
        each = max(1, SAMPLE_BYTES // (tensor.itemsize * PARTS))
        start = turn % -(-section // each) * each
        return np.concatenate(
            [flat[first + start : min(first + start + each, first + section)] for first in range(0, len(flat), section)]
        )

    def processor(self, param: object) -> str:
        """See ``Tensors``."""
        return f"{processor_model()}, numpy {np.__version__}"


@final
class DistributedGradients:
    """Average of the gradients of all ranks, for a training loop of your own.

    >>> average = hvd.DistributedGradients(weights)         # dict of arrays, the same on every rank
    >>> for x, y in batches:
    ...     gradients = average(gradient_of(weights, x, y))
    ...     for name, weight in weights.items():
    ...         weight -= 0.1 * gradients[name]

    ``like``: a dict by name, or a list, of arrays with the shapes and dtypes of the gradients. ``op``: ``Average``,
    ``Sum``, ``Min``, ``Max`` or ``Product``. ``backward_passes_per_step``: sum the gradients of that many calls before
    reducing, and return ``None`` in those between. ``gradient_predivide_factor``: divide by it before the sum and by
    *size* over it after. ``lag``: hand out the gradients of that many calls ago, in the beginning zeros, while the ones
    of now travel. ``process_set``: the ranks that share gradients. Raises ``ValueError`` for arguments that cannot be.
    """

    def __init__(
        self,
        like: Mapping[str, AnyArray] | Sequence[AnyArray],
        op: int = ReduceOp.AVERAGE,
        *,
        backward_passes_per_step: int = 1,
        gradient_predivide_factor: float = 1.0,
        lag: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if gradient_predivide_factor != 1.0 and op != ReduceOp.AVERAGE:
            raise UsageError("gradient_predivide_factor splits an average in two: it needs op=Average")
        if op == ReduceOp.ADASUM:
            raise UsageError("DistributedGradients(op=Adasum): it combines changes of weights; allreduce these instead")
        if backward_passes_per_step < 1 or lag < 0:
            raise UsageError(
                f"backward_passes_per_step={backward_passes_per_step}, lag={lag}: they start from 1, and from 0"
            )
        self._keys = list(like) if isinstance(like, Mapping) else None
        params = self._params = [_shaped(each) for each in (like.values() if isinstance(like, Mapping) else like)]
        how = reduction(None, op, 1.0 / gradient_predivide_factor, gradient_predivide_factor).checked()
        names = Names(zip(self._keys or map(str, range(len(params))), params, strict=True), self._keys is not None)
        terms = Terms(how, process_set=process_set)
        identity = Identity(params, names, process_set, "gradients")
        self._reducer = HandedReducer(tensors, verbs, lambda: params, identity, terms, backward_passes_per_step)
        if lag:
            self._reducer.delay(lag)

    def __call__(self, gradients: GivenGradients) -> Any:
        """Reduced ``gradients``, as a dict or a list of new arrays. Collective.

        ``None`` in the place of a gradient: this rank has none, and contributes zeros; where no rank has one, the
        result is ``None`` there. Raises ``UsageError`` for gradients of other shapes or under other names, and
        ``HorovodInternalError`` on every rank where they do not fit each other.
        """
        given = self._listed(gradients)
        reduced = self._reducer.reduce(given)
        if reduced is None:
            return None
        self._reducer.vote()
        self._reducer.stepped()
        return dict(zip(self._keys, reduced, strict=True)) if self._keys is not None else reduced

    def _listed(self, gradients: GivenGradients) -> list[AnyArray | None]:
        """Gradients in the order of the arrays that this was made of."""
        wrong = ""
        if isinstance(gradients, Mapping) is (self._keys is None):
            wrong = "a dict where it was made of a list, or the other way round: give the gradients as the arrays"
        elif isinstance(gradients, Mapping) and (
            unknown := [key for key in gradients if key not in (self._keys or ())]
        ):
            wrong = f"{unknown[0]!r} is not among the arrays that it was made of: {', '.join(self._keys or ())}"
        elif not isinstance(gradients, Mapping) and len(gradients) != len(self._params):
            wrong = f"{len(gradients)} gradients for {len(self._params)} arrays: give one for each, or None"
        if wrong:
            self._reducer.refuse()
            raise UsageError(f"DistributedGradients: {wrong}")
        values = map(gradients.get, self._keys or ()) if isinstance(gradients, Mapping) else gradients
        return [None if v is None else _like(v, param) for v, param in zip(values, self._params, strict=True)]


def _like(gradient: Any, param: AnyArray) -> AnyArray:
    """The gradient as an array; whole numbers in the dtype of ``param``, or their average would be a whole one."""
    array = np.asarray(gradient)
    return array.astype(param.dtype) if array.dtype.kind in "biu" and param.dtype.kind not in "biu" else array


def _shaped(like: AnyArray) -> AnyArray:
    """An array with the shape and dtype of ``like`` that keeps nothing of it."""
    array = np.asarray(like)
    return np.broadcast_to(np.zeros((), array.dtype.newbyteorder("=")), array.shape)


tensors = NumpyTensors()
