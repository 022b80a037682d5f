"""TensorFlow properties that scripts and tests query."""

from __future__ import annotations

import tensorflow as tf

_has_eager = True
"""True, because every supported TensorFlow can execute eagerly."""


def _executing_eagerly() -> bool:
    """True if TensorFlow executes eagerly now."""
    return bool(tf.executing_eagerly())
