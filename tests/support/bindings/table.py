"""Table of our bindings: a line each, from which all tests of this folder are made."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import final

from tests.support.frameworks import QUICK_XLA, lean
from workbench.binding.under_test import BindingUnderTest


@final
@dataclass(frozen=True)
class Row:
    """One binding, the module ``farandole.NAME`` of a ``framework``, whose package is ``NAME``.

    ``under_test``: its class, in ``tests/support/bindings/NAME_under_test.py``. ``variables`` are those of
    its processes.
    """

    name: str
    framework: str
    under_test: str
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


TABLE = (
    Row("numpy", "NumPy", "NumpyUnderTest"),
    Row("torch", "PyTorch", "TorchUnderTest"),
    Row("jax", "JAX", "JaxUnderTest"),
    Row("tensorflow", "TensorFlow", "TensorFlowUnderTest"),
    Row("keras", "Keras", "KerasUnderTest", ("KERAS_BACKEND=torch",)),
    Row("keras", "Keras", "KerasUnderTest", ("KERAS_BACKEND=tensorflow",)),
    Row("keras", "Keras", "KerasUnderTest", ("KERAS_BACKEND=jax",)),
)


def row_of(title: str) -> Row:
    """The row of that title."""
    [found] = (row for row in TABLE if row.title == title)
    return found
