"""Modules that training scripts import, one for each framework: alike in names, and independent of each other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.bindings.table import TABLE
from tests.support.frameworks import lean, skip_without
from tests.support.paths import SUPPORT
from tests.support.patience import PATIENCE_S

BINDINGS = {row.name: row.framework for row in TABLE}
"""Modules of ``farandole``, and what each needs."""
bindings = pytest.mark.parametrize("name", BINDINGS)


def python(name: str, *arguments: str | Path) -> str:
    """What a program prints that ends well; Keras has TensorFlow beneath it, as where nothing is said."""
    command, variables = [sys.executable, *arguments], {**os.environ, **lean(name, "tensorflow")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S, env=variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


@bindings
def test_names_parameters_and_pickles(name: str) -> None:
    skip_without(name)
    python(name, SUPPORT / "bindings" / "names.py", name)


@bindings
def test_without_its_framework_it_says_what_to_install(name: str) -> None:
    script = f"import sys; sys.modules[{name!r}] = None; import farandole.{name}"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.returncode == 1
    assert f"farandole.{name} needs {BINDINGS[name]}" in done.stderr
    assert f"pip install 'farandole[{name}]'" in done.stderr


@pytest.mark.parametrize("name", [name for name in BINDINGS if name != "keras"])  # it has those of its backends
def test_an_adapter_loads_no_binding(name: str) -> None:
    skip_without(name)
    script = f"import sys, farandole.adapters.{name}; print(*sys.modules)"
    bindings = {f"farandole.{known}" for known in BINDINGS}
    assert not bindings.intersection(python(name, "-c", script).split())
