"""Horovod's name for Farandole: put on the path of the workers of ``farandole run --horovod``, and installed nowhere.

``__version__`` is the version of Horovod whose API is spoken here.
"""

from __future__ import annotations

from horovod.runner import run

__version__ = "0.28.1"

__all__ = ["__version__", "run"]
