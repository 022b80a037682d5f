"""Kills of workers that their own jobs make, and the times of steps, in files that all workers share.

strikes = Strikes(folder, kills)
strikes.begin()                     # a generation of workers begins
state.commit()
if strikes.stepped(rank, size):     # perhaps it kills this worker
    return                          # all kills have been survived
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import final

STEPS = 12
"""How many steps two workers make together before one of them is killed, or all is over."""


@final
class Strikes:
    """Kills to make, and those that were made, in a job of two workers."""

    def __init__(self, folder: Path, kills: int) -> None:
        self._strikes, self._steps = folder / "strikes", folder / f"steps-{os.getpid()}"
        self._kills, self._made, self._count = kills, 0, 0

    def begin(self) -> None:
        """Count the kills before this generation; nobody is killed before all its workers are here."""
        self._made = len(self._strikes.read_text().splitlines()) if self._strikes.exists() else 0
        self._count = 0

    def stepped(self, rank: int, size: int) -> bool:
        """Write down a committed step. True once the workers may leave, all in the same step."""
        with self._steps.open("a") as file:
            file.write(f"{time.monotonic()}\n")
        self._count += 1
        if size < 2 or self._count < STEPS:
            return False
        if self._made < self._kills and rank == self._made % 2:
            with self._strikes.open("a") as file:
                file.write(f"{time.monotonic()}\n")
            os.kill(os.getpid(), signal.SIGKILL)
        return self._made == self._kills
