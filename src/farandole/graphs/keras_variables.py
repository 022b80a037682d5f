"""Variables of Keras, in any of its versions.

>>> is_of_keras(3.0)
False
"""

from __future__ import annotations

from typing import Any


def is_of_keras(variable: object) -> bool:
    """True for a variable of Keras: before 3.8 not all are of ``keras.Variable``."""
    return any(kind.__module__.startswith("keras.") for kind in type(variable).__mro__)


def is_seed(variable: Any) -> bool:
    """True for the state of a random layer, which may be a variable of TensorFlow: each rank's own, as masks differ."""
    return "seed_generator_state" in (getattr(variable, "path", None) or variable.name)
