"""Steps of TensorFlow in ``tf.function``, undistributed and with Farandole, and all-reduces of four bytes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

import farandole.tensorflow as hvd
from benchmarks.frameworks.runs import MLP, MOMENTUM, RATE, WIDTHS, Run, Runs, batch, copies, layers_of, single, timed


def runs() -> Runs:
    """All measurements."""
    hvd.init()
    one, row, call = tf.ones(1), f"TensorFlow in tf.function: {MLP}", "TensorFlow, in tf.function"
    empty = tf.function(lambda x: x + 1)
    reduced = tf.function(lambda x: hvd.allreduce(x, name="four bytes") + 1)
    ours = trained(hvd.DistributedGradientTape)
    nbytes = 4 * sum((a + 1) * b for a, b in itertools.pairwise(WIDTHS))
    return {
        ("step", row, "none"): trained(lambda tape: tape),
        ("step", row, "farandole"): ours,
        ("call", call, "empty graph"): single(lambda: empty(one).numpy()),
        ("call", call, "farandole"): single(lambda: reduced(one).numpy()),
        ("copies", "TensorFlow", "in"): copies(ours, "into_bytes", nbytes),
        ("copies", "TensorFlow", "out"): copies(ours, "out_bytes", nbytes),
    }


def trained(wrap: Callable[[Any], Any]) -> Run:
    """Steps with the gradients of a tape."""
    keras.utils.set_random_seed(0)
    inputs, labels = map(tf.constant, batch(MLP))
    model = keras.Sequential([keras.Input(inputs.shape[1:]), *layers_of(MLP, keras.layers)])
    optimizer = keras.optimizers.SGD(RATE, momentum=MOMENTUM)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(inputs, training=True))
        gradients = wrap(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return timed(step, lambda loss: loss.numpy())
