"""Lanes of one reducer, by purpose, and its hooks: released when its optimizer is freed.

lanes = ReducerLanes(unhook)
weakref.finalize(reducer, lanes.release)
lane = lanes.find(session, ".lag") or lanes.open(session, ".lag", process_set, "optimizer.0")
"""

# Threads. One thread at a time opens lanes: the script's, or the one that serves during ``join()``. ``abort`` runs on
# the script's thread while that one serves; ``release`` on any thread, also in the middle of a garbage collection.

from __future__ import annotations

from collections.abc import Callable
from typing import final

from farandole.runtime.collectives.planned import PlannedLane
from farandole.runtime.session.init import Session
from farandole.runtime.session.process_sets import ProcessSet


@final
class ReducerLanes:
    """Lanes of a reducer. ``weakref.finalize`` keeps this object alive, so it must not refer to the reducer."""

    def __init__(self, unhook: Callable[[], object]) -> None:
        self.unhook = unhook
        """Remove the hooks."""
        self.wait: Callable[[], object] = lambda: None
        """Wait until no background thread uses the lanes."""
        self._lanes: dict[str, PlannedLane] = {}

    def find(self, session: Session, purpose: str) -> PlannedLane | None:
        """The lane of this session, if it is open."""
        lane = self._lanes.get(purpose)
        return lane if lane is not None and lane.session is session else None

    def open(self, session: Session, purpose: str, process_set: ProcessSet, label: str) -> PlannedLane:
        """Open a lane, collectively."""
        lane = self._lanes[purpose] = PlannedLane(session, process_set, label + purpose)
        return lane

    def are_open(self, session: Session) -> bool:
        """True if there is a lane of this session."""
        return any(lane.session is session for lane in self._lanes.values())

    def abort(self, reason: str, ended: Callable[[], object]) -> None:
        """Abort all lanes for ``reason``, then close them; ``ended`` waits for the thread that uses them.

        Without a lane it does not wait: the caller ends that thread, which waits in a pairing, in a later round.
        """
        lanes, self._lanes = self._lanes, {}
        for lane in lanes.values():
            lane.abort(reason)
        if lanes:
            ended()
        for lane in lanes.values():  # after the thread has ended: a lane in use must not be closed
            lane.close()

    def release(self) -> None:
        """Remove the hooks, wait until no thread of a lag is in a lane, close the lanes; called once.

        Runs on the thread that drops the last reference to the reducer or collects its reference cycle.
        """
        self.unhook()  # first, so that no pass begins to use a lane that is about to close
        self.wait()
        for lane in self._lanes.values():
            lane.close()
