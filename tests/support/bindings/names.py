"""Checks of the names of one binding, in a process that loads its framework: ``python names.py BINDING``."""

from __future__ import annotations

import importlib
import inspect
import pickle
import sys
from typing import Any

import farandole.numpy
from farandole.runtime.collectives.ops import PUBLIC

OF_HOROVOD = {"tensorflow", "keras"}
"""Bindings for which Horovod has another order of parameters, and more of them."""


def every_name_is_there_and_documented(binding: Any) -> None:
    """``PUBLIC`` and ``__all__``."""
    exported: dict[str, object] = {}
    exec(f"from {binding.__name__} import *", exported)
    assert [public for public in PUBLIC if public not in exported] == []
    assert {public for public in binding.__all__ if not hasattr(binding, public)} == set()
    assert [public for public in PUBLIC if not inspect.getdoc(exported[public])] == []


def parameters_are_those_of_every_binding(binding: Any) -> None:
    """Those of ``farandole.numpy`` stand for all."""
    for public in PUBLIC:
        ours, numpys = (getattr(module, public) for module in (binding, farandole.numpy))
        if not inspect.isroutine(ours):
            continue
        found, wanted = inspect.signature(ours).parameters, inspect.signature(numpys).parameters
        if binding.__name__.split(".")[-1] not in OF_HOROVOD:
            assert found == wanted, public
        else:
            shared = [each for each in wanted if each in found and each != "compression"]
            assert {n: found[n].default for n in shared} == {n: wanted[n].default for n in shared}, public


def functions_are_sent_to_workers_by_name(binding: Any) -> None:
    """A pickled verb is the same verb elsewhere."""
    sent = pickle.loads(pickle.dumps(binding.allreduce))
    assert sent is binding.allreduce or sent.__self__ is binding.allreduce.__self__


if __name__ == "__main__":
    module = importlib.import_module(f"farandole.{sys.argv[1]}")
    every_name_is_there_and_documented(module)
    parameters_are_those_of_every_binding(module)
    functions_are_sent_to_workers_by_name(module)
