"""Faults that come while a job runs: whoever watches the job says what is to happen next, its workers do it.

    strikes = Strikes(folder)                               # in every worker, before init()
    strike(folder, 7, [Strike("vote", rank=1)])             # by who watches: rank 1 is killed when it comes to its vote
    struck(folder, 7)                                       # [Struck(strike=0, rank=1, generation=3, step=612, ...)]

What was struck, and when, is left in a file: so a strike happens once, and what follows can be timed.
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
Deed: TypeAlias = Action | Chunk | Slow | Scripted | Literal["call"]

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
"""What ends the worker, sooner or later."""

NEWCOMER = -1
"""In place of a rank: a worker that has no state of the job yet."""

PATIENCE_S = 60.0


@final
class ScheduledFault(msgspec.Struct, frozen=True):
    """What happens to ``rank`` at its next ``phase``; ``later``: not before all strikes that precede it in the list.

    ``call`` waits until who watches has done something from outside. What is ``Slow`` or ``Scripted``, and to end in a
    ``Chunk`` of a reduction, is for the script to do.
    """

    phase: str
    rank: int = 0
    action: Deed = "kill"
    later: bool = False


@final
class Struck(msgspec.Struct, frozen=True):
    """A strike that has happened; ``worker`` is ``who()`` of its victim."""

    fault: int
    action: Deed
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
    """Have these happen, and none of those before."""
    put(folder / "case", msgspec.json.encode(_Case(number, list(faults))))


def struck(folder: Path, number: int) -> list[Struck]:
    """Those of a number that have happened."""
    decode = msgspec.json.Decoder(Struck).decode
    return [decode(path.read_bytes()) for path in sorted(folder.glob(f"struck-{number}-*")) if path.suffix != ".new"]


def answer(folder: Path, number: int) -> None:
    """What the workers called for is done."""
    put(folder / f"answer-{number}", b"")


def put(path: Path, content: bytes) -> None:
    """Write a file that others never see half."""
    new = path.with_name(f"{path.name}.{who()}.new")
    new.write_bytes(content)
    new.rename(path)


@final
class FaultInjection:
    """What a worker does when its turn comes. ``on`` says how to do what only the script can do."""

    def __init__(self, folder: Path, on: Mapping[str, Callable[[], object]]) -> None:
        self._folder, self._on = folder, on
        self._case, self._seen = _Case(-1, []), 0
        self._is_new, self._rank, self._generation, self._step = True, NEWCOMER, 0, 0
        self.cancel = events.subscribe(self._note)

    def reach(self, phase: str) -> None:
        """The worker comes to a phase that is the script's."""
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
            self._is_new = self._is_new and event.phase != "synced"

    def _read(self) -> None:
        """A case that is new to this worker begins here; looking at the file's time is all it costs otherwise."""
        try:
            changed = os.stat(self._folder / "case").st_mtime_ns
        except FileNotFoundError:
            return
        if changed != self._seen:
            self._seen = changed
            self._case = msgspec.json.decode((self._folder / "case").read_bytes(), type=_Case)

    def _may(self, index: int, each: ScheduledFault) -> bool:
        return not self._mark(index).exists() and not (
            each.later and any(not self._mark(before).exists() for before in range(index))
        )

    def _mark(self, index: int) -> Path:
        return self._folder / f"struck-{self._case.number}-{index}"

    def _inject(self, index: int, each: ScheduledFault) -> None:
        mine = Struck(index, each.action, who(), self._rank, self._generation, self._step, time.monotonic())
        put(self._mark(index), msgspec.json.encode(mine))
        if each.action == "call":
            deadline = time.monotonic() + PATIENCE_S
            while not (self._folder / f"answer-{self._case.number}").exists() and time.monotonic() < deadline:
                time.sleep(0.002)  # a file is all that reaches other hosts
        elif each.action in self._on:
            self._on[each.action]()
        else:
            inject_now(each.action)  # type: ignore[arg-type] # what is left of the names
