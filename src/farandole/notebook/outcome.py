"""Outcome of a cell on one rank, as text, and which of several failures is the cause of the others; pure.

read(result)                                # an CellOutcome of IPython Parallel's AsyncResult that is done
first_cause({0: outcome, 1: outcome})       # 1: the rank whose error explains the other's; None if none has failed
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, final

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
DIED, SKIPPED = "EngineError", "TaskAborted"
FOLLOWING = ("AbortError", SKIPPED)
"""Errors of a rank that the failure of another rank explains."""

OOM = (
    "Its host may have been short of memory: `dmesg | tail` there tells of processes that were killed for it. The "
    "other ranks live, with their models: ranks.replace() starts an engine in its place"
)


@final
class CellOutcome(NamedTuple):
    """End of a cell on a rank; ``kind`` is the name of an exception, "" if the cell succeeded."""

    kind: str = ""
    text: str = ""
    traceback: str = ""
    completed: Any = None

    @property
    def is_failure(self) -> bool:
        """True unless the cell has run to its end."""
        return bool(self.kind)

    @property
    def summary(self) -> str:
        """One line, or several."""
        if self.kind == DIED:
            return f"{self.kind}: its engine has died. {OOM}"
        if self.kind == SKIPPED:
            return f"{self.kind}: it did not run this cell, as one before it had failed there. Send it again"
        return f"{self.kind}: {self.text}" if self.text else self.kind


def read(result: Any) -> CellOutcome:
    """Read the outcome of a result that is done."""
    error = result.exception()
    completed = result.metadata["completed"]
    if error is not None:
        kind = getattr(error, "ename", type(error).__name__)
        text = str(getattr(error, "evalue", error))
        trace = COLOURS.sub("", str(getattr(error, "traceback", "") or ""))
        return CellOutcome(kind, text, trace, completed)
    if result.metadata["status"] not in ("ok", None):
        return CellOutcome(SKIPPED, completed=completed)
    return CellOutcome(completed=completed)


def first_cause(outcomes: Mapping[int, CellOutcome]) -> int | None:
    """Rank whose failure explains the failures of the others.

    >>> first_cause({0: CellOutcome("AbortError", "rank 1 gave up"), 1: CellOutcome("ValueError", "no data")})
    1
    """
    failed = [rank for rank, outcome in outcomes.items() if outcome.is_failure]
    order = {DIED: 0, **dict.fromkeys(FOLLOWING, 2)}
    return min(failed, key=lambda rank: (order.get(outcomes[rank].kind, 1), rank), default=None)
