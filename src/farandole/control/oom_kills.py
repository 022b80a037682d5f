"""Counter of the processes of this host that the kernel killed because memory ran out (OOM kills).

    kills = OomKills()
    ...                        # a child was killed by SIGKILL
    kills.has_struck()      # True if the kernel has killed a process for lack of memory since the last call

The kernel counts OOM kills in ``/proc/vmstat``, also at the limit of a control group (a job's, a container's), before
it sends the signal. It does not say which process it killed: that it was this child is likely, not certain.
"""

from __future__ import annotations

from pathlib import Path
from typing import final

VMSTAT = Path("/proc/vmstat")


@final
class OomKills:
    """Detects increases of the kernel's count of OOM kills."""

    def __init__(self, vmstat: Path = VMSTAT) -> None:
        self._vmstat = vmstat
        self._known = self._count()

    def has_struck(self) -> bool:
        """True if the kernel has killed a process for lack of memory since the last call; false without a counter."""
        before, self._known = self._known, self._count()
        return self._known > before

    def _count(self) -> int:
        try:
            rows = (line.split() for line in self._vmstat.read_text().splitlines())
            return next((int(row[1]) for row in rows if row[0] == "oom_kill"), 0)
        except OSError:
            return 0
