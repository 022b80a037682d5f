"""``fit`` of Keras 3 on the backend in ``KERAS_BACKEND``: undistributed, with Farandole, and its PyTorch binding."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import keras

import farandole.keras as hvd
from benchmarks.frameworks.runs import CNN, MLP, MOMENTUM, RATE, Run, Runs, batch, copies, layers_of, timed


def runs() -> Runs:
    """All measurements of this backend."""
    hvd.init()
    name = keras.backend.backend()
    found: Runs = {}
    for network in (MLP, CNN):
        row = f"Keras on {name}: {network}"
        model, run = fitted(network, hvd.DistributedOptimizer)
        found["step", row, "none"] = fitted(network, lambda optimizer: optimizer)[1]
        found["step", row, "farandole"] = run
        if name == "torch":
            found["step", row, "farandole.torch"] = by_torch(network)
        if network == MLP:
            nbytes = 4 * model.count_params()
            found["copies", f"Keras on {name}", "in"] = copies(run, "into_bytes", nbytes)
            found["copies", f"Keras on {name}", "out"] = copies(run, "out_bytes", nbytes)
    return found


def fitted(network: str, wrap: Callable[[Any], Any]) -> tuple[keras.Model, Run]:
    """A compiled model, and whole calls of its ``fit``, in which an epoch has as many steps as are asked for."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input(batch(network)[0].shape[1:]), *layers_of(network, keras.layers)])
    optimizer = wrap(keras.optimizers.SGD(RATE, momentum=MOMENTUM))
    model.compile(optimizer, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    given = data(network)

    def run(times: int) -> float:
        arguments = given(times)
        begin = time.perf_counter()
        model.fit(**arguments, verbose=0)
        return (time.perf_counter() - begin) / times

    return model, run


def data(network: str) -> Callable[[int], dict[str, Any]]:
    """Arguments of ``fit`` for so many steps; on TensorFlow a dataset, as the Keras before Keras 3 is given."""
    if keras.backend.backend() == "tensorflow":
        from benchmarks.frameworks.tensorflow_data import repeated

        dataset = repeated(*batch(network))
        return lambda times: {"x": dataset, "steps_per_epoch": times}
    size = len(batch(network)[1])

    def arrays(times: int) -> dict[str, Any]:
        inputs, labels = batch(network, times)
        return {"x": inputs, "y": labels, "batch_size": size, "shuffle": False}

    return arrays


def by_torch(network: str) -> Run:
    """The same network and optimizer as a script of PyTorch has them."""
    import torch

    from benchmarks.models import make
    from benchmarks.steppers import farandole

    torch.set_num_threads(1)
    return timed(farandole(make("large" if network == MLP else "cnn")), lambda _: None)
