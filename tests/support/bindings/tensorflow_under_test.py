"""``farandole.tensorflow`` under the contract of bindings."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt

import farandole.numpy
from farandole.graphs.library import original
from workbench.binding.under_test import BindingUnderTest, Distributed, Trainer, Values


class TensorFlowUnderTest(BindingUnderTest):
    """``farandole.tensorflow``, with variables, as tensors do not change."""

    name = "tensorflow"

    @property
    def hvd(self) -> Any:
        return importlib.import_module("farandole.tensorflow")

    @property
    def tf(self) -> Any:
        return importlib.import_module("tensorflow")

    @property
    def elastic(self) -> Any:
        """See ``BindingUnderTest``."""
        return importlib.import_module("farandole.tensorflow.elastic")

    def compiled(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return cast("Callable[[Any], Any]", self.tf.function(function))

    def make(self, values: npt.ArrayLike, dtype: str = "float64") -> Any:
        found = np.array(values)
        real = found.real if not dtype.startswith("complex") else found
        return self.tf.Variable(self.tf.cast(self.tf.constant(real), dtype))

    def values(self, tensor: Any) -> Values:
        cast = self.tf.complex128 if tensor.dtype.is_complex else self.tf.float64
        return np.asarray(self.tf.cast(self.tf.convert_to_tensor(tensor), cast).numpy())

    def dtype(self, tensor: Any) -> str:
        return str(tensor.dtype.name)

    def views(self, values: Values) -> list[Any]:
        return [self.make(values.T)]

    def repeated(self, value: float, count: int) -> Any:
        return self.make(np.full(count, value))

    def distributed(self, like: Mapping[str, Any], **options: Any) -> Distributed:
        """Gradients in the order of their names, as those of a tape are in that of its sources.

        A tape has no lag and makes a step of every pass: then they are handed in as arrays.
        """
        names = sorted(like)
        if options.keys() & {"lag", "backward_passes_per_step"}:
            arrays = farandole.numpy.DistributedGradients({name: like[name].numpy() for name in names}, **options)
        else:
            arrays = None
            gradients = importlib.import_module("farandole.tensorflow.gradients")
            predivide = options.pop("gradient_predivide_factor", 1.0)
            asked = gradients.Asked(predivide=predivide, **options).checked()

        def reduce(given: Mapping[str, Any]) -> Mapping[str, Any] | None:
            if arrays is not None:
                handed = {name: None if each is None else each.numpy() for name, each in given.items()}
                found = arrays(handed)
                return found and {n: None if x is None else self.tf.convert_to_tensor(x) for n, x in found.items()}
            tensors = [None if given[name] is None else self.tf.convert_to_tensor(given[name]) for name in names]
            return dict(zip(names, gradients.reduce(tensors, [like[name] for name in names], asked), strict=True))

        return reduce

    def outlandish(self) -> Any:
        return self.tf.Variable(self.tf.ones(3, self.tf.uint32))

    def trainer(self, rule: str, distributed: bool = True, **options: Any) -> Trainer | None:
        return None if options else TensorFlowTrainer(rule, distributed)  # no loss scales, no virtual workers

    def state(self, **values: Any) -> Any:
        return self.elastic.TensorFlowState(**values)


class TensorFlowTrainer(Trainer):
    """A loop of a user's own, with a tape in a ``tf.function``, and a model and the optimizers of Keras."""

    def __init__(self, rule: str, distributed: bool) -> None:
        import keras
        import tensorflow as tf

        import farandole.tensorflow as hvd

        self.tf, self.hvd, rules = tf, hvd, keras.optimizers
        line = keras.layers.Dense(1, kernel_initializer="zeros", dtype="float64", name="w_and_b")
        model = self.model = keras.Sequential([keras.Input((3,)), line])
        optimizer = self.optimizer = rules.Adam(0.05) if rule == "adam" else rules.SGD(0.05, momentum=0.9)
        optimizer.build(model.trainable_variables)

        def stepped(x: Any, y: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            if distributed:
                tape = hvd.DistributedGradientTape(tape)
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

        rows = [tf.TensorSpec([None, columns], tf.float64) for columns in (3, 1)]
        self.stepped = tf.function(stepped, input_signature=rows)

    def step(self, x: Values, y: Values) -> None:
        try:
            self.stepped(x, y)
        except self.tf.errors.OpError as error:
            raise original(error) from error

    def weights(self) -> dict[str, Values]:
        return {name: each.numpy() for name, each in zip("wb", self.model.trainable_variables, strict=True)}

    def add(self, name: str, amount: float) -> None:
        variable = dict(zip("wb", self.model.trainable_variables, strict=True))[name]
        variable.assign(variable + amount)

    def state(self, **values: Any) -> Any:
        return self.hvd.elastic.TensorFlowKerasState(self.model, self.optimizer, **values)
