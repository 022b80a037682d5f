"""The package named ``horovod`` that is Farandole: where it lies, and the variables by which workers find it. Pure.

    >>> variables({"PATH": "/usr/bin"})["PATH"].endswith("compat/bin:/usr/bin")
    True

Two ways lead there. ``PYTHONPATH`` works wherever Farandole itself is found, but a job that sets that variable for its
own folders loses it. ``FARANDOLE_HOROVOD`` is the setting ``horovod``: ``farandole-horovod.pth``, which the wheel puts
beside the package, acts on it in every Python of the environment, however that was started.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from farandole.version import PACKAGE

SPOKEN = "0.28.1"
"""The version of Horovod whose API and command line these are."""

_COMPAT = os.path.join(PACKAGE, "compat")

HOROVOD_SITE = os.path.join(_COMPAT, "site")
"""Holds the package, and what package managers ask about it."""

METADATA = os.path.join(HOROVOD_SITE, f"horovod-{SPOKEN}.egg-info")
"""The answer to ``importlib.metadata.version("horovod")``: a file, as builders of wheels leave out such folders."""

CRAY_SITE = os.path.join(_COMPAT, "cray")
"""Holds ``ml_comm`` and ``dl_comm``, the names of Cray's plugin."""

HOROVOD_BIN = os.path.join(_COMPAT, "bin")
"""Holds the command ``horovodrun``."""

PYTHON = "FARANDOLE_PYTHON"
"""The interpreter that runs that command, which need not be the first one on the path."""


def variables(inherited: Mapping[str, str]) -> dict[str, str]:
    """Variables of a process besides the setting ``horovod``; its others are ``inherited``."""
    return {
        "PYTHONPATH": before(HOROVOD_SITE, inherited.get("PYTHONPATH", "")),
        "PATH": before(HOROVOD_BIN, inherited.get("PATH", os.defpath)),
        PYTHON: sys.executable,
    }


def before(folder: str, path: str) -> str:
    """A search path that begins with ``folder``, and has it once."""
    return os.pathsep.join([folder, *(each for each in path.split(os.pathsep) if each and each != folder)])
