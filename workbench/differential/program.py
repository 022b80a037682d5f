"""A generated program: steps that render to the text of one function, and to a script that a person can run.

program = generate(seed=1, index=17)
print(program.script())
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import msgspec

OWN = "own"
"""Word in the name of a record that each rank has for itself: equal values are chance."""

HEAD = """\
import copy
import io

import torch
from torch import nn

from workbench.differential.data_words import *
from workbench.differential.words import *
"""


@final
class Step(msgspec.Struct, frozen=True):
    """Some lines, and the feature that they exercise. ``may_refuse``: an error on every rank is right, too."""

    feature: str
    lines: tuple[str, ...]
    may_refuse: bool = False


@final
class Program(msgspec.Struct, frozen=True):
    """Steps that every rank takes. ``settings`` are arguments of ``init``."""

    seed: int
    index: int
    steps: tuple[Step, ...]
    settings: dict[str, int | str] = {}

    @property
    def name(self) -> str:
        """The options of the command line that generate it again."""
        return f"--seed {self.seed} --only {self.index}"

    @property
    def features(self) -> list[str]:
        """The features of its steps, each once."""
        return list(dict.fromkeys(step.feature for step in self.steps))

    @property
    def may_refuse(self) -> bool:
        """True if Farandole's documentation says that some step may be refused."""
        return any(step.may_refuse for step in self.steps)

    def replace(self, **changes: Any) -> Program:
        """A copy with other steps or settings."""
        return msgspec.structs.replace(self, **changes)

    def function(self) -> str:
        """The text of ``program(hvd, record)``."""
        lines = [line for step in self.steps for line in step.lines] or ["pass"]
        body = ["rank, size, kept = hvd.rank(), hvd.size(), []", *lines]
        return "def program(hvd, record):\n" + textwrap.indent("\n".join(body), "    ") + "\n"

    def compiled(self) -> Callable[[Any, Any], None]:
        """``program(hvd, record)``, compiled from its text."""
        space: dict[str, Any] = {}
        exec(compile(HEAD + "\n\n" + self.function(), FILE, "exec"), space)  # noqa: S102 (text of our own)
        found: Callable[[Any, Any], None] = space["program"]
        return found

    def script(self, says: Sequence[str] = (), ranks: int = 2) -> str:
        """A whole script, with remarks in its docstring."""
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        said = [f"Run me: farandole run -np {ranks} python {{this file}}", f"From {self.name}", *says]
        return (
            '"""' + "\n".join(line.replace("\\", "\\\\") for line in said) + '\n"""\n'
            f"{HEAD}\nimport farandole.torch as hvd\n\n\n{self.function()}\n\n"
            "def record(name, *values):\n"
            "    for i, value in enumerate(values):\n"
            '        print(f"{name}.{i}", value)\n\n\n'
            f'if __name__ == "__main__":\n    hvd.init({arguments})\n    program(hvd, record)\n'
        )


FILE = "<program>"
"""File name of a program's text in tracebacks."""


def from_mapping(found: Mapping[str, Any]) -> Program:
    """Read a program that was written as JSON."""
    return msgspec.convert(found, Program)
