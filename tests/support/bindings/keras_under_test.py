"""``farandole.keras`` under the contract of bindings, on the backend that ``KERAS_BACKEND`` names."""

from __future__ import annotations

import importlib
from typing import Any

import keras

import farandole.keras as hvd
from farandole.graphs.library import original
from workbench.binding.under_test import BindingUnderTest, Trainer, Values

BACKEND = keras.backend.backend()
_tensors = importlib.import_module(f"tests.support.bindings.{BACKEND}_under_test")
_BASES = {"torch": "TorchUnderTest", "tensorflow": "TensorFlowUnderTest", "jax": "JaxUnderTest"}
BackendUnderTest: Any = getattr(_tensors, _BASES[BACKEND])


class KerasUnderTest(BackendUnderTest):  # type: ignore[misc]
    """Tensors, their gradients and their states are those of the backend's binding; trainings are those of Keras."""

    name = "keras"
    hvd: Any = hvd

    def trainer(self, rule: str, distributed: bool = True, **options: Any) -> Trainer | None:
        return None if "virtual_workers" in options else KerasTrainer(rule, distributed, **options)


class KerasTrainer(Trainer):
    """A compiled model, batch by batch."""

    def __init__(self, rule: str, distributed: bool, loss_scale: float = 0.0) -> None:
        rules = keras.optimizers
        optimizer: Any = rules.Adam(0.05) if rule == "adam" else rules.SGD(0.05, momentum=0.9)
        if loss_scale:
            optimizer = rules.LossScaleOptimizer(optimizer, initial_scale=loss_scale)
        self.scales = bool(loss_scale)
        self.optimizer: Any = hvd.DistributedOptimizer(optimizer) if distributed else optimizer
        line = keras.layers.Dense(1, kernel_initializer="zeros", dtype="float64", name="w_and_b")
        self.model = keras.Sequential([keras.Input((3,)), line])
        self.model.compile(self.optimizer, loss="mse", jit_compile=None if BACKEND == "jax" else False)

    def step(self, x: Values, y: Values) -> None:
        try:
            self.model.train_on_batch(x, y)
        except Exception as error:
            raise original(error) from error

    def weights(self) -> dict[str, Values]:
        arrays = [keras.ops.convert_to_numpy(each).copy() for each in self.model.trainable_variables]
        return dict(zip("wb", arrays, strict=True))

    def add(self, name: str, amount: float) -> None:
        variable = dict(zip("wb", self.model.trainable_variables, strict=True))[name]
        variable.assign(variable + amount)

    def state(self, **values: Any) -> Any:
        return hvd.elastic.KerasState(self.model, self.optimizer, **values)

    def loss_scale(self) -> float:
        return float(self.optimizer.dynamic_scale) if self.scales else 1.0


assert issubclass(KerasUnderTest, BindingUnderTest)
