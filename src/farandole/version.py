"""Version of this package, which all hosts of a job must share, and where it lies."""

from __future__ import annotations

from pathlib import Path

__version__ = "0.1.0"

PACKAGE = Path(__file__).absolute().parent
"""The folder of the package."""
