"""Commands for the user to type, even if the shell uses another environment than this Python.

>>> here = Here(python="/venv/bin/python", folders=("/venv/bin",), which=lambda name: None, find=lambda name: name)
>>> here.typed("type: pip install torch")
'type: /venv/bin/python -m pip install torch'
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TypeAlias, final

from farandole.engines.candidates import Find
from farandole.version import PACKAGE

Which: TypeAlias = Callable[[str], str | None]
"""Function that finds a program on the ``PATH``, like ``shutil.which``."""

_COMMANDS = re.compile(r"\bpip install\b|\bfarandole(?= run\b| horovod\b)|\bpython(?= -m| train\.py)|\bfarandole(?=\[)")


def command_folders() -> tuple[str, ...]:
    """Folders with the commands of this Python's environment, and of ``pip install --user``."""
    import site
    import sysconfig

    folders = [os.path.dirname(sys.executable), sysconfig.get_path("scripts")]
    if site.ENABLE_USER_SITE:
        folders.append(sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user")))
    return tuple(dict.fromkeys(folders))


def uninstalled_checkout() -> str:
    """Folder of the checkout from which this package is imported, if it is not installed; otherwise ""."""
    from importlib import metadata  # slow import

    try:
        metadata.version("farandole")
    except metadata.PackageNotFoundError:
        checkout = PACKAGE.parent.parent
        return str(checkout) if (checkout / "pyproject.toml").exists() else ""
    return ""


@final
@dataclass(frozen=True, slots=True)
class Here:
    """This Python, the folders of its commands, lookups of programs and modules, and the variables.

    ``checkout``: the folder to pass to pip if ``farandole`` is not installed.
    """

    python: str = sys.executable
    folders: tuple[str, ...] = field(default_factory=command_folders)
    which: Which = shutil.which
    find: Find = find_spec
    checkout: str = field(default_factory=uninstalled_checkout)
    variables: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def typed(self, advice: str) -> str:
        """``advice`` with commands rewritten to use this Python, whatever the ``PATH`` is."""
        return _COMMANDS.sub(lambda found: self._command(found[0], advice[found.end() :]), advice)

    def leads_here(self, program: str) -> bool:
        """True if the ``PATH`` leads to this environment's own ``program``."""
        found = self.which(program)
        if not found:
            return False
        runs = _interpreter(found) or found
        if os.path.basename(runs).startswith("python"):
            return self._is_own(runs) and os.path.realpath(runs) == os.path.realpath(self.python)
        return self._is_own(found)  # its Python is unknown

    def beside(self, program: str) -> str:
        """Path of this environment's ``program``, even if not on the ``PATH``; "" if there is none."""
        paths = (os.path.join(folder, program) for folder in self.folders)
        return next((_short(path) for path in paths if os.access(path, os.X_OK)), "")

    def _command(self, words: str, following: str) -> str:
        python = "python" if self.leads_here("python") else _short(self.python)
        if words == "python":
            return python
        if words == "farandole" and following.startswith("["):
            return _short(self.checkout) if self.checkout else words
        if words == "farandole":
            return words if self.leads_here(words) else self.beside(words) or f"{python} -m farandole"
        if self.leads_here("pip"):
            return words
        if self.find("pip") is None and self.which("uv"):  # environments made by uv have no pip
            return f"uv pip install --python {_short(self.python)}"
        return f"{python} -m {words}"

    def _is_own(self, path: str) -> bool:
        folder = os.path.realpath(os.path.dirname(path))
        return folder in map(os.path.realpath, self.folders)


def _short(path: str) -> str:
    """The path to type: relative if it is below the working folder."""
    with contextlib.suppress(OSError):  # there may be no working folder
        relative = os.path.relpath(path)
        if not relative.startswith(os.pardir):
            return relative if os.sep in relative or relative == os.curdir else os.path.join(os.curdir, relative)
    return path


def _interpreter(path: str) -> str:
    """Interpreter named in the first line of a script; "" if the file is no script."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        first = file.read(512).partition(b"\n")[0]
        if first.startswith(b"#!"):
            return next(iter(os.fsdecode(first[2:]).split()), "")
    return ""
