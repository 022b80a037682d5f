"""TensorFlow's eager tensors and variables as memory for the runtime.

    verbs.allreduce([tf.ones(3)], "ones", Reduction(), global_process_set).run()

Tensors never change, so an engine reads them without a copy, and writes into new memory, which becomes a tensor by
DLPack. TensorFlow copies tensors of another device, as of a GPU, to host memory before, and results to it after. An
in-place verb assigns its result to a ``tf.Variable``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeGuard, final

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from farandole.collective import Array, DType, Reduction
from farandole.errors import UnsupportedError, UsageError
from farandole.runtime.collectives.adapter import TensorAdapter, TensorSpec
from farandole.runtime.collectives.verbs import Request, Verbs
from farandole.runtime.session.process_sets import ProcessSet

__all__ = ["DTYPES", "AnyTensor", "TensorFlowAdapter", "TensorFlowVerbs", "adapter", "placed", "values_of", "verbs"]

AnyTensor: TypeAlias = Any
"""A ``tf.Tensor``, a variable of TensorFlow or Keras, or any argument of ``tf.convert_to_tensor``."""

DTYPES: dict[Any, DType] = {tf.as_dtype(d.label): d for d in DType}

_ALIGNMENT = 64
"""Alignment in bytes of TensorFlow's tensors, which its kernels assume."""


@final
class TensorFlowAdapter(TensorAdapter[AnyTensor]):
    """Tensors in host memory, or copied there from a device."""

    def array(self, tensor: AnyTensor) -> Array:
        """See ``Adapter``; only for results of ``dense``, ``clone`` or ``empty``."""
        values = values_of(tensor)
        return Array(values.__array_interface__["data"][0], values.size, require_served(tensor.dtype), (tensor, values))

    def shape(self, tensor: AnyTensor) -> tuple[int, ...]:
        """See ``Adapter``."""
        shape = tensor.shape if hasattr(tensor, "shape") else np.shape(tensor)
        return tuple(int(length) for length in shape)

    def dense(self, tensor: AnyTensor) -> AnyTensor:
        """See ``Adapter``; for a variable, its current tensor, which is never written to."""
        return _eager(tensor)

    def clone(self, tensor: AnyTensor) -> AnyTensor:
        """See ``Adapter``."""
        given = _eager(tensor)
        made = self.empty(self.shape(given), given)
        np.copyto(values_of(made), values_of(given))
        return made

    def empty(self, shape: tuple[int, ...], like: AnyTensor) -> AnyTensor:
        """See ``Adapter``."""
        dtype = require_served(tf.as_dtype(like.dtype))
        memory = aligned(shape, dtype)
        tensor = tf.experimental.dlpack.from_dlpack(memory.__dlpack__())
        if dtype is not DType.BFLOAT16:
            return tensor
        with tf.device(tensor.device):  # the default device may be a GPU, and engines must write to this memory
            return tf.bitcast(tensor, tf.bfloat16)

    def assign(self, target: AnyTensor, source: AnyTensor) -> None:
        """See ``Adapter``; ``source`` may be an array."""
        target.assign(source)

    def written(self, tensor: AnyTensor) -> None:
        """See ``Adapter``; nothing to do, because no tensor is written in place."""

    def is_tensor(self, leaf: object) -> TypeGuard[AnyTensor]:
        """See ``TensorAdapter``."""
        if is_variable(leaf) or isinstance(leaf, SessionVariable):
            return True
        return bool(tf.is_tensor(leaf) and hasattr(leaf, "_numpy"))

    def spec(self, tensor: AnyTensor) -> TensorSpec:
        """See ``TensorAdapter``."""
        dtype = tf.as_dtype(tensor.dtype)
        return TensorSpec(self.shape(tensor), dtype.name, dtype.size)

    def make(self, spec: TensorSpec) -> AnyTensor:
        """See ``TensorAdapter``; a variable, because its values will be assigned."""
        return tf.Variable(tf.zeros(spec.shape, spec.dtype), trainable=False)

    def view(self, memory: Array, spec: TensorSpec) -> AnyTensor | None:
        """See ``TensorAdapter``; always ``None``, because tensors do not change."""
        return None

    def host_bytes(self, tensor: AnyTensor) -> Array:
        """See ``TensorAdapter``; always a copy."""
        held = np.array(tensor.numpy(), order="C")
        return Array(held.ctypes.data, held.nbytes, DType.UINT8, held)

    def host_copy(self, tensor: AnyTensor) -> AnyTensor:
        """See ``TensorAdapter``."""
        return tf.constant(np.array(tensor.numpy()))


@final
class SessionVariable:
    """Variable of a TensorFlow 1 graph, together with the session that holds its values."""

    def __init__(self, variable: Any, session: Any) -> None:
        self._variable, self._session = variable, session
        self.name, self.shape, self.dtype = variable.name, variable.shape, variable.dtype.base_dtype

    def numpy(self) -> Any:
        """The current values."""
        return self._session.run(self._variable)

    def assign(self, values: npt.ArrayLike) -> None:
        """Set the values without adding operations to the graph."""
        setter = self._variable.initializer
        self._session.run(setter, feed_dict={setter.inputs[1]: values})


