"""Commands as they have to be typed, where the environment of this Python need not be the one that the shell is in.

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
"""Looks for a program on the ``PATH``, like ``shutil.which``."""

_COMMANDS = re.compile(r"\bpip install\b|\bfarandole(?= run\b| horovod\b)|\bpython(?= -m| train\.py)|\bfarandole(?=\[)")


def command_folders() -> tuple[str, ...]:
    """Folders with the commands of this Python's environment, and with those of ``pip install --user``."""
    import site
    import sysconfig

    folders = [os.path.dirname(sys.executable), sysconfig.get_path("scripts")]
    if site.ENABLE_USER_SITE:
        folders.append(sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user")))
    return tuple(dict.fromkeys(folders))


def uninstalled_checkout() -> str:
    """Folder of the checkout that this package is imported from, if it is not installed; "" elsewhere."""
    from importlib import metadata  # slow to load

    try:
        metadata.version("farandole")
    except metadata.PackageNotFoundError:
        checkout = PACKAGE.parent.parent
        return str(checkout) if (checkout / "pyproject.toml").exists() else ""
    return ""


@final
@dataclass(frozen=True, slots=True)
class Here:
    """This Python, the folders of its commands, how programs and modules are looked for, and the variables.

    ``checkout`` is what pip has to install where it does not know ``farandole`` yet.
    """

    python: str = sys.executable
    folders: tuple[str, ...] = field(default_factory=command_folders)
    which: Which = shutil.which
    find: Find = find_spec
    checkout: str = field(default_factory=uninstalled_checkout)
    variables: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def typed(self, advice: str) -> str:
        """``advice`` with commands that reach this Python, wherever the ``PATH`` leads."""
        return _COMMANDS.sub(lambda found: self._command(found[0], advice[found.end() :]), advice)

    def leads_here(self, program: str) -> bool:
        """True if the ``PATH`` has this environment's own ``program``."""
        found = self.which(program)
        if not found:
            return False
        runs = _interpreter(found) or found
        if os.path.basename(runs).startswith("python"):
            return self._is_own(runs) and os.path.realpath(runs) == os.path.realpath(self.python)
        return self._is_own(found)  # it does not say which Python it starts

    def beside(self, program: str) -> str:
        """Path of this environment's ``program``, which need not be on the ``PATH``; "" if there is none."""
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
        if self.find("pip") is None and self.which("uv"):  # environments that uv has made have no pip
            return f"uv pip install --python {_short(self.python)}"
        return f"{python} -m {words}"

    def _is_own(self, path: str) -> bool:
        folder = os.path.realpath(os.path.dirname(path))
        return folder in map(os.path.realpath, self.folders)


def _short(path: str) -> str:
    """A path as one types it: from the working folder, where it lies below that."""
    with contextlib.suppress(OSError):  # there need not be a working folder
        relative = os.path.relpath(path)
        if not relative.startswith(os.pardir):
            return relative if os.sep in relative or relative == os.curdir else os.path.join(os.curdir, relative)
    return path


def _interpreter(path: str) -> str:
    """Program that the first line of a script names; "" for what is no script."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        first = file.read(512).partition(b"\n")[0]
        if first.startswith(b"#!"):
            return next(iter(os.fsdecode(first[2:]).split()), "")
    return ""
