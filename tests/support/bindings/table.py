"""Table of our bindings: a line each, from which all tests of this folder are made."""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import final

from farandole.testing.binding.under_test import BindingUnderTest
from tests.support.frameworks import QUICK_XLA, lean


@final
@dataclass(frozen=True)
class Row:
    """One binding, the module ``farandole.NAME`` of a ``framework``, whose package is ``NAME``.

    ``under_test``: its class, in ``tests/bindings/NAME_under_test.py``. ``jobs``: those of ``tests.support.on_ranks``
    that run the contract over it, so many ranks on such an engine, each of them one job of processes that load it once.
    ``variables`` are those of its processes.
    """

    name: str
    framework: str
    under_test: str
    jobs: tuple[str, ...]
    variables: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Name of the row, unlike those of all others."""
        return "-".join([self.name, *self.environment.values()])

    @property
    def environment(self) -> dict[str, str]:
        """``variables`` by name."""
        return dict(text.split("=") for text in self.variables)

    @property
    def lean(self) -> dict[str, str]:
        """``environment``, where nothing is found that only its framework's unused features load."""
        names = {self.name, *self.environment.values()}
        return {**lean(*names), **(QUICK_XLA if "jax" in names else {}), **self.environment}

    def command(self, script: Path, *arguments: str | Path) -> list[str]:
        """Command of a worker that runs a ``script`` over this row."""
        variables = [f"{name}={value}" for name, value in self.lean.items()]
        return ["env", *variables, sys.executable, str(script), *map(str, arguments), self.title]

    def make(self) -> BindingUnderTest:
        """The binding, for the contract; loads its framework."""
        module = importlib.import_module(f"tests.support.bindings.{self.name}_under_test")
        made: BindingUnderTest = getattr(module, self.under_test)()
        return made


ENGINES = ("1", "2-tcp", "3-mpi", "4", "4-on-2-uneven-hosts-and-a-tree")
"""Every engine of host memory: none, tcp, mpi, shm, hybrid."""

MORE = ("2", "3", "4") if os.environ.get("LARGE") else ()
"""See ``make large``: a minute each, where a framework compiles."""

TABLE = (
    Row("numpy", "NumPy", "NumpyUnderTest", ENGINES),
    Row("torch", "PyTorch", "TorchUnderTest", MORE),  # ``tests/torch/test_on_ranks.py`` has it by each engine
    Row("jax", "JAX", "JaxUnderTest", MORE or ("2",)),
    Row("tensorflow", "TensorFlow", "TensorFlowUnderTest", MORE),  # ``tests/tensorflow/on_ranks.py`` has it on 2
    Row("keras", "Keras", "KerasUnderTest", MORE or ("2",), ("KERAS_BACKEND=torch",)),
    Row("keras", "Keras", "KerasUnderTest", MORE, ("KERAS_BACKEND=tensorflow",)),
    Row("keras", "Keras", "KerasUnderTest", MORE, ("KERAS_BACKEND=jax",)),
)


def row_of(title: str) -> Row:
    """The row of that title."""
    [found] = (row for row in TABLE if row.title == title)
    return found
