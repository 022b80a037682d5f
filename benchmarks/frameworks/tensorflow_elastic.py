"""One elastic worker of a loop of TensorFlow: ``FOLDER KILLS``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

import farandole.tensorflow as hvd
from benchmarks.frameworks.runs import CNN, MOMENTUM, RATE, batch, layers_of
from benchmarks.frameworks.strikes import Strikes


@hvd.elastic.run
def train(state: Any, strikes: Strikes) -> None:
    """Train until all kills have been survived."""
    model, optimizer = state.model, state.optimizer
    inputs, labels = map(tf.constant, batch(CNN))
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(inputs, training=True))
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    strikes.begin()
    while True:
        step()
        state.commit()
        if strikes.stepped(hvd.rank(), hvd.size()):
            return


def main() -> None:
    """Train, and leave in good order."""
    hvd.init()
    model = keras.Sequential([keras.Input(batch(CNN)[0].shape[1:]), *layers_of(CNN, keras.layers)])
    optimizer = keras.optimizers.SGD(RATE, momentum=MOMENTUM)
    optimizer.build(model.trainable_variables)
    state = hvd.elastic.TensorFlowKerasState(model, optimizer)
    train(state, Strikes(Path(sys.argv[1]), int(sys.argv[2])))
    hvd.shutdown()


if __name__ == "__main__":
    main()
