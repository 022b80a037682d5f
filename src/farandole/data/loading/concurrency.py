"""``Concurrency``: how many of the threads load at once.

    concurrency = Concurrency(threads=8, cpus=2)
    concurrency.number                                                    # 2
    concurrency.note(sample_s=0.021, cpu_s=0.001, waited_s=0.02)          # storage takes most of the time
    concurrency.number                                                    # 8

Threads that wait for storage cost nothing, and more of them load more. Threads that decode take the processors, and the
GIL, from each other and from the training: on two cores eight decode JPEG files at two thirds of the rate of two.
"""

# Threads. Loading threads call ``note`` without a lock: of two changes at one moment one may be lost, which the next
# sample makes up for.

from __future__ import annotations

from typing import final

FAST_S = 3e-4
"""Samples that take less come from memory."""
FEW = 2
"""Threads that load such samples: waking more takes longer than they save."""
_WEIGHT, _MOST = 0.1, 20.0
"""Weight of the last sample in the mean, and the most that one counts: waiting for the GIL looks the same."""
_LESS, _MORE = 0.25, 1.0
"""Waits for storage, per CPU time, at which few threads are enough, and at which all threads are needed."""


@final
class Concurrency:
    """Number of threads, of ``threads``, that load at once: no more than ``cpus``, until samples wait for storage.

    Without ``is_measured`` it is unknown what samples wait for, and all threads load.
    """

    def __init__(self, threads: int, cpus: int, is_measured: bool = True) -> None:
        self._all, self._few = threads, min(threads, max(FEW, cpus))
        self.number = self._few if is_measured else threads
        self.is_fast = False
        """True if the last sample came from memory."""
        self._waits = 0.0

    @property
    def first(self) -> int:
        """Number of threads for a new batch; ``number`` is for one that is waited for."""
        return min(FEW, self.number) if self.is_fast else self.number

    def note(self, sample_s: float, cpu_s: float, waited_s: float | None) -> None:
        """Count a sample that took ``sample_s``: its thread computed for ``cpu_s``, and waited for storage.

        ``waited_s`` is ``None`` for data sets that do not measure it.
        """
        self.is_fast = sample_s < FAST_S
        waits = _MOST if waited_s is None else min(_MOST, waited_s / max(cpu_s, 1e-6))
        self._waits += _WEIGHT * (waits - self._waits)
        if self._waits > _MORE:
            self.number = self._all
        elif self._waits < _LESS:
            self.number = self._few
