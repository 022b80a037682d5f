"""Telling subscribers what the negotiated lane spends its time on.

phases.of(["allreduce.loss"], Kind.ALLREDUCE)
begin = phases.begin()
engine.allreduce(array, op)
phases.end("reduce", begin, array.nbytes)
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import final

from farandole import events
from farandole.collective import Kind

LANE = "negotiated"


@final
class Phases:
    """The phases of the collective that one thread executes now. Without subscribers each call is one look-up."""

    __slots__ = ("_kind", "_names")

    def __init__(self) -> None:
        self._names: Sequence[str] = ()
        self._kind = Kind.BARRIER

    def of(self, names: Sequence[str], kind: Kind) -> None:
        """What is executed from now on; several names are one fused collective."""
        self._names, self._kind = names, kind

    def begin(self) -> float:
        """The time now, for ``end``; 0 if nobody listens."""
        return time.monotonic() if events.subscribers else 0.0

    def end(self, phase: str, begin_s: float, nbytes: int = 0) -> float:
        """Emit a phase that began at ``begin_s`` and ends now; returns now, where the next one begins."""
        if not begin_s or not events.subscribers:
            return 0.0
        now = time.monotonic()
        more = f" and {len(self._names) - 1} more" if len(self._names) > 1 else ""
        events.emit(events.Phase(LANE, self._names[0] + more, self._kind.label, phase, begin_s, now, nbytes))
        return now
