"""Backends of Keras: passing of gradients to the reduction and back.

backend.reduce(reduction, gradients)        # of the backend in use; works inside its compiled step, too

Only the framework of the backend in use is imported.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any, TypeVar, cast, final

import keras
import numpy as np

from farandole.adapters.numpy import adapter as arrays
from farandole.errors import UnsupportedError, UsageError
from farandole.graphs.gradients import GraphGradients
from farandole.runtime.collectives.adapter import TensorAdapter, TensorSpec
from farandole.runtime.session.process_sets import ProcessSet

F = TypeVar("F", bound=Callable[..., Any])


class Backend(ABC):
    """Operations that depend on the Keras backend."""

    takes_none = False
    """True if steps run eagerly, so that a rank may lack a gradient that other ranks have."""

    def dense(self, gradient: Any) -> Any:
        """The gradient as a dense tensor."""
        return gradient

    def dtype(self, tensor: Any) -> np.dtype[Any]:
        """NumPy dtype of a tensor."""
        name: str = keras.backend.standardize_dtype(tensor.dtype)
        return np.dtype(name)  # ml_dtypes, which Keras imports, has registered bfloat16 with NumPy

    def as_written(self, function: F) -> F:
        """Decorator that prevents the backend's Python compiler from rewriting or tracing into a function."""
        return function

    def keep_programs(self) -> None:  # noqa: B027 (only JAX compiles for long)
        """Cache compiled programs from now on, for programs that are traced again without a change."""

    def is_sparse(self, gradient: Any) -> bool:
        """True for a gradient that consists of some rows only."""
        return False

    def gather(self, gradient: Any, name: str, process_set: ProcessSet) -> Any:
        """Rows of a sparse gradient from all ranks. Collective."""
        raise NotImplementedError

    def scaled(self, gradient: Any, factor: Any) -> Any:
        """A gradient times a number or a scalar tensor."""
        return gradient * factor

    def refuse_replicas(self) -> None:  # noqa: B027
        """Raise ``UsageError`` if the framework steps with several replicas, in this process or in others."""

    def members(self, process_set: ProcessSet) -> Any:
        """Number of ranks; a tensor if compiled steps outlive a change of the workers."""
        return len(process_set.ranks)

    def await_values(self, variables: Sequence[Any]) -> None:  # noqa: B027 (most backends compute at once)
        """Wait until the values are computed; raises the error of a failed computation."""

    def build(self, model: Any) -> None:  # noqa: B027 (other backends build a model at the begin of ``fit``)
        """Build a model that is not built, from a batch of the calling ``fit``, if there is one."""

    def await_step(self, model: Any) -> None:  # noqa: B027
        """Wait until the last step of a ``fit`` is done."""

    def untracked(self) -> AbstractContextManager[Any]:
        """Context without recording for backward passes."""
        return nullcontext()

    def compiled(self, function: F) -> F:
        """Compile a function of arrays, on backends that need it."""
        return function

    def drawing(self, seed: int) -> AbstractContextManager[Any]:
        """Context that seeds the random numbers of layers without a Keras generator."""
        return nullcontext()

    def present(self, value: Any) -> Any:
        """A part of a batch; ``None`` if it is the backend's own placeholder for an absent part."""
        return value

    @abstractmethod
    def reduce(self, reduction: GraphGradients, gradients: Sequence[Any], weights: Sequence[Any]) -> list[Any]:
        """Reduced gradients as tensors of the backend. Collective; ranks compare the values of ``weights``."""


@final
class TorchBackend(Backend):
    """PyTorch: a compiled step is interrupted for the reduction (graph break)."""

    takes_none = True

    def as_written(self, function: F) -> F:
        """See ``Backend``."""
        import torch

        kept: F = torch.compiler.disable(function)
        return kept

    def untracked(self) -> AbstractContextManager[Any]:
        """See ``Backend``."""
        import torch

        return torch.no_grad()

    @contextmanager
    def drawing(self, seed: int) -> Iterator[None]:
        """See ``Backend``; ``Dropout`` without its own seed draws from PyTorch's generator."""
        import torch

        with torch.random.fork_rng():
            torch.default_generator.manual_seed(seed)
            yield

    def reduce(self, reduction: GraphGradients, gradients: Sequence[Any], weights: Sequence[Any]) -> list[Any]:
        """See ``Backend``."""
        from farandole.adapters.torch import adapter as tensors

        kept = [None if gradient is None else tensors.dense(gradient.detach()) for gradient in gradients]
        given = [None if tensor is None else _viewed(arrays, tensors, tensor) for tensor in kept]
        seen = [_viewed(arrays, tensors, tensors.dense(weight.detach())) for weight in weights]
        reduced = reduction.reduce(given, weights=seen)
        return [None if result is None else _viewed(tensors, arrays, result) for result in reduced]


