"""Bindings with one fault each, for the contract to find; they are made of ``farandole.numpy``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

import farandole.numpy as hvd
from farandole.elastic.worker.state import ObjectState
from tests.support.bindings.numpy_under_test import ArrayTrainer, FrozenUnderTest, NumpyUnderTest
from workbench.binding.under_test import Distributed, Trainer, Values


class Frozen(FrozenUnderTest):
    """Functions in place that leave the tensor as it is, and say nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.hvd.allreduce_ = self.hvd.allreduce


class Finite(NumpyUnderTest):
    """Gradients in which what is not finite is made so."""

    def distributed(self, like: Mapping[str, Values], **options: Any) -> Distributed:
        reduce = hvd.DistributedGradients(like, **options)
        return lambda given: {name: np.nan_to_num(found) for name, found in reduce(given).items()}


class BrokenTrainer(NumpyUnderTest):
    """A training whose ``change`` is made of the trainer that keeps the contract."""

    def __init__(self, change: Callable[[ArrayTrainer], object], options: dict[str, Any] | None = None) -> None:
        self.change, self.options = change, options or {}

    def trainer(self, rule: str, distributed: bool = True, **options: Any) -> Trainer:
        trainer = ArrayTrainer(self.state, rule, distributed, **(options | self.options if distributed else options))
        self.change(trainer)
        return trainer


class BrokenState(NumpyUnderTest):
    """A state with some other methods."""

    def __init__(self, **methods: Any) -> None:
        self.kind = type("Broken", (ObjectState,), methods)

    def state(self, **values: Any) -> Any:
        return self.kind(**values)


def local(trainer: ArrayTrainer) -> None:
    """To step with the gradients of this rank."""
    trainer.reduced = trainer.gradients  # type: ignore[method-assign]


def silent(trainer: ArrayTrainer) -> None:
    """Not to say which weights it steps with."""
    average = trainer.average
    trainer.average = average and (lambda gradients, _: average(gradients))


def unagreed(trainer: ArrayTrainer) -> None:
    """To skip a step for an overflow of this rank's own gradients, and let the others take it."""
    reduced, gradients, own = trainer.reduced, trainer.gradients, [True]

    def noting(x: Values, y: Values) -> dict[str, Values]:
        found = gradients(x, y)
        own[0] = all(np.isfinite(each).all() for each in found.values())
        return found

    def hiding(x: Values, y: Values) -> dict[str, Values]:
        return {
            name: np.nan_to_num(each, posinf=0, neginf=0) if own[0] else each for name, each in reduced(x, y).items()
        }

    trainer.gradients, trainer.reduced = noting, hiding  # type: ignore[method-assign]
    trainer.agreement = SimpleNamespace(reach=lambda overflow, _: overflow)  # type: ignore[assignment]


def unordered(trainer: ArrayTrainer) -> None:
    """To add up the rows of a rank, and then ranks, as if there were no virtual workers."""
    if not trainer.sharded:
        return
    average, weights = hvd.DistributedGradients(trainer.weights()), trainer.held.weights

    def reduced(x: Values, y: Values) -> dict[str, Values]:
        rank, size = (hvd.rank(), hvd.size()) if trainer.average.reducer.process_set.size() > 1 else (0, 1)
        mine = trainer.gradients(x[rank::size], y[rank::size])
        return average(mine, weights) if size > 1 else mine

    trainer.reduced = reduced  # type: ignore[method-assign]


def forgetful(trainer: ArrayTrainer) -> None:
    """To keep what the optimizer has of earlier steps out of the state."""
    moments: dict[str, Any] = {}
    trainer.state = lambda **values: _without(trainer, moments, values)  # type: ignore[method-assign]


def _without(trainer: ArrayTrainer, moments: dict[str, Any], values: dict[str, Any]) -> Any:
    held, trainer.held.moments = trainer.held, {}
    state = NumpyUnderTest().state(weights=held.weights, steps=0, scale=1.0, **values)
    object.__setattr__(state, "moments", moments)
    trainer.held = state
    return state


def forgetful_and_silent(trainer: ArrayTrainer) -> None:
    """Both."""
    forgetful(trainer)
    silent(trainer)
