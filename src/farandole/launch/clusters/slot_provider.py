"""Lender of slots: the abstract cluster that runs tasks of ours, and what its tasks have in common.

provider.lend(4, ticket)          # four tasks, each calling hold(ticket, slot); does not wait for them
provider.failures()               # {2: "the worker died"}
provider.close([0, 1], until_s)   # none of them runs any more
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import ClassVar

from farandole.launch.clusters.slot import Ticket


class SlotProvider(ABC):
    """Cluster that lends slots for one run. One thread calls all methods, of which only ``close`` waits."""

    name: ClassVar[str]
    """Name of the cluster's system, for people."""

    is_over = False
    """True once the run is to end before its workers do. Any thread may set it."""

    @abstractmethod
    def lend(self, np: int, ticket: Ticket) -> None:
        """Have the cluster run ``np`` tasks at once, each of which calls ``hold`` with its number.

        A task that the cluster loses must not be run again: what it held is gone. Raises ``UsageError`` for what the
        cluster can never give.
        """

    @abstractmethod
    def failures(self) -> Mapping[int, str]:
        """The slots whose tasks have failed by now, and why, in the cluster's words."""

    @abstractmethod
    def shortage(self) -> str:
        """Explanation why slots may be missing, and what to do, for the end of a sentence."""

    @abstractmethod
    def close(self, told: Collection[int], until_s: float) -> None:
        """Give everything back: wait for the tasks that are ``told`` to end until ``until_s``, and end all others.

        That is a time of ``time.monotonic``. Also called if ``lend`` has raised.
        """


def last_line(error: object) -> str:
    r"""The last line of what an error says: its own words, where others put a traceback before them.

    >>> last_line("Traceback ...\n  File ...\nModuleNotFoundError: No module named 'farandole'")
    "ModuleNotFoundError: No module named 'farandole'"
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
