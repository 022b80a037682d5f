"""Batch normalization over the batches of all ranks, as a Keras 3 layer.

model = tf.keras.Sequential([tf.keras.layers.Dense(16), hvd.SyncBatchNormalization(), tf.keras.layers.ReLU()])
"""

from __future__ import annotations

import itertools
from typing import Any, final

import keras
import tensorflow as tf

from farandole.errors import UnsupportedError
from farandole.runtime.session.init import takes_part
from farandole.runtime.session.process_sets import ProcessSet, global_process_set
from farandole.tensorflow.gradients import ops
from farandole.tensorflow.graph import as_written

_numbers = itertools.count()


@final
@keras.saving.register_keras_serializable("farandole")
class SyncBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """``BatchNormalization`` with statistics over the batches of all ranks, in training.

    >>> layer = hvd.SyncBatchNormalization()
    >>> layer(tf.ones((32, 16)), training=True).shape
    TensorShape([32, 16])

    Arguments: those of Keras without ``synchronized``, and ``process_set``. All ranks must make their layers in the
    same order and run them equally often; batches may differ in length.
    """

    def __init__(self, *args: Any, process_set: ProcessSet = global_process_set, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if keras.backend.backend() != "tensorflow":
            raise UnsupportedError(
                f"SyncBatchNormalization of farandole.tensorflow in Keras with backend {keras.backend.backend()}: "
                "set KERAS_BACKEND=tensorflow"
            )
        self._process_set = process_set
        self._label = f"sync_batch_norm.{next(_numbers)}"

    @as_written
    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        """Mean and variance over all ranks.

        Combines each rank's mean and variance by its number of rows (Chan, Golub & LeVeque 1983, equation 2.1 for many
        parts): no cancellation between large sums of squares.
        """
        members = self._process_set
        mean, variance = super()._moments(inputs, mask)
        if not takes_part(members, self.name) or len(members.ranks) == 1:
            return mean, variance
        rows = (
            tf.cast(tf.size(inputs) // tf.shape(inputs)[self.axis], mean.dtype) if mask is None else _rows(inputs, mask)
        )
        mean, variance = (tf.where(rows > 0, each, tf.zeros_like(each)) for each in (mean, variance))
        mine = tf.concat([mean, variance, tf.reshape(tf.cast(rows, mean.dtype), [1])], 0)[None]
        every = ops.allgather(mine, self._label, process_set=members)
        counts = tf.stop_gradient(every[:, -1:])
        share = counts / tf.reduce_sum(counts)
        means, variances = tf.split(every[:, :-1], 2, axis=1)
        total = tf.reduce_sum(share * means, 0)
        return total, tf.reduce_sum(share * (variances + tf.square(means - total)), 0)


def _rows(inputs: Any, mask: Any) -> Any:
    each = tf.size(inputs) // tf.shape(inputs)[-1] // tf.size(mask)
    return tf.reduce_sum(tf.cast(mask, inputs.dtype)) * tf.cast(each, inputs.dtype)
