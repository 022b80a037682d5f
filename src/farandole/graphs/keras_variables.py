"""Keras variables, in any version of Keras.

>>> is_of_keras(3.0)
False
"""

from __future__ import annotations

from typing import Any


def is_of_keras(variable: object) -> bool:
    """True for a Keras variable; before Keras 3.8 not all are instances of ``keras.Variable``."""
    return any(kind.__module__.startswith("keras.") for kind in type(variable).__mro__)


def is_seed(variable: Any) -> bool:
    """True for the seed of a random layer (possibly a TensorFlow variable): it differs between ranks, as do masks."""
    return "seed_generator_state" in (getattr(variable, "path", None) or variable.name)
