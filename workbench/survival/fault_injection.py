"""Fault injection in a running job: the test schedules faults, the workers inject them.

    faults = FaultInjection(folder, on={})                  # in every worker, before it trains
    fault(folder, 7, [ScheduledFault("vote", rank=1)])      # in the test: rank 1 is killed when it comes to its vote
    injected(folder, 7)                                     # [InjectedFault(fault=0, action="kill", step=612, ...)]

A fault that has happened leaves a file with its time: so it happens once, and the recovery can be timed.

Processes: one test and many workers, on several hosts, connected only by files in a folder: ``case``, a mark for each
fault that has happened, and an ``answer``. Each file is written once, or replaced as a whole, by ``put``; so nothing is
locked, and readers may read at any time. A worker that finds no mark makes it and acts, which is safe because only one
worker at a time has the rank of a fault. In a worker everything runs in the training thread: it emits the events that
are processed here, and events of other threads end at the first two lines of ``_note``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias, final

import msgspec

from farandole import events
from farandole.testing.faults import Action, inject_now
from farandole.testing.ledger import who

Chunk: TypeAlias = Literal["first chunk", "middle chunk", "last chunk"]
Slow: TypeAlias = Literal["2 x slower", "10 x slower", "100 x slower"]
Scripted: TypeAlias = Literal["nan", "inf", "loader", "damage", "stale", "no room", "room", "other model"]
FaultAction: TypeAlias = Action | Chunk | Slow | Scripted | Literal["call"]

LETHAL = (
    "kill",
    "stop",
    "hang",
    "loop",
    "segv",
    "exit",
    "raise",
    "loader",
    "first chunk",
    "middle chunk",
    "last chunk",
)
"""Actions that end the worker, sooner or later."""

NEWCOMER = -1
"""Rank, in a ``ScheduledFault``, of a worker that has no state of the job yet."""

PATIENCE_S = 60.0


@final
class ScheduledFault(msgspec.Struct, frozen=True):
    """A fault of ``rank`` at its next ``phase``; ``later``: not before all faults that precede it in the list.

    ``call`` waits until the test has acted from outside. The script itself implements actions that are ``Slow`` or
    ``Scripted``, and the end in a ``Chunk`` of a reduction.
    """

    phase: str
    rank: int = 0
    action: FaultAction = "kill"
    later: bool = False


@final
class InjectedFault(msgspec.Struct, frozen=True):
    """A fault that has happened; ``worker`` is ``who()`` of its victim."""

    fault: int
    action: FaultAction
    worker: str
    rank: int
    generation: int
    step: int
    time_s: float


@final
class _Case(msgspec.Struct, frozen=True):
    number: int
    faults: list[ScheduledFault]


def fault(folder: Path, number: int, faults: Sequence[ScheduledFault]) -> None:
    """Schedule ``faults`` as case ``number``; faults of the previous case are void."""
    put(folder / "case", msgspec.json.encode(_Case(number, list(faults))))


def injected(folder: Path, number: int) -> list[InjectedFault]:
    """Faults of case ``number`` that have happened, by their index."""
    decode = msgspec.json.Decoder(InjectedFault).decode
    return [decode(path.read_bytes()) for path in sorted(folder.glob(f"injected-{number}-*")) if path.suffix != ".new"]


def answer(folder: Path, number: int) -> None:
    """Release workers that wait in a ``call`` of case ``number``."""
    put(folder / f"answer-{number}", b"")


def put(path: Path, content: bytes) -> None:
    """Write a file atomically: others see all of it, or nothing."""
    new = path.with_name(f"{path.name}.{who()}.new")  # of this process only, should two write the same file
    new.write_bytes(content)
    new.rename(path)


@final
class FaultInjection:
    """Faults of one worker, injected in their turn. ``on`` has the actions that only the script can do."""

    def __init__(self, folder: Path, on: Mapping[str, Callable[[], object]]) -> None:
        self._folder, self._on = folder, on
        self._case, self._seen = _Case(-1, []), 0
        self._is_new, self._rank, self._generation, self._step = True, NEWCOMER, 0, 0
        self.cancel = events.subscribe(self._note)

    def reach(self, phase: str) -> None:
        """Do what is due at ``phase``, which the worker has reached."""
        self._read()
        for index, each in enumerate(self._case.faults):
            whose = NEWCOMER if self._is_new else self._rank
            if each.phase == phase and each.rank == whose and self._may(index, each):
                self._inject(index, each)

    def _note(self, event: events.Event) -> None:
        if isinstance(event, events.Phase):
            if event.lane == "generation" and event.phase == "form":
                self.reach("connect")
        elif isinstance(event, events.Milestone):
            self._rank, self._generation, self._step = event.rank, event.generation, event.step
            self.reach(event.phase)
            # Afterwards: at ``synced`` itself it is still the newcomer.
            self._is_new = self._is_new and event.phase != "synced"

    def _read(self) -> None:
        """Read a case that is new to this worker; otherwise this costs only one ``stat`` of the file."""
        try:
            changed = os.stat(self._folder / "case").st_mtime_ns
        except FileNotFoundError:
            return
        if changed != self._seen:
            self._seen = changed  # from before reading: a case that is written in between is read now, and once more
            self._case = msgspec.json.decode((self._folder / "case").read_bytes(), type=_Case)

    def _may(self, index: int, each: ScheduledFault) -> bool:
        return not self._mark(index).exists() and not (
            each.later and any(not self._mark(before).exists() for before in range(index))
        )

    def _mark(self, index: int) -> Path:
        return self._folder / f"injected-{self._case.number}-{index}"

    def _inject(self, index: int, each: ScheduledFault) -> None:
        mine = InjectedFault(index, each.action, who(), self._rank, self._generation, self._step, time.monotonic())
        put(self._mark(index), msgspec.json.encode(mine))  # first: most actions end the process
        if each.action == "call":
            deadline = time.monotonic() + PATIENCE_S  # should the test have failed, the job is not to hang as well
            while not (self._folder / f"answer-{self._case.number}").exists() and time.monotonic() < deadline:
                time.sleep(0.002)  # a file is all that reaches other hosts
        elif each.action in self._on:
            self._on[each.action]()
        else:
            inject_now(each.action)  # type: ignore[arg-type] # what is left of the names
