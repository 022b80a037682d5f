"""Command that runs a module of this package in a new Python process.

>>> entry_command("farandole.launch.agents.agent")[1]
'-c'
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from farandole.version import PACKAGE


def entry_command(module: str, path: Sequence[str] = ()) -> list[str]:
    """Command that calls ``main`` of a module of this package in a new Python process.

    ``sys.path`` starts with the folder of this package instead of the current folder, which may hold a ``signal.py``,
    and ends with the folders of ``path``.
    """
    home, more = str(PACKAGE.parent), f"sys.path += {list(path)!r}; " if path else ""
    return [sys.executable, "-c", f"import sys; sys.path[0] = {home!r}; {more}from {module} import main; main()"]
