"""Frameworks of which tests start processes, and which pytest's own never loads.

JAX and TensorFlow start native threads when they are imported: a fork is then no longer safe, and what tests say of
threads no longer true.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest

IN_PROCESSES_OF_THEIR_OWN = {"jax", "keras", "mxnet", "optax", "tensorflow"}


def skip_without(name: str) -> None:
    """Skip a module, or a test, where a framework is not installed."""
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed: make setup", allow_module_level=True)


def loaded_here() -> set[str]:
    """Frameworks that this process has loaded, and should not have."""
    return IN_PROCESSES_OF_THEIR_OWN & sys.modules.keys()
