"""``import horovod.tensorflow.keras as hvd``: ``farandole.keras``, for Keras 3 on any of its backends."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

import farandole.keras as _binding

if not TYPE_CHECKING:
    __all__ = _binding.__all__

_SAME = ("callbacks", "elastic")
"""Submodules that scripts import from; the same module objects under both names."""

for _name in _SAME:
    globals()[_name] = sys.modules[f"{__name__}.{_name}"] = importlib.import_module(f"farandole.keras.{_name}")


def __getattr__(name: str) -> Any:
    found = globals()[name] = getattr(_binding, name)
    return found
