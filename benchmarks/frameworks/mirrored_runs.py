"""``fit`` of the Keras before Keras 3 under ``MultiWorkerMirroredStrategy``, with its ranks from ``TF_CONFIG``."""

from __future__ import annotations

import time

import tensorflow as tf
import tf_keras

from benchmarks.frameworks.runs import CNN, MLP, MOMENTUM, RATE, Run, Runs, batch, layers_of
from benchmarks.frameworks.tensorflow_data import repeated


def runs() -> Runs:
    """Both networks."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    return {
        ("step", f"Keras on tensorflow: {network}", "MultiWorkerMirrored"): fitted(network, strategy)
        for network in (MLP, CNN)
    }


def fitted(network: str, strategy: tf.distribute.Strategy) -> Run:
    """Whole calls of ``fit``; the data are batches of all ranks together, of which each takes its part."""
    inputs, labels = batch(network, strategy.num_replicas_in_sync)
    data = repeated(inputs, labels)
    with strategy.scope():
        first = tf_keras.layers.InputLayer(inputs.shape[1:])
        model = tf_keras.Sequential([first, *layers_of(network, tf_keras.layers)])
        loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf_keras.optimizers.SGD(RATE, momentum=MOMENTUM), loss=loss)

    def run(times: int) -> float:
        begin = time.perf_counter()
        model.fit(data, steps_per_epoch=times, verbose=0)
        return (time.perf_counter() - begin) / times

    return run
