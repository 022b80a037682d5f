"""Provider of slots: abstract interface to a cluster that runs our tasks.

provider.lend(range(4), ticket, together=True)    # four tasks, each calling hold(ticket, slot); does not block
provider.failures()               # {2: "the worker died"}
provider.close([0, 1], until_s)   # all tasks have ended
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import ClassVar

from farandole.launch.clusters.slot import Ticket


class SlotProvider(ABC):
    """Cluster that provides slots for one run. One thread calls all methods; only ``close`` blocks."""

    name: ClassVar[str]
    """Name of the cluster's system, for messages."""

    is_over = False
    """True if the run must end before its workers do. Any thread may set it."""

    @abstractmethod
    def lend(self, slots: range, ticket: Ticket, *, together: bool) -> None:
        """Start a task of the cluster for each of ``slots``, which calls ``hold`` with the number of its slot.

        All tasks start at once (``together``), or each as soon as there is room for it; an elastic job requests further
        slots later. The cluster must not rerun a lost task. Raises ``UsageError`` for a request that the cluster can
        never satisfy.
        """

    @abstractmethod
    def failures(self) -> Mapping[int, str]:
        """Slots whose tasks have failed so far, with the cluster's error texts."""

    @abstractmethod
    def shortage(self) -> str:
        """End of a sentence: why slots may be missing, and what to do."""

    @abstractmethod
    def close(self, told: Collection[int], until_s: float) -> None:
        """Release all slots: wait until ``until_s`` for the tasks that were ``told`` to end, and kill all others.

        ``until_s`` is by ``time.monotonic``. Also called if ``lend`` has raised.
        """


def last_line(error: object) -> str:
    r"""Last line of an error's text: its own message, if a remote traceback precedes it.

    >>> last_line("Traceback ...\n  File ...\nModuleNotFoundError: No module named 'farandole'")
    "ModuleNotFoundError: No module named 'farandole'"
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
