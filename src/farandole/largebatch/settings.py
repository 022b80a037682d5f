"""Checks of the settings of optimizers for large batches.

at_least("weight_decay", 1e-4)
between("momentum", 0.9)
"""

from __future__ import annotations

from farandole.errors import UsageError


def at_least(name: str, value: float, least: float = 0.0) -> None:
    """Refuse a setting below ``least``, and a setting that is no number."""
    if not float(value) >= least:
        raise UsageError(f"{name}={value}: expected a number from {least:g}")


def between(name: str, value: float) -> None:
    """Refuse a share that is not in [0, 1)."""
    if not 0.0 <= value < 1.0:
        raise UsageError(f"{name}={value}: expected a number from 0, below 1")
