"""``farandole.numpy``, as the contract of bindings wants it, and the same with arrays that cannot be written to."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

import farandole.numpy as hvd
from farandole.collective import DType
from farandole.gradients.loss_scale import LossScaleAgreement
from farandole.numpy import elastic
from workbench.binding.under_test import BindingUnderTest, Distributed, Trainer, Values

WITH_BFLOAT16 = importlib.util.find_spec("ml_dtypes") is not None


class NumpyUnderTest(BindingUnderTest):
    """``farandole.numpy``; with ``ml_dtypes`` where that is installed."""

    name = "numpy"
    hvd: Any = hvd
    elastic: Any = elastic
    dtypes = tuple(d.label for d in DType if WITH_BFLOAT16 or d is not DType.BFLOAT16)
    compressors = ("none", "fp16", "bf16") if WITH_BFLOAT16 else ("none", "fp16")

    def make(self, values: npt.ArrayLike, dtype: str = "float64") -> Values:
        if dtype == "bfloat16":
            import ml_dtypes

            return np.array(values).astype(ml_dtypes.bfloat16)
        return np.array(values).astype(dtype)

    def values(self, tensor: Values) -> Values:
        return tensor if np.iscomplexobj(tensor) else tensor.astype(np.float64)

    def dtype(self, tensor: Values) -> str:
        return tensor.dtype.name

    def views(self, values: Values) -> list[Any]:
        made = [self.make(values) for _ in range(4)]
        packed = np.zeros(values.shape, np.dtype([("before", "u1"), ("value", "f8")]))["value"]  # at odd addresses
        packed[...] = values
        swapped = self.make(values).astype(">f8")
        return [made[0].T, made[1].ravel()[::3], made[2][:, 1:], made[3][::-1, ::-1], packed, swapped]

    def repeated(self, value: float, count: int) -> Values:
        return np.broadcast_to(np.array(value), count)

    def distributed(self, like: Mapping[str, Values], **options: Any) -> Distributed:
        return hvd.DistributedGradients(like, **options)

    def observed(self, like: Mapping[str, Values]) -> tuple[Distributed, Any]:
        average = hvd.DistributedGradients(like)
        return average, hvd.NoiseScale(average, every=1, horizon_samples=1e12)

    def outlandish(self) -> Values:
        return np.ones(3, np.uint32)

    def trainer(self, rule: str, distributed: bool = True, **options: Any) -> Trainer | None:
        return ArrayTrainer(self.state, rule, distributed, **options)

    def state(self, **values: Any) -> Any:
        return elastic.NumpyState(**values)


class ArrayTrainer(Trainer):
    """Gradients and rules by hand; no array is ever written to, so that arrays of any kind will do."""

    def __init__(
        self,
        make_state: Callable[..., Any],
        rule: str,
        distributed: bool,
        loss_scale: float = 1.0,
        virtual_workers: int | None = None,
        **options: Any,
    ) -> None:
        self.rule, self.make_state = rule, make_state
        weights = {"w": np.zeros((3, 1)), "b": np.zeros(1)}
        self.held = SimpleNamespace(weights=weights, moments={}, steps=0, scale=loss_scale)
        self.average: Any = None
        if distributed:
            self.average = hvd.DistributedGradients(weights, virtual_workers=virtual_workers, **options)
        self.sharded, self.agreement = virtual_workers is not None, LossScaleAgreement()

    def step(self, x: Values, y: Values) -> None:
        gradients = self.reduced(x, y)
        overflow = not all(np.isfinite(each).all() for each in gradients.values())
        if self.average is not None and not self.sharded and self.agreement.reach(overflow, self.held.scale):
            self.held.scale /= 2
            return
        self.held.steps += 1
        for name, gradient in gradients.items():
            self.held.weights[name] = self.held.weights[name] - 0.05 * self.change(name, gradient / self.held.scale)

    def reduced(self, x: Values, y: Values) -> dict[str, Values]:
        """Gradients of all ranks."""
        weights = self.held.weights
        if self.sharded:
            for shard in self.average.shards(len(x)):
                self.average.add(self.gradients(x[shard.rows], y[shard.rows]))
            found: dict[str, Values] = self.average.total(weights)
            return found
        gradients = self.gradients(x, y)
        return gradients if self.average is None else self.average(gradients, weights)

    def gradients(self, x: Values, y: Values) -> dict[str, Values]:
        """Gradients of the loss, times its scale."""
        with np.errstate(invalid="ignore"):
            error = self.held.scale * 2 / len(x) * (x @ self.held.weights["w"] + self.held.weights["b"] - y)
            return {"w": x.T @ error, "b": error.sum(0)}

    def change(self, name: str, gradient: Values) -> Values:
        """Direction of the step by the rule."""
        moments = self.held.moments
        if self.rule == "sgd":
            moments[name] = 0.9 * moments.get(name, 0.0) + gradient
            return np.asarray(moments[name])
        first, second = moments.get(name, (np.zeros_like(gradient), np.zeros_like(gradient)))
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        moments[name] = first, second
        corrected = first / (1 - 0.9**self.held.steps), second / (1 - 0.999**self.held.steps)
        return np.asarray(corrected[0] / (np.sqrt(corrected[1]) + 1e-8))

    def weights(self) -> dict[str, Values]:
        return {name: np.array(values) for name, values in self.held.weights.items()}

    def add(self, name: str, amount: float) -> None:
        self.held.weights[name] = self.held.weights[name] + amount

    def state(self, **values: Any) -> Any:
        self.held = self.make_state(**vars(self.held), **values)
        return self.held

    def loss_scale(self) -> float:
        return float(self.held.scale)


class FrozenUnderTest(NumpyUnderTest):
    """Arrays that cannot be written to, as those of JAX and TensorFlow, and a state that keeps them by pickling."""

    name = "frozen"
    in_place = False

    def __init__(self) -> None:
        self.hvd = SimpleNamespace(**{name: _freezing(getattr(hvd, name)) for name in hvd.__all__})

    def make(self, values: npt.ArrayLike, dtype: str = "float64") -> Values:
        made: Values = _frozen(super().make(values, dtype))
        return made

    def views(self, values: Values) -> list[Any]:
        return []

    def distributed(self, like: Mapping[str, Values], **options: Any) -> Distributed:
        reduce: Distributed = _freezing(hvd.DistributedGradients(like, **options))
        return reduce

    def broadcast_parameters(self, params: Any, root_rank: int) -> Any:
        copies = _replaced(params, np.array)
        hvd.broadcast_parameters(copies, root_rank=root_rank)
        return _frozen(copies)

    def state(self, **values: Any) -> Any:
        return elastic.ObjectState(**values)


def _freezing(function: Any) -> Any:
    if isinstance(function, type) or not callable(function):
        return function
    return lambda *given, **named: _frozen(function(*given, **named))


def _frozen(result: Any) -> Any:
    def freeze(array: Values) -> Values:
        array.flags.writeable = False
        return array

    return _replaced(result, freeze)


def _replaced(tree: Any, change: Callable[[Values], Values]) -> Any:
    """The same with ``change`` applied to its arrays."""
    if isinstance(tree, np.ndarray):
        return change(tree)
    if isinstance(tree, dict):
        return {key: _replaced(value, change) for key, value in tree.items()}
    return type(tree)(_replaced(each, change) for each in tree) if type(tree) in (list, tuple) else tree
