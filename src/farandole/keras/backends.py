"""Backends of Keras: how gradients get from each to the reduction, and back.

backend.reduce(reduction, gradients)        # of the backend in use; inside of its compiled step, too

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
    """A backend, as far as tensors travel."""

    takes_none = False
    """True if every step is computed as it is called, so that a rank may have no gradient where others have one."""

    def dense(self, gradient: Any) -> Any:
        """The gradient as a tensor with all its elements."""
        return gradient

    def dtype(self, tensor: Any) -> np.dtype[Any]:
        """The dtype of a tensor, in NumPy's terms."""
        name: str = keras.backend.standardize_dtype(tensor.dtype)
        return np.dtype(name)  # ml_dtypes, which Keras imports, has told NumPy what bfloat16 is

    def as_written(self, function: F) -> F:
        """Keep the backend's compiler of Python from rewriting a function, or following it."""
        return function

    def keep_programs(self) -> None:  # noqa: B027 (only one compiles for so long)
        """Keep compiled programs from now on, for those that are traced again and come out alike."""

    def is_sparse(self, gradient: Any) -> bool:
        """True for a gradient that has a few rows only."""
        return False

    def gather(self, gradient: Any, name: str, process_set: ProcessSet) -> Any:
        """The rows of a sparse gradient on all ranks. Collective."""
        raise NotImplementedError

    def scaled(self, gradient: Any, factor: Any) -> Any:
        """A gradient times a number, or a tensor of one."""
        return gradient * factor

    def refuse_replicas(self) -> None:  # noqa: B027
        """Raise ``UsageError`` where the framework has several replicas step in this process, or with others."""

    def members(self, process_set: ProcessSet) -> Any:
        """The number of ranks; a tensor where compiled steps go on with others."""
        return len(process_set.ranks)

    def await_values(self, variables: Sequence[Any]) -> None:  # noqa: B027 (most have them at once)
        """Wait until the values are computed; raises what that has ended with."""

    def build(self, model: Any) -> None:  # noqa: B027 (the others build a model when ``fit`` begins)
        """Build a model that is not built, from a batch of the ``fit`` that calls, if there is one."""

    def await_step(self, model: Any) -> None:  # noqa: B027
        """Wait until the last step of a ``fit`` is done."""

    def untracked(self) -> AbstractContextManager[Any]:
        """Context in which no history is recorded of what is computed."""
        return nullcontext()

    def compiled(self, function: F) -> F:
        """A function of arrays as one program, where the backend wants that."""
        return function

    def drawing(self, seed: int) -> AbstractContextManager[Any]:
        """Context in which what layers draw without a generator of Keras begins with ``seed``."""
        return nullcontext()

    def present(self, value: Any) -> Any:
        """A part of a batch, or ``None`` where the backend says in a way of its own that there is none."""
        return value

    @abstractmethod
    def reduce(self, reduction: GraphGradients, gradients: Sequence[Any], weights: Sequence[Any]) -> list[Any]:
        """Reduced gradients as tensors of the backend. Collective; ranks compare the values of ``weights``."""


@final
class TorchBackend(Backend):
    """PyTorch: a compiled step is left for the reduction, and entered again."""

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
        """See ``Backend``; ``Dropout`` without a seed of its own draws from PyTorch's generator."""
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
    """TensorFlow: eager, and inside of ``tf.function``."""

    def dense(self, gradient: Any) -> Any:
        """See ``Backend``; of an embedding, TensorFlow gives the rows that were used."""
        import tensorflow as tf

        return tf.convert_to_tensor(gradient)

    def as_written(self, function: F) -> F:
        """See ``Backend``."""
        import tensorflow as tf

        kept: F = tf.autograph.experimental.do_not_convert(function)
        return kept

    def build(self, model: Any) -> None:
        """See ``Backend``; with symbols, as Keras does under a strategy of TensorFlow and on the other backends."""
        frame = None if model.built else sys._getframe(1)
        while frame is not None and not (frame.f_code.co_name == "fit" and "epoch_iterator" in frame.f_locals):
            frame = frame.f_back
        if frame is not None:  # its first batch is lost where the data can be read once only
            iterator = frame.f_locals["epoch_iterator"]
            # Before Keras 3.8 it is another method, and the next epoch makes a new iterator by itself.
            steps = iterator.enumerate_epoch() if hasattr(iterator, "enumerate_epoch") else iterator
            *_, batches = next(iter(steps))
            with contextlib.suppress(Exception):  # it is not built then, which is told by who asks
                model._symbolic_build(data_batch=next(batches))
            if hasattr(iterator, "reset"):
                iterator.reset()

    def present(self, value: Any) -> Any:
        """See ``Backend``."""
        import tensorflow as tf

        return None if isinstance(value, tf.experimental.Optional) else value

    def is_sparse(self, gradient: Any) -> bool:
        """See ``Backend``; optimizers of Keras may update these rows only, and do so with one worker."""
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
    """JAX: inside of a step that is compiled, or outside."""

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
        """See ``Backend``; Keras keeps what the step returns beside the model."""
        import jax

        jax.block_until_ready(model._jax_state)


def collectives() -> ModuleType:
    """The module whose ``allreduce`` and so on take tensors of the backend in use."""
    return importlib.import_module(f"farandole.{keras.backend.backend()}")


def _viewed(to: TensorAdapter[Any], of: TensorAdapter[Any], tensor: Any) -> Any:
    """The same memory as a tensor of another framework."""
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
