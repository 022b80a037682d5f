"""State handlers of models, optimizers, samplers and random generators; the names are Horovod's."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias, final

import torch

from farandole.collective import Array, DType
from farandole.elastic.worker.state_parts import Leaves, SamplerPart, StatefulPart, StateHandler, StatePart
from farandole.torch.adapter import adapter
from farandole.torch.elastic.sampler import ElasticSampler
from farandole.torch.trees import TensorPlaceholder, replace

Registry: TypeAlias = list[tuple[type[Any], type[StateHandler]]]

SamplerStateHandler = SamplerPart


@final
class ModelStateHandler(StatePart):
    """A model: its parameters are the same on all ranks, its buffers may be statistics of each rank's own batches."""

    is_fixed: ClassVar[bool] = True

    def tree(self) -> Any:
        """See ``StatePart``."""
        return self.value.state_dict(keep_vars=True)

    def own_tensors(self) -> set[int]:
        """See ``StatePart``."""
        return {id(buffer) for buffer in self.value.buffers()}

    def save(self) -> None:
        """See ``StateHandler``."""
        if not self.votes:
            super().save()

    def restore(self) -> None:
        """See ``StateHandler``."""
        if not self.votes:
            super().restore()


@final
class OptimizerStateHandler(StatePart):
    """An optimizer: its state, and the settings of its groups, which schedulers change between steps."""

    def load(self, tree: Any) -> None:
        """See ``StatePart``; the groups stay the objects they are, as schedulers may hold them."""
        groups = self.value.param_groups
        self.value.load_state_dict(tree)
        for kept, loaded in zip(groups, self.value.param_groups, strict=True):
            kept.update(loaded)
        self.value.param_groups = groups

    def save(self) -> None:
        """See ``StateHandler``."""
        if self.votes:
            self._saved = [dict(group) for group in self.value.param_groups]
        else:
            super().save()

    def restore(self) -> None:
        """See ``StateHandler``."""
        if self.votes:
            for group, saved in zip(self.value.param_groups, self._saved, strict=True):
                group.update(saved)
        else:
            super().restore()


@final
class ScalerStateHandler(StatePart):
    """A ``GradScaler``; a step that was not voted leaves it in the middle of one."""

    def begin_anew(self) -> None:
        """Forget which gradients are unscaled already: there are none."""
        if self.value.is_enabled():  # else it is hollow
            self.value._per_optimizer_states.clear()


@final
class GeneratorStateHandler(StatePart):
    """A ``torch.Generator`` of the script's own, the same on all ranks."""

    def tree(self) -> Any:
        """See ``StatePart``."""
        return bytes(self.value.get_state().tolist())

    def load(self, tree: Any) -> None:
        """See ``StatePart``."""
        self.value.set_state(torch.frombuffer(bytearray(tree), dtype=torch.uint8))


@final
class RandomPart(StatePart):
    """A global random generator, as a function that gets its state and one that sets it.

    A step that is computed again draws the same numbers again. Ranks may be seeded differently: then a worker that
    comes keeps its own seed.
    """

    is_private: ClassVar[bool] = True

    def __init__(self, getter: Callable[[], Any], setter: Callable[[Any], object]) -> None:
        super().__init__(None)
        self._get, self._set = getter, setter

    def tree(self) -> Any:
        """See ``StatePart``."""
        state = self._get()
        return bytes(state.tolist()) if isinstance(state, torch.Tensor) else state

    def load(self, tree: Any) -> None:
        """See ``StatePart``."""
        self._set(torch.frombuffer(bytearray(tree), dtype=torch.uint8) if isinstance(tree, bytes) else tree)

    def save(self) -> None:
        """See ``StateHandler``; done after every step, so it copies no more than it must."""
        self._saved = self._get()

    def restore(self) -> None:
        """See ``StateHandler``."""
        self._set(self._saved)


def random_parts() -> dict[str, RandomPart]:
    """Parts for the global generators of torch, of Python, and of NumPy where it is loaded."""
    return {
        "torch.random": RandomPart(torch.get_rng_state, torch.set_rng_state),
        "random": RandomPart(random.getstate, random.setstate),
        "numpy.random": RandomPart(_numpy_state, _set_numpy_state),
    }


def _numpy_state() -> Any:
    numpy = sys.modules.get("numpy.random")
    return numpy.get_state() if numpy else None


def _set_numpy_state(state: Any) -> None:
    numpy = sys.modules.get("numpy.random")
    if numpy and state is not None:
        numpy.set_state(state)


_registry: Registry = [
    (ElasticSampler, SamplerStateHandler),
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (torch.amp.GradScaler, ScalerStateHandler),
    (torch.Generator, GeneratorStateHandler),
]


def get_handler_registry() -> Registry:
    """Classes of values with their handlers; the first that fits is taken.

    >>> hvd.elastic.state.set_handler_registry([(MyClass, MyHandler), *hvd.elastic.state.get_handler_registry()])
    """
    return _registry


def set_handler_registry(registry: Registry) -> None:
    """Replace the table; for states made from now on. See ``get_handler_registry``."""
    _registry[:] = list(registry)


def handler_for(value: Any) -> StateHandler | None:
    """Make the handler of ``value``; ``None`` if it is to be pickled."""
    for kind, handler in _registry:
        if isinstance(value, kind):
            return handler(value)
    return StatefulPart(value) if StatefulPart.fits(value) else None


@final
class TensorLeaves(Leaves[torch.Tensor]):
    """Tensors on any device; those in contiguous host memory are read and written in place."""

    def take(self, tree: Any) -> tuple[Any, list[torch.Tensor]]:
        """See ``Leaves``."""
        tensors: list[torch.Tensor] = []

        def note(tensor: torch.Tensor) -> TensorPlaceholder:
            tensors.append(tensor)
            return TensorPlaceholder.of(tensor)

        return replace(tree, torch.Tensor, note), tensors

    def put(self, skeleton: Any, tensors: Sequence[torch.Tensor]) -> tuple[Any, list[torch.Tensor]]:
        """See ``Leaves``."""
        at_hand, used = iter(tensors), []

        def fill(placeholder: TensorPlaceholder) -> torch.Tensor:
            tensor = next(at_hand, None)
            used.append(
                tensor if tensor is not None and TensorPlaceholder.of(tensor) == placeholder else placeholder.empty()
            )
            return used[-1]

        return replace(skeleton, TensorPlaceholder, fill), used

    def memory(self, tensors: Sequence[torch.Tensor]) -> tuple[list[Array], list[torch.Tensor]]:
        """See ``Leaves``."""
        held = [tensor if _is_plain(tensor) else tensor.detach().cpu().contiguous() for tensor in tensors]
        arrays = [Array(t.data_ptr(), t.numel() * t.element_size(), DType.UINT8, t) for t in held]
        return arrays, held

    def written(self, tensors: Sequence[torch.Tensor], held: Sequence[torch.Tensor]) -> None:
        """See ``Leaves``."""
        with torch.no_grad():
            for tensor, source in zip(tensors, held, strict=True):
                if tensor is source:
                    adapter.written(tensor)
                else:
                    tensor.copy_(source)


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
