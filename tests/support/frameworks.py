"""Frameworks of which tests start processes, and which pytest's own never loads.

JAX and TensorFlow start native threads when they are imported: a fork is then no longer safe, and what tests say of
threads no longer true.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from workbench.quick_xla import QUICK

ABSENT = Path(__file__).parent / "absent"
LOADED_IF_THERE = ("jax", "matplotlib", "pandas", "sklearn", "tensorflow")
"""Packages that Keras and TensorFlow load where they find them, some seconds in each process, for what no test uses."""
QUICK_XLA = {"XLA_FLAGS": QUICK}
COMPILER = "torch._dynamo"
"""PyTorch's: the first optimizer of a process loads it, for a second, only to say that it is not to be compiled."""
WITH_ALL = "TESTS_WITH_ALL"
IN_PROCESSES_OF_THEIR_OWN = {"jax", "keras", "mxnet", "optax", "tensorflow"}


def skip_without(name: str) -> None:
    """Skip a module, or a test, where a framework is not installed."""
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed: make setup", allow_module_level=True)


def loaded_here() -> set[str]:
    """Frameworks that this process has loaded, and should not have."""
    return IN_PROCESSES_OF_THEIR_OWN & sys.modules.keys()


def lean(*needed: str) -> dict[str, str]:
    """Variables of a process that finds none of ``LOADED_IF_THERE`` but those ``needed``: ``lean("tensorflow")``.

    Nor has it a compiler of PyTorch, unless ``needed`` has "torch". Where ``TESTS_WITH_ALL`` is set there are none:
    everything is found that is installed.
    """
    absent = [name for name in LOADED_IF_THERE if name not in needed]
    return _without(*absent, *([COMPILER] if "torch" not in needed else []))


def without_compiler() -> dict[str, str]:
    """Variables of a process that finds all but the compiler of PyTorch."""
    return lean(*LOADED_IF_THERE)


def with_numpy_alone() -> dict[str, str]:
    """Variables of a process that finds no framework, as all of ``tests/jobs``."""
    return _without(*LOADED_IF_THERE, COMPILER, "keras", "mxnet", "optax", "torch")


def _without(*absent: str) -> dict[str, str]:
    if os.environ.get(WITH_ALL):
        return {}
    path = [str(ABSENT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(path), "TESTS_WITHOUT": " ".join(absent)}
