"""The command that runs a module of this package in a new Python.

>>> entry_command("farandole.launch.agents.agent")[1]
'-c'
"""

from __future__ import annotations

import sys

from farandole.version import PACKAGE


def entry_command(module: str) -> list[str]:
    """Command that calls ``main`` of a module of this package in a new Python.

    It is told to look where this package is instead of in the current folder, which may hold a ``signal.py``.
    """
    home = str(PACKAGE.parent)
    return [sys.executable, "-c", f"import sys; sys.path[0] = {home!r}; from {module} import main; main()"]
