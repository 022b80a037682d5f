"""``dataset``: batches that ``farandole.data`` loads, as a ``tf.data.Dataset``.

batches = Batches(source, batch_size=32, threads=8)
for images, labels in dataset(batches): ...
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import tensorflow as tf

from farandole.data.loading.batches import Batches


def dataset(batches: Batches) -> tf.data.Dataset:
    """A ``tf.data.Dataset`` of ``batches``; each iteration over it iterates over ``batches``.

    Text and bytes become tensors of strings. A batch counts as used when TensorFlow takes it: in elastic jobs do not
    append ``prefetch``; ``Batches`` loads ahead itself.
    """
    with closing(batches.load([[0]])) as loaded:
        signature = tf.nest.map_structure(_spec, _as_arrays(next(loaded)))
    return tf.data.Dataset.from_generator(lambda: map(_as_arrays, batches), output_signature=signature)


def _spec(column: Any) -> tf.TensorSpec:
    dtype = tf.string if column.dtype == object else tf.as_dtype(column.dtype)
    return tf.TensorSpec([None, *column.shape[1:]], dtype)


def _as_arrays(batch: Any) -> Any:
    """The batch with arrays for lists of text, and tuples for other lists, which TensorFlow would stack to arrays."""
    if isinstance(batch, dict):
        return {key: _as_arrays(value) for key, value in batch.items()}
    if isinstance(batch, list) and all(isinstance(value, (str, bytes)) for value in batch):
        return np.array(batch, object)
    return tuple(map(_as_arrays, batch)) if isinstance(batch, (list, tuple)) else batch
