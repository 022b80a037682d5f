"""Inherited generation: formed by a previous controller, which is lost; its members go on training.

    inherited = InheritedGeneration(router.send, formation, time.monotonic, generation=7, worker_ids=(0, 1, 4))
    inherited.takes(b"7f3ac", ControllerLost(7, worker_id=0))  # True: it is told to reconnect at a commit
    inherited.end("worker 4 on b was killed by SIGKILL")                                        # end it for all

The negotiation state of the previous controller is lost, and is not rebuilt: planned collectives need no controller and
go on until the members end the generation together, at their next commit. A member that needs the controller ends the
generation for all at once, which costs the interrupted step. A hang of all members is still detected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from farandole.control.exits import GenerationEnded
from farandole.control.messages import Abort, ChangeDue, ControllerLost, Hello, Leave, Progress, TimelineSet, Withdraw
from farandole.control.watch_messages import Acted, CellOver, Metrics, Prepared
from farandole.runtime.coordination.downlink import CONTROL, Send
from farandole.runtime.coordination.formation import Formation
from farandole.runtime.coordination.stall import Limits, StallInspector, StallVerdict

REASON = "the controller was replaced"

UNANSWERED = (TimelineSet, Metrics, Prepared, Acted, CellOver)
"""Messages of ranks that need no reply."""

NO_LIMITS = Limits(0.0, 0.0)
"""No limits: without a generation no rank can hang."""


@final
class InheritedGeneration:
    """State of a generation that a new controller has found; ``worker_ids``: ids of the members, by rank.

    After that controller has formed a generation itself, late members of this one are refused here. ``over``: why the
    generation has already ended, or "".
    """

    def __init__(
        self,
        send: Send,
        formation: Formation,
        clock: Callable[[], float],
        generation: int = 0,
        worker_ids: Sequence[int] = (),
        over: str = "",
        limits: Limits = NO_LIMITS,
    ) -> None:
        self._send, self._formation, self._clock = send, formation, clock
        self._generation, self._worker_ids = generation, worker_ids
        self._unheard = set(worker_ids)
        self._over = Abort(generation, over) if over else None
        self._members: dict[bytes, int] = {}
        """``worker_id`` of each member that sent ``ControllerLost``, by the common part of its socket identities."""
        self._stall = StallInspector(limits, [""] * len(worker_ids))  # hosts are unknown here, and not printed
        self._stall.begin(clock())

    def takes(self, identity: bytes, message: Any) -> bool:
        """Handle a message; False if the controller must handle it (too)."""
        if isinstance(message, Hello | Withdraw):
            if message.worker_id in self._unheard:  # it left, or was never in; the others may wait for it
                self.end(f"worker {message.worker_id} has left it while no controller was there")
            return False
        if isinstance(message, ControllerLost):
            self._answer(identity, message)
            return True
        if not self._generation or getattr(message, "generation", None) != self._generation:
            return False
        if isinstance(message, Leave):
            self._handle_leave(message)
        elif isinstance(message, Progress):
            self._handle_progress(identity[:-1], message)
        elif not isinstance(message, UNANSWERED):
            self.end(f"{REASON}, and a {type(message).__name__} was for the one before")
        return True

    @property
    def deadline_s(self) -> float | None:
        """Time at which ``tick`` has something to do."""
        return self._stall.deadline_s if self._generation and self._over is None else None

    def tick(self, now: float) -> None:
        """Check, if due, whether all members hang."""
        if self.deadline_s is not None and self.deadline_s <= now:
            verdict = self._stall.look(now, (), lambda _: "")
            if isinstance(verdict, StallVerdict):
                self._formation.stalled(self._worker_ids, verdict.reason)

    def end(self, reason: str) -> None:
        """End the generation for all its members now."""
        if self._generation and self._over is None:
            self._over = Abort(self._generation, reason)
            self._formation.generation_ended(GenerationEnded(self._generation, reason))
            for uid in self._members:
                self._send(uid + CONTROL, self._over)

    def replace(self) -> None:
        """Forget the members, because this controller has formed a generation itself."""
        self._generation, self._unheard, self._members = 0, set(), {}

    def _handle_leave(self, message: Leave) -> None:
        self._unheard.discard(message.worker_id)
        if message.reason:
            self.end(message.reason)
        if message.ending or not message.reason:
            self._formation.left(message.worker_id, message.ending, message.told)

    def _handle_progress(self, uid: bytes, progress: Progress) -> None:
        worker_id = self._members.get(uid)
        if worker_id is not None and worker_id in self._worker_ids:
            self._stall.answered(self._worker_ids.index(worker_id), progress, self._clock())
            if self._over is not None:  # it has not had time to join another one yet
                self._formation.answered(worker_id)

    def _answer(self, identity: bytes, message: ControllerLost) -> None:
        uid = identity[:-1]
        identity = uid + CONTROL  # from whichever of the worker's sockets it came
        if message.generation != self._generation:
            self._send(identity, Abort(message.generation, f"{REASON}, and the others have begun another generation"))
            return
        self._members[uid] = message.worker_id
        self._unheard.discard(message.worker_id)
        if message.wait:
            self.end(f"{REASON} while worker {message.worker_id} waited for it")
        self._send(identity, self._over or ChangeDue(self._generation, REASON))
