"""Context of one collective of a planned lane: others see that this rank is in it, and its errors say the cause.

with PlannedCollective(active, reentry, explain, (0, "optimizer.0", 7, "bucket 1", True, False)):
    engine.allreduce(...)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, final

from farandole.errors import AbortError, EngineError
from farandole.runtime.lanes.active_collectives import ActiveCollectives
from farandole.runtime.lanes.reentry import Reentry

CONSEQUENCES = (AbortError, EngineError)
"""Errors of an engine where another rank has left or died, for which the controller knows the cause."""

Collective: TypeAlias = tuple[int, str, int, str, bool, bool]
"""Arguments of ``ActiveCollectives.enter``."""


@final
class PlannedCollective:
    """Context manager of a collective. A class, as the generator of a context manager costs a training step more."""

    __slots__ = ("_active", "_collective", "_explain", "_reentry")

    def __init__(
        self, active: ActiveCollectives, reentry: Reentry, explain: Callable[[], None], collective: Collective
    ) -> None:
        self._active, self._reentry, self._explain, self._collective = active, reentry, explain, collective

    def __enter__(self) -> None:
        self._reentry.__enter__()
        self._active.enter(*self._collective)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        try:
            if isinstance(error, CONSEQUENCES):
                self._explain()  # before leaving: it reports what this rank is blocked in
        finally:
            self._active.leave(*self._collective[:2])
            self._reentry.__exit__()
