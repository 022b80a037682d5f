"""Hands of everybody around a scheduler under test: of its user, its administrator, and of time."""

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
        """Make a scheduler that gives a call up after ``patience_s``; it is closed by who asked for it."""

    @abstractmethod
    def script(self, minutes: int) -> str:
        """A script of a job which takes a whole node, and runs until its time limit."""

    @abstractmethod
    def impossible_script(self) -> str:
        """A script that is always refused: of a partition which does not exist."""

    @abstractmethod
    def clear(self) -> None:
        """End all jobs, and wait until the nodes are idle."""

    # -- the administrator --------------------------------------------------------------------------------------------

    @abstractmethod
    def bar(self, job: str) -> None:
        """Hold a job as an administrator."""

    @abstractmethod
    def close_queue(self) -> None:
        """Refuse to submit jobs; those that are submitted can be started."""

    @abstractmethod
    def open_queue(self) -> None:
        """Undo ``close_queue``."""

    @abstractmethod
    def drain(self, node: str, reason: str) -> None:
        """Have no more jobs start on a node; those that run there go on."""

    @abstractmethod
    def undrain(self, node: str) -> None:
        """Undo ``drain``."""

    # -- what happens to a scheduler ----------------------------------------------------------------------------------

    @abstractmethod
    def go_away(self) -> None:
        """End the scheduler's process: nothing that is asked for is done."""

    @abstractmethod
    def hang(self) -> None:
        """Let the scheduler take calls, and answer none; it does what they ask for, now or after ``come_back``."""

    @abstractmethod
    def come_back(self) -> None:
        """Undo ``go_away`` or ``hang``."""

    # -- time ---------------------------------------------------------------------------------------------------------

    @abstractmethod
    def now(self) -> float:
        """Time by the clock of ``deadline_s``."""

    @abstractmethod
    def wait(self, scheduler: Scheduler) -> None:
        """Wait until a descriptor of the scheduler is readable, or its deadline has come."""

    @abstractmethod
    def pause(self) -> None:
        """Let a moment pass between two looks."""
