"""Interface between a scheduler and the contract: actions of its user and its administrator, and time."""

from __future__ import annotations

from abc import ABC, abstractmethod

from farandole.launch.leases.scheduler import Scheduler


class SchedulerUnderTest(ABC):
    """A scheduler of a cluster with ``nodes`` idle nodes, for the contract.

    Its user is no administrator: no case may pass because everything is allowed.
    """

    nodes: int = 2

    @abstractmethod
    def scheduler(self, patience_s: float) -> Scheduler:
        """Make a scheduler that gives up a call after ``patience_s``; the caller closes it."""

    @abstractmethod
    def script(self, minutes: int) -> str:
        """A script of a job that takes a whole node, and runs until its time limit."""

    @abstractmethod
    def impossible_script(self) -> str:
        """A script that is always refused, because its partition does not exist."""

    @abstractmethod
    def clear(self) -> None:
        """End all jobs, and wait until the nodes are idle."""

    # -- the administrator --------------------------------------------------------------------------------------------

    @abstractmethod
    def bar(self, job: str) -> None:
        """Hold a job as an administrator."""

    @abstractmethod
    def close_queue(self) -> None:
        """Refuse new submissions; submitted jobs can still be started."""

    @abstractmethod
    def open_queue(self) -> None:
        """Undo ``close_queue``."""

    @abstractmethod
    def drain(self, node: str, reason: str) -> None:
        """Start no more jobs on a node; running jobs go on."""

    @abstractmethod
    def undrain(self, node: str) -> None:
        """Undo ``drain``."""

    # -- what happens to a scheduler ----------------------------------------------------------------------------------

    @abstractmethod
    def go_away(self) -> None:
        """End the scheduler's process: no call is executed."""

    @abstractmethod
    def hang(self) -> None:
        """Let the scheduler accept calls without answers; it executes them, now or after ``come_back``."""

    @abstractmethod
    def come_back(self) -> None:
        """Undo ``go_away`` or ``hang``."""

    # -- time ---------------------------------------------------------------------------------------------------------

    @abstractmethod
    def now(self) -> float:
        """Time by the clock of ``deadline_s``."""

    @abstractmethod
    def wait(self, scheduler: Scheduler) -> None:
        """Wait until a descriptor of the scheduler is readable, or its deadline has passed."""

    @abstractmethod
    def pause(self) -> None:
        """Let some time pass between two looks."""