def is_variable(value: object) -> bool:
    """True for a TensorFlow variable, or for a Keras 3 variable, which wraps one."""
    return isinstance(value, tf.Variable) or isinstance(getattr(value, "value", None), tf.Variable)


def values_of(tensor: AnyTensor) -> npt.NDArray[Any]:
    """Values of an eager tensor; a view, not to be written to, if they are in host memory, else a copy."""
    if tensor.shape.rank:
        return np.asarray(tensor._numpy())
    with tf.device(tensor.device):  # the default device may be a GPU
        return np.asarray(tf.reshape(tensor, [1])._numpy()).reshape(())  # ``_numpy()`` copies scalars


def placed(like: AnyTensor, result: AnyTensor) -> AnyTensor:
    """``result`` on the device of ``like``, if that is a tensor or a variable."""
    held = like.value if is_variable(like) and not isinstance(like, tf.Variable) else like
    if not isinstance(held, tf.Tensor | tf.Variable) or held.device == result.device:
        return result
    with tf.device(held.device):
        return tf.identity(result)


def aligned(shape: tuple[int, ...], dtype: DType) -> npt.NDArray[Any]:
    """New array whose memory TensorFlow can use without a copy."""
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = np.empty(count + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    name = "uint16" if dtype is DType.BFLOAT16 else dtype.label  # NumPy's DLPack has no bfloat16
    return memory[start : start + count].view(name).reshape(shape)


def variable(tensor: AnyTensor) -> AnyTensor:
    """Tensor for an in-place verb; raises ``UsageError`` if ``tensor`` cannot hold the result."""
    if not is_variable(tensor):
        raise UsageError(
            f"a {type(tensor).__name__} cannot be written in place: pass a tf.Variable, or call the function without "
            "the underscore at its end, which returns the result"
        )
    return adapter.clone(tensor)


def dense_tensor(value: Any) -> AnyTensor:
    """Dense tensor of a user's argument: a tensor, a variable of TensorFlow or Keras, an array, a number.

    Raises ``UnsupportedError`` for objects that consist of several tensors.
    """
    if isinstance(value, tf.SparseTensor | tf.RaggedTensor):
        to_dense = "tf.sparse.to_dense()" if isinstance(value, tf.SparseTensor) else ".to_tensor()"
        raise UnsupportedError(f"a {type(value).__name__} does not travel as it is: pass {to_dense} of it")
    return tf.convert_to_tensor(value)


def _eager(tensor: AnyTensor) -> AnyTensor:
    if isinstance(tensor, tf.IndexedSlices):
        raise UnsupportedError("IndexedSlices do not travel in this way: pass tf.convert_to_tensor() of them")
    found = dense_tensor(tensor)
    if not hasattr(found, "_numpy"):
        raise UsageError(
            "a tensor of a graph has no value yet: inside of tf.function call the function whose name has neither "
            "_async nor an underscore at its end"
        )
    require_served(found.dtype)
    return found


def require_served(dtype: Any) -> DType:
    """Engines' ``DType`` of ``dtype``; raises ``UnsupportedError`` if there is none."""
    found = DTYPES.get(dtype)
    if found is None:
        raise UnsupportedError(
            f"a tensor of {dtype.name} does not travel; these do: {', '.join(d.label for d in DType)}: cast it, or "
            "pass objects to broadcast_object or allgather_object"
        )
    return found


@final
class TensorFlowVerbs:
    """``Verbs`` whose results are on the devices of the given tensors."""

    def __init__(self, adapter: TensorFlowAdapter) -> None:
        self._verbs: Verbs[AnyTensor] = Verbs(adapter, variable, placed)
        self.allreduce, self.broadcast, self.telling = self._verbs.allreduce, self._verbs.broadcast, self._verbs.telling

    def reducescatter(
        self, tensors: Sequence[AnyTensor], name: str | None, how: Reduction, process_set: ProcessSet
    ) -> Request[list[AnyTensor]]:
        """See ``Verbs``."""
        request = self._verbs.reducescatter(tensors, name, how, process_set)
        return request.then(lambda results: list(map(placed, tensors, results)))

    def allgather(
        self, tensors: Sequence[AnyTensor], name: str | None, process_set: ProcessSet
    ) -> Request[list[tuple[AnyTensor, tuple[int, ...]]]]:
        """See ``Verbs``."""
        request = self._verbs.allgather(tensors, name, process_set)
        return request.then(
            lambda done: [(placed(t, result), rows) for t, (result, rows) in zip(tensors, done, strict=True)]
        )

    def alltoall(
        self, tensor: AnyTensor, splits: Sequence[int] | None, name: str | None, process_set: ProcessSet
    ) -> Request[tuple[AnyTensor, tuple[int, ...]]]:
        """See ``Verbs``."""
        request = self._verbs.alltoall(tensor, splits, name, process_set)
        return request.then(lambda done: (placed(tensor, done[0]), done[1]))


adapter = TensorFlowAdapter()
verbs = TensorFlowVerbs(adapter)
