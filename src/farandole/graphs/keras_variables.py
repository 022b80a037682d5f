"""Variables of Keras, in any of its versions.

>>> is_of_keras(3.0)
False
"""

from __future__ import annotations


def is_of_keras(variable: object) -> bool:
    """True for a variable of Keras: before 3.8 not all are of ``keras.Variable``."""
    return any(kind.__module__.startswith("keras.") for kind in type(variable).__mro__)
