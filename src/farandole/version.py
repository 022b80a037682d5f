"""Version of this package, which must be the same on all hosts of a job, and its folder."""

from __future__ import annotations

from pathlib import Path

__version__ = "0.1.0"

PACKAGE = Path(__file__).absolute().parent
"""Folder of the package."""
