"""One batch again and again, as a dataset of TensorFlow, for ``fit`` of either Keras."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from benchmarks.frameworks.runs import AnyArray


def repeated(inputs: AnyArray, labels: AnyArray) -> Any:
    """Dataset without an end, which is not tuned while it is read, and not divided among workers.

    On few processors the thread that tunes it is ended late: with TensorFlow 2.21 ``fit`` then takes up to twice as
    long, whatever trains in it, as it waits for that at the end of each epoch.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return tf.data.Dataset.from_tensors((inputs, labels)).repeat().with_options(options)
