"""Modules that training scripts import, one for each framework: alike in names, and independent of each other."""

from __future__ import annotations

import importlib
import inspect
import pickle
import subprocess
import sys
from typing import Any

import pytest

from farandole.runtime.collectives.ops import PUBLIC

BINDINGS = {"numpy": "NumPy", "torch": "PyTorch"}
"""Modules of ``farandole``, and what each needs."""
bindings = pytest.mark.parametrize("name", BINDINGS)


def binding(name: str) -> Any:
    """The module of that name."""
    return importlib.import_module(f"farandole.{name}")


@bindings
def test_every_binding_has_every_name(name: str) -> None:
    exported: dict[str, object] = {}
    exec(f"from farandole.{name} import *", exported)
    assert [public for public in PUBLIC if public not in exported] == []
    assert {public for public in binding(name).__all__ if not hasattr(binding(name), public)} == set()
    assert [public for public in PUBLIC if not inspect.getdoc(exported[public])] == []


@bindings
def test_functions_of_all_bindings_have_the_same_parameters(name: str) -> None:
    for public in PUBLIC:
        ours, torchs = (getattr(binding(n), public) for n in (name, "torch"))
        if inspect.isroutine(ours):
            assert inspect.signature(ours).parameters == inspect.signature(torchs).parameters, public


@bindings
def test_functions_are_sent_to_workers_by_name(name: str) -> None:
    sent = pickle.loads(pickle.dumps(binding(name).allreduce))
    assert sent.__self__ is binding(name).allreduce.__self__


@bindings
def test_without_its_framework_it_says_what_to_install(name: str) -> None:
    script = f"import sys; sys.modules[{name!r}] = None; import farandole.{name}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert f"farandole.{name} needs {BINDINGS[name]}" in done.stderr
    assert f"pip install 'farandole[{name}]'" in done.stderr


@bindings
def test_an_adapter_loads_no_binding(name: str) -> None:
    script = f"import sys, farandole.adapters.{name}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert not {"farandole.torch", "farandole.numpy"}.intersection(done.stdout.split())