@final
class TensorFlowBackend(Backend):
    """TensorFlow: eager, and inside ``tf.function``."""

    def dense(self, gradient: Any) -> Any:
        """See ``Backend``; TensorFlow's gradient of an embedding has only the rows that were used."""
        import tensorflow as tf

        return tf.convert_to_tensor(gradient)

    def as_written(self, function: F) -> F:
        """See ``Backend``."""
        import tensorflow as tf

        kept: F = tf.autograph.experimental.do_not_convert(function)
        return kept

    def build(self, model: Any) -> None:
        """See ``Backend``; symbolically, as Keras does under TensorFlow strategies and on the other backends."""
        frame = None if model.built else sys._getframe(1)
        while frame is not None and not (frame.f_code.co_name == "fit" and "epoch_iterator" in frame.f_locals):
            frame = frame.f_back
        if frame is not None:  # loses the first batch of data that can be read only once
            iterator = frame.f_locals["epoch_iterator"]
            # Before Keras 3.8 there is no ``enumerate_epoch``, and the next epoch makes a new iterator by itself.
            steps = iterator.enumerate_epoch() if hasattr(iterator, "enumerate_epoch") else iterator
            *_, batches = next(iter(steps))
            with contextlib.suppress(Exception):  # then the model is not built, and later checks report this
                model._symbolic_build(data_batch=next(batches))
            if hasattr(iterator, "reset"):
                iterator.reset()

    def present(self, value: Any) -> Any:
        """See ``Backend``."""
        import tensorflow as tf

        return None if isinstance(value, tf.experimental.Optional) else value

    def is_sparse(self, gradient: Any) -> bool:
        """See ``Backend``; kept sparse, because Keras optimizers may update only these rows, as with one worker."""
        import tensorflow as tf

        return isinstance(gradient, tf.IndexedSlices)

    def gather(self, gradient: Any, name: str, process_set: ProcessSet) -> Any:
        """See ``Backend``."""
        import tensorflow as tf

        from farandole.tensorflow import allgather

        values, indices = (
            allgather(x, name=f"{name}.{part}", process_set=process_set)
            for part, x in (("values", gradient.values), ("indices", gradient.indices))
        )
        return tf.IndexedSlices(values, indices, gradient.dense_shape)

    def refuse_replicas(self) -> None:
        """See ``Backend``."""
        import tensorflow as tf

        strategy = tf.distribute.get_strategy()
        if strategy.num_replicas_in_sync > 1:
            raise UsageError(
                f"a step of a distributed optimizer under {type(strategy).__name__} of TensorFlow with "
                f"{strategy.num_replicas_in_sync} replicas: gradients of the first one only would be reduced. Start "
                "one rank for each device (farandole run -np N), and take the strategy away"
            )

    def members(self, process_set: ProcessSet) -> Any:
        """See ``Backend``."""
        import tensorflow as tf

        from farandole.tensorflow.topology import members

        return tf.cast(members(process_set), tf.float64)

    def scaled(self, gradient: Any, factor: Any) -> Any:
        """See ``Backend``."""
        import tensorflow as tf

        factor = tf.cast(factor, gradient.dtype)
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
        return gradient * factor

    def reduce(self, reduction: GraphGradients, gradients: Sequence[Any], weights: Sequence[Any]) -> list[Any]:
        """See ``Backend``."""
        import tensorflow as tf

        from farandole.adapters.tensorflow import values_of
        from farandole.tensorflow.gradients import weights_of
        from farandole.tensorflow.graph import call, in_graph

        seen = weights_of(weights)
        if not in_graph():
            reduced = reduction.reduce(list(map(values_of, gradients)), weights=list(map(values_of, seen)))
            return [tf.convert_to_tensor(result) for result in reduced]
        dtypes, shapes = [each.dtype for each in gradients], [each.shape for each in gradients]
        return call(reduction.spec, reduction.name, [*gradients, *seen], dtypes, shapes)


@final
class JaxBackend(Backend):
    """JAX: inside or outside of a compiled step."""

    def keep_programs(self) -> None:
        """See ``Backend``."""
        from farandole.jax.executables import keep_executables

        keep_executables()

    def compiled(self, function: F) -> F:
        """See ``Backend``."""
        import jax

        return cast("F", jax.jit(function))

    def reduce(self, reduction: GraphGradients, gradients: Sequence[Any], weights: Sequence[Any]) -> list[Any]:
        """See ``Backend``."""
        import jax

        from farandole.jax.optimizer import comparable
        from farandole.jax.programs import call, is_traced

        seen = comparable(weights)
        if is_traced(*gradients):
            results = [jax.ShapeDtypeStruct(g.shape, g.dtype) for g in gradients]
            return call(reduction.spec, [*gradients, *map(jax.lax.stop_gradient, seen)], results)
        reduced = reduction.reduce(list(map(np.asarray, gradients)), weights=list(map(np.asarray, seen)))
        return [jax.numpy.asarray(result) for result in reduced]

    def await_values(self, variables: Sequence[Any]) -> None:
        """See ``Backend``."""
        import jax

        jax.block_until_ready([variable.value for variable in variables])

    def await_step(self, model: Any) -> None:
        """See ``Backend``; during ``fit``, Keras keeps the results of a step in ``_jax_state``."""
        import jax

        jax.block_until_ready(model._jax_state)


def collectives() -> ModuleType:
    """Farandole module whose collectives take tensors of the backend in use."""
    return importlib.import_module(f"farandole.{keras.backend.backend()}")


def _viewed(to: TensorAdapter[Any], of: TensorAdapter[Any], tensor: Any) -> Any:
    """View of a tensor's memory as a tensor of another framework."""
    array = of.array(tensor)
    seen = to.view(array, TensorSpec(of.shape(tensor), array.dtype.label, array.dtype.itemsize))
    if seen is None:
        raise UnsupportedError(f"gradients on {array.device}: farandole.keras reduces what is in host memory")
    return seen


_BACKENDS: dict[str, type[Backend]] = {"torch": TorchBackend, "tensorflow": TensorFlowBackend, "jax": JaxBackend}


def _chosen() -> Backend:
    name = keras.backend.backend()
    if name not in _BACKENDS:
        raise UnsupportedError(f"Keras has the backend {name!r}: set KERAS_BACKEND to one of {', '.join(_BACKENDS)}")
    return _BACKENDS[name]()


backend: Backend = _chosen()
