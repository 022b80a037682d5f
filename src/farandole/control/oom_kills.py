"""A look at the kernel's count of processes of this host that it has killed because memory ran out.

    kills = OomKills()
    ...                        # a child was killed by SIGKILL
    kills.has_struck()      # True if the kernel has killed a process for that since it was last asked

The kernel counts such ends in ``/proc/vmstat``, those at the limit of a control group (a job's, a container's) too, and
before the signal is sent. It does not say whose they were: that it was this child is likely, not known.
"""

from __future__ import annotations

from pathlib import Path
from typing import final

VMSTAT = Path("/proc/vmstat")


@final
class OomKills:
    """Compares the kernel's count with what it was."""

    def __init__(self, vmstat: Path = VMSTAT) -> None:
        self._vmstat = vmstat
        self._known = self._count()

    def has_struck(self) -> bool:
        """True if the kernel has killed for memory since this was last asked; false where it does not count."""
        before, self._known = self._known, self._count()
        return self._known > before

    def _count(self) -> int:
        try:
            rows = (line.split() for line in self._vmstat.read_text().splitlines())
            return next((int(row[1]) for row in rows if row[0] == "oom_kill"), 0)
        except OSError:
            return 0
