"""Networks from volumes to four labels, in Keras 3 with TensorFlow.

model = statistics((16, 16, 16, 2))                  # that of this example: 101,000 parameters
model = benchmark((128, 128, 128, 4))                # that of MLPerf HPC: 8.9 million
model = sc18((128, 128, 128, 1))                     # that of Mathuriya et al. 2018 (arXiv 1808.04728): 7.04 million
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

import keras
from keras import layers, ops

import farandole.tensorflow as tf_hvd

Shape = tuple[int, int, int, int]
LABELS = 4
SLOPE = 0.01
MOMENTUM = 0.95
"""Of the running statistics of batch norm: an epoch has a hundred steps."""


@final
class Circular(layers.Layer):  # type: ignore[misc]
    """Pads a volume by one cell on each side with what is on the other side: boxes are periodic."""

    def call(self, x: Any) -> Any:
        """See ``Layer``."""
        for axis in (1, 2, 3):
            last, first = [slice(None)] * 5, [slice(None)] * 5
            last[axis], first[axis] = slice(-1, None), slice(0, 1)
            x = ops.concatenate([x[tuple(last)], x, x[tuple(first)]], axis=axis)
        return x

    def compute_output_shape(self, shape: Any) -> Any:
        """See ``Layer``."""
        return (shape[0], *(n + 2 for n in shape[1:4]), shape[4])


def mean_and_spread(x: Any) -> list[Any]:
    """Mean of each channel over the volume, and logarithm of its variance: enough for an isotropic field."""
    mean = ops.mean(x, axis=(1, 2, 3))
    variance = ops.maximum(ops.mean(ops.square(x), axis=(1, 2, 3)) - ops.square(mean), 0.0)
    return [mean, ops.log(variance + 1e-4)]


def statistics(shape: Shape, width: int = 16, levels: int = 3, dropout: float = 0.2) -> keras.Model:
    """Network whose head sees mean and spread of every level; batch norm is over the batches of all ranks."""
    x = volume = keras.Input(shape)
    seen = mean_and_spread(x)
    for level in range(levels):
        x = layers.Conv3D(width * 2**level, 3, use_bias=False)(Circular()(x))
        x = layers.LeakyReLU(SLOPE)(tf_hvd.SyncBatchNormalization(momentum=MOMENTUM)(x))
        seen += mean_and_spread(x)
        x = layers.AveragePooling3D(2)(x)
    y = tf_hvd.SyncBatchNormalization(momentum=MOMENTUM)(layers.Concatenate()(seen))
    y = layers.LeakyReLU(SLOPE)(layers.Dense(128)(y))
    return keras.Model(volume, layers.Dense(LABELS)(layers.Dropout(dropout)(y)), name="statistics")


def benchmark(shape: Shape, width: int = 32, dropout: float = 0.5) -> keras.Model:
    """Five convolutions of 3³ cells with maximum pooling; outputs within ±1.2. Volumes have 32 cells a side or more."""
    x = volume = keras.Input(shape)
    for level in range(5):
        x = layers.Conv3D(width * 2**level, 3, padding="same")(x)
        x = layers.MaxPooling3D(2)(layers.LeakyReLU(SLOPE)(x))
    x = layers.Flatten()(x)
    for units in (128, 64):
        x = layers.Dropout(dropout)(layers.LeakyReLU(SLOPE)(layers.Dense(units)(x)))
    return keras.Model(volume, 1.2 * layers.Dense(LABELS, activation="tanh")(x), name="benchmark")


def sc18(shape: Shape, outputs: int = LABELS, dropout: float = 0.5) -> keras.Model:
    """Seven convolutions without padding, for 128 cells a side; published with one redshift and three outputs."""
    x = volume = keras.Input(shape)
    parts = [(16, 3, 1, True), (32, 4, 1, True), (64, 4, 2, False), (128, 3, 2, False)]
    parts += [(256, 3, 1, False), (256, 2, 1, False), (256, 2, 1, False)]
    for filters, cells, stride, pooled in parts:
        x = layers.LeakyReLU(SLOPE)(layers.Conv3D(filters, cells, strides=stride)(x))
        x = layers.AveragePooling3D(2)(x) if pooled else x
    x = layers.Flatten()(x)
    for units in (2048, 256):
        x = layers.Dropout(dropout)(layers.LeakyReLU(SLOPE)(layers.Dense(units)(x)))
    return keras.Model(volume, layers.Dense(outputs)(x), name="sc18")


MODELS: Mapping[str, Callable[..., keras.Model]] = {"statistics": statistics, "benchmark": benchmark, "sc18": sc18}
