"""Questions about TensorFlow that scripts and tests ask."""

from __future__ import annotations

import tensorflow as tf

_has_eager = True
"""Whether this TensorFlow can execute eagerly; each can that is served here."""


def _executing_eagerly() -> bool:
    """Whether what is called now is computed at once."""
    return bool(tf.executing_eagerly())
