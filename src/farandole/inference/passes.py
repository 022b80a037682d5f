"""Several answers to the same batch: by the members of an ensemble, or by passes with dropout.

ensemble([first, second, third])(batch)                 # (3, samples, ...)
monte_carlo(model, passes=20)(batch, draw=draw)         # (20, samples, ...), of a model of PyTorch or Keras
"""

from __future__ import annotations

import contextlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, final

import numpy as np

from farandole.errors import UsageError
from farandole.inference.draws import Draw
from farandole.inference.worker import as_numpy, takes_draw


def ensemble(members: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """Function of a batch that calls each of ``members``, trained from different seeds, and stacks their answers.

    >>> ensemble([lambda batch: batch + 1, lambda batch: batch + 3])(np.zeros(2)).tolist()
    [[1.0, 1.0], [3.0, 3.0]]

    Each member is called like the function of ``predict``, and returns an array, or a tuple of arrays such as mean and
    variance; the first axis of the result is the member. Lakshminarayanan et al. 2017 (arXiv:1612.01474). Raises
    ``UsageError`` if there is no member.
    """
    if not members:
        raise UsageError("ensemble([]) has no member: give at least one function")
    return _Ensemble(list(members))


def monte_carlo(model: Any, passes: int = 20) -> Callable[..., Any]:
    """Function of a batch and a draw that calls ``model`` several times, each time with other random numbers.

        monte_carlo(model, passes=20)               # torch.nn.Module or keras.Model, whose layers of dropout drop
        monte_carlo(lambda batch, draw: ...)        # draw.number is that of the pass

    Of a PyTorch module or a Keras 3 model only the layers of dropout are in training mode; batch normalization, for
    instance, is not. Dropout without a layer of its own (``torch.nn.functional.dropout``, ``LSTM(dropout=)``) is off.
    A function gets its random numbers from ``draw``. The first axis of the answers is the pass. Gal and Ghahramani 2016
    (arXiv:1506.02142). Raises ``UsageError`` for a model without a layer of dropout.
    """
    if passes < 1:
        raise UsageError(f"monte_carlo(passes={passes}): give at least 1")
    torch, keras = sys.modules.get("torch"), sys.modules.get("keras")
    if keras is not None and isinstance(model, keras.Model):  # first: on PyTorch's backend it is a module as well
        return _KerasDropout(model, passes)
    if torch is not None and isinstance(model, torch.nn.Module):
        return _TorchDropout(model, passes)
    if not callable(model) or not takes_draw(model):
        raise UsageError(
            f"monte_carlo() of a {type(model).__name__}: give a torch.nn.Module, a keras.Model, or a function with a "
            "parameter draw, as def answer(batch, draw)"
        )
    return _Function(model, passes)


def _stacked(answers: Iterable[Any]) -> Any:
    # Convert one by one, because a framework's array may keep the memory for a backward pass.
    found = [tuple(map(as_numpy, each)) if isinstance(each, tuple) else as_numpy(each) for each in answers]
    return tuple(map(np.stack, zip(*found, strict=True))) if isinstance(found[0], tuple) else np.stack(found)


@final
class _Ensemble:
    def __init__(self, members: list[Callable[..., Any]]) -> None:
        self._members, self._draws = members, [takes_draw(each) for each in members]

    def __call__(self, batch: Any, draw: Draw | None = None) -> Any:
        draw = draw or Draw(0, range(len(batch)))
        calls = zip(self._members, self._draws, strict=True)
        return _stacked(each(batch, draw=draw.of_pass(i)) if d else each(batch) for i, (each, d) in enumerate(calls))


class _Passes(ABC):
    """Passes over a batch, each with other random numbers."""

    def __init__(self, model: Any, passes: int) -> None:
        self._model, self._passes = model, passes

    def __call__(self, batch: Any, draw: Draw | None = None) -> Any:
        draw = draw or Draw(0, range(len(batch)))
        with self._dropping():
            return _stacked(self._pass(batch, draw.of_pass(number)) for number in range(self._passes))

    @contextlib.contextmanager
    def _dropping(self) -> Iterator[None]:
        """Context in which dropout is on; it restores the model at its end."""
        yield

    @abstractmethod
    def _pass(self, batch: Any, draw: Draw) -> Any:
        """Do one pass."""


@final
class _Function(_Passes):
    def _pass(self, batch: Any, draw: Draw) -> Any:
        return self._model(batch, draw=draw)


@final
class _TorchDropout(_Passes):
    """Passes of a PyTorch module, on the device of its parameters."""

    def __init__(self, model: Any, passes: int) -> None:
        super().__init__(model, passes)
        self._layers()

    def _layers(self) -> list[Any]:
        from torch.nn.modules.dropout import _DropoutNd

        found = [each for each in self._model.modules() if isinstance(each, _DropoutNd)]
        return found or _none(self._model)

    @contextlib.contextmanager
    def _dropping(self) -> Iterator[None]:
        modes = [(each, each.training) for each in self._model.modules()]
        self._model.eval()
        for layer in self._layers():
            layer.train()
        try:
            yield
        finally:
            for module, mode in modes:
                module.training = mode

    def _pass(self, batch: Any, draw: Draw) -> Any:
        import torch

        with _seeded_torch(self._model, draw) as device, torch.no_grad():
            return self._model(torch.as_tensor(np.array(batch)).to(device))


@contextlib.contextmanager
def _seeded_torch(model: Any, draw: Draw) -> Iterator[Any]:
    """Context in which PyTorch's generators are seeded, including those of the model's device."""
    import torch

    device = next(model.parameters(), torch.empty(0)).device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(draw.batch_seed())
        yield device


@final
class _KerasDropout(_Passes):
    """Passes of a Keras 3 model, on any of its backends."""

    def __init__(self, model: Any, passes: int) -> None:
        super().__init__(model, passes)
        self._layers()

    def _layers(self) -> list[Any]:
        from keras import layers

        kinds = (layers.Dropout, layers.AlphaDropout, layers.GaussianDropout)
        found = [layer for layer in self._model._flatten_layers() if isinstance(layer, kinds)]
        return found or _none(self._model)

    @contextlib.contextmanager
    def _dropping(self) -> Iterator[None]:
        layers = self._layers()
        states = [np.array(as_numpy(layer.seed_generator.state.value)) for layer in layers]
        for layer in layers:
            layer.call = _always(layer.call)
        try:
            yield
        finally:
            for layer, state in zip(layers, states, strict=True):
                del layer.call
                layer.seed_generator.state.assign(state)

    def _pass(self, batch: Any, draw: Draw) -> Any:
        import keras

        for stream, layer in enumerate(self._layers()):
            state = layer.seed_generator.state
            state.assign(np.array([draw.batch_seed(stream) % 2**31, 0], str(state.dtype)))
        # On the PyTorch backend layers without a seed of their own draw from PyTorch's generators.
        is_torch = keras.backend.backend() == "torch"
        with _seeded_torch(self._model, draw) if is_torch else contextlib.nullcontext():
            return self._model(np.asarray(batch), training=False)


def _always(call: Callable[..., Any]) -> Callable[..., Any]:
    """A layer's ``call`` with dropout, whatever the mode of its model."""

    def dropping(inputs: Any, training: bool | None = None) -> Any:  # noqa: ARG001 (a layer's signature)
        return call(inputs, training=True)

    return dropping


def _none(model: Any) -> list[Any]:
    raise UsageError(
        f"monte_carlo() of a {type(model).__name__} without a layer of dropout: it would answer the same each time; "
        "train with one, or use ensemble([...])"
    )
