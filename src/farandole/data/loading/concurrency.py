"""``Concurrency``: how many of the threads load at once, and whether one of them takes whole batches.

    concurrency = Concurrency(threads=8, cpus=2, decodes=True)
    concurrency.number                                                    # 2
    concurrency.note(sample_s=0.021, cpu_s=0.001, waited_s=0.02)          # storage takes most of the time
    concurrency.number                                                    # 8

Threads that wait for storage cost nothing, and more of them load more. Threads that decode take the processors, and the
GIL, from each other and from the training: on two cores eight decode JPEG files at two thirds of the rate of two.
"""

# Threads. Loading threads call ``note`` without a lock: of two changes at one moment one may be lost, which the next
# sample makes up for.

from __future__ import annotations

from typing import Any, final

FAST_S = 3e-4
"""Samples that take less come from memory."""
FEW = 2
"""Threads that load such samples: waking more takes longer than they save."""
_WEIGHT = 0.1
"""Weight of the last sample in the means."""
_MOST, _MOST_S = 20.0, 0.1
"""The most that one sample counts: waiting for the GIL looks the same."""
_SLOW = 1.0
"""Waits for storage, per CPU time, at which all threads are needed."""


@final
class Concurrency:
    """Number of threads, of ``threads``, that load at once.

    All do, unless loading ``decodes``: then as many as keep ``cpus`` processors busy, until samples wait for storage.
    An epoch begins with what the one before has shown.
    """

    def __init__(self, threads: int, cpus: int, decodes: bool) -> None:
        self._all, self._decodes = threads, decodes
        self.few = min(threads, max(FEW, cpus))
        """Threads that are enough while samples do not wait."""
        self.number = self.few if decodes else threads
        self.is_fast = False
        """True if samples come from memory, the last one, too."""
        self.form: Any = None
        """Form of the samples, known after one batch; None again if a batch cannot be read by one call."""
        self.reads_batches = True
        self._sample_s = self._waits = 0.0

    @property
    def reads_whole(self) -> bool:
        """True if one thread reads a batch by one call: not from slow storage, where several threads read its rows."""
        return self.form is not None and self.is_fast

    @property
    def ahead(self) -> int:
        """Batches that are loaded in advance: of whole ones, two for each thread, as none may wait for the consumer."""
        return 2 * min(FEW, self.few) if self.reads_whole else 2

    @property
    def first(self) -> int:
        """Number of threads for a new batch; ``number`` is for one that is waited for."""
        return min(FEW, self.number) if self.is_fast else self.number

    def note(self, sample_s: float, cpu_s: float, waited_s: float) -> None:
        """Count a sample that took ``sample_s``: its thread computed for ``cpu_s``, and ``waited_s`` for storage."""
        self._sample_s += _WEIGHT * (min(sample_s, _MOST_S) - self._sample_s)
        self.is_fast = max(sample_s, self._sample_s) < FAST_S
        if self._decodes:
            self._waits += _WEIGHT * (min(_MOST, waited_s / max(cpu_s, 1e-6)) - self._waits)
            needed = self._all if self._waits > _SLOW else int(self.few * (1.0 + self._waits))
            self.number = min(self._all, needed)
