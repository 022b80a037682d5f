"""Location of Farandole's package named ``horovod``, and the variables with which workers find it. Pure.

    >>> variables({"PATH": "/usr/bin"})["PATH"].endswith("compat/bin:/usr/bin")
    True

There are two mechanisms. ``PYTHONPATH`` works wherever Farandole itself is found, but is lost if a job sets that
variable. ``FARANDOLE_HOROVOD`` is the setting ``horovod``: ``farandole-horovod.pth``, which the wheel installs beside
the package, reads it in every Python process of the environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from farandole.version import PACKAGE

SPOKEN = "0.28.1"
"""Version of Horovod whose API and command line are provided."""

_COMPAT = os.path.join(PACKAGE, "compat")

HOROVOD_SITE = os.path.join(_COMPAT, "site")
"""Folder with the package and its metadata."""

METADATA = os.path.join(HOROVOD_SITE, f"horovod-{SPOKEN}.egg-info")
"""Metadata for ``importlib.metadata.version("horovod")``: a file, because wheel builders omit such folders."""

CRAY_SITE = os.path.join(_COMPAT, "cray")
"""Folder with ``ml_comm`` and ``dl_comm``, the names of Cray's plugin."""

HOROVOD_BIN = os.path.join(_COMPAT, "bin")
"""Folder with the command ``horovodrun``."""

PYTHON = "FARANDOLE_PYTHON"
"""Variable with the interpreter for that command, which may not be the first one on the ``PATH``."""


def variables(inherited: Mapping[str, str]) -> dict[str, str]:
    """Variables to add to a process with these ``inherited`` ones, besides the setting ``horovod``."""
    return {
        "PYTHONPATH": before(HOROVOD_SITE, inherited.get("PYTHONPATH", "")),
        "PATH": before(HOROVOD_BIN, inherited.get("PATH", os.defpath)),
        PYTHON: sys.executable,
    }


def before(folder: str, path: str) -> str:
    """The search path ``path`` with ``folder`` moved to its beginning."""
    return os.pathsep.join([folder, *(each for each in path.split(os.pathsep) if each and each != folder)])
