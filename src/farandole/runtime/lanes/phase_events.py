"""Phase events of the negotiated lane: where its time is spent, for subscribers such as the timeline.

phases.of(["allreduce.loss"], Kind.ALLREDUCE)
begin = phases.begin()
engine.allreduce(array, how)
phases.end("reduce", begin, array.nbytes)
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import final

from farandole import events
from farandole.collective import Kind

LANE = "negotiated"


def waited(names: Sequence[str], kind: Kind, asked: Sequence[tuple[float, float] | None], received_s: float) -> None:
    """Emit the phases before the order to execute ``names`` together, which was received at ``received_s``.

    ``asked`` has, for each name, the times at which this rank began and finished announcing it: 0 if a user's thread is
    still announcing it, ``None`` if this rank does not take part.
    """
    now = time.monotonic()
    for name, times in zip(names, asked, strict=True):
        if times is not None and times[0]:
            begin_s, sent_s = times
            if sent_s:
                events.emit(events.Phase(LANE, name, kind.label, "submit", begin_s, sent_s))
            events.emit(events.Phase(LANE, name, kind.label, "negotiate", sent_s or begin_s, received_s))
        events.emit(events.Phase(LANE, name, kind.label, "queue", received_s, now))


def executed(names: Sequence[str], kind: Kind, received_s: float) -> None:
    """Emit that the order of ``names`` has been executed."""
    now = time.monotonic()
    for name in names:
        events.emit(events.Phase(LANE, name, kind.label, "execute", received_s, now))


def cycle(received_s: float) -> None:
    """Emit that orders were received."""
    events.emit(events.Phase(LANE, "orders", "", "cycle", received_s, received_s))


@final
class PhaseEvents:
    """Phases of the collective that a thread executes now. Without subscribers each call is one look-up."""

    __slots__ = ("_kind", "_names")

    def __init__(self) -> None:
        self._names: Sequence[str] = ()
        self._kind = Kind.BARRIER

    def of(self, names: Sequence[str], kind: Kind) -> None:
        """Set the current collective; several names are one fused collective."""
        self._names, self._kind = names, kind

    def begin(self) -> float:
        """Current time, for ``end``; 0 without subscribers."""
        return time.monotonic() if events.subscribers else 0.0

    def end(self, phase: str, begin_s: float, nbytes: int = 0) -> float:
        """Emit a phase that began at ``begin_s`` and ends now; returns the current time, where the next one starts."""
        if not begin_s or not events.subscribers:
            return 0.0
        now = time.monotonic()
        more = f" and {len(self._names) - 1} more" if len(self._names) > 1 else ""
        events.emit(events.Phase(LANE, self._names[0] + more, self._kind.label, phase, begin_s, now, nbytes))
        return now
