"""Workers of an elastic job as the membership knows them, from the decision to start each until its end."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import final

from farandole.elastic.membership.slots import HostSlot
from farandole.elastic.membership.vote import NEW
from farandole.runtime.coordination.rank_names import list_some


@final
class WorkerPhase(Enum):
    """Phase in the life of a worker."""

    STARTING = "it has not called init()"
    GREETED = "it builds its model; a generation trains without it"
    READY = "it waits in init() for the next generation"
    MEMBER = "it is in the current generation"
    LEFT = "it has left the current generation, and will come again or end"
    LEAVING = "it was told to end, and does so when its script has"
    ENDING = "it has failed, and its process is about to end"
    DISMISSED = "it has been told that it is not needed"
    DOOMED = "it was killed, and its end is not known yet"


@final
@dataclass(slots=True)
class Worker:
    """One worker process. ``senior``: it has been a member. ``step``: step of its state at its latest ``Hello``.

    ``to_blame``: its exit counts as a failure of its slot. ``since_s``: time at which it entered its phase.
    ``answered_s``: time of its last sign of life while others waited for it.
    """

    worker_id: int
    slot: HostSlot
    phase: WorkerPhase
    since_s: float
    senior: bool = False
    step: int = NEW
    to_blame: bool = True
    member_since_s: float | None = None
    answered_s: float = -math.inf

    def enter(self, phase: WorkerPhase, now: float) -> None:
        """Change to ``phase``."""
        self.phase, self.since_s = phase, now

    @property
    def holds(self) -> bool:
        """True if the job can go on from its state."""
        return self.senior and self.step > NEW

    def lasted_s(self, now: float) -> float:
        """Seconds since it first became a member; 0 if it never did."""
        return 0.0 if self.member_since_s is None else now - self.member_since_s

    def __str__(self) -> str:
        """Text for logs and errors. Ranks change; worker ids do not."""
        return f"worker {self.worker_id} on {self.slot.host}"


def name(workers: Iterable[Worker]) -> str:
    """Several workers, by host: ``workers 0, 2 on a, worker 5 on b``."""
    by_host: dict[str, list[str]] = {}
    for worker in workers:
        by_host.setdefault(worker.slot.host, []).append(str(worker.worker_id))
    texts = [f"worker{'s' * (len(p) > 1)} {list_some(p)} on {host}" for host, p in by_host.items()]
    return list_some(texts)
