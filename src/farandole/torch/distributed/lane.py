"""Lane of one process group: runs its collectives one after the other, in the order in which the program begins them.

    lane = GroupLane(session, number, "world", engine)
    work = lane.run_call("all_reduce", lambda: engine.allreduce(array, how), [tensor], is_async=False)
    work.wait()

Synchronous collectives run on the calling thread, asynchronous ones on the lane's thread.
"""

# Threads. Any thread of the program begins collectives: the main thread, and threads of autograd under DDP. The lock
# ``_begin`` orders them: it is held while a synchronous collective runs, and while a collective is put into ``_queue``,
# so nothing is queued during a synchronous collective. This runs on the caller's thread only if ``_unfinished`` is 0:
# then the lane's thread is idle. It runs collectives without the lock, and decrements ``_unfinished`` under the lock.
#
# A signal handler that interrupts a collective on the program's thread would wait for ``_begin`` for ever, or begin a
# second collective inside the first: ``_inside`` detects this, and ``run_call`` raises.

from __future__ import annotations

import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
import torch.distributed as dist

import farandole
from farandole.engines.engine import Engine
from farandole.errors import MismatchError
from farandole.runtime.lanes.lane import interrupted
from farandole.torch.distributed.work import DoneWork, QueuedWork

if TYPE_CHECKING:
    from farandole.runtime.session.session import Session

CHECKS_CALLS = ("shm", "solo")
"""Engines that detect by themselves that members call different collectives."""

FAR = tuple(os.path.join(os.path.dirname(str(each.__file__)), "") for each in (torch, farandole))
"""Folders of the packages whose frames are not part of the user's program."""


class GroupCall(NamedTuple):
    """A collective: its description ``what``, which must be equal on all members, and the function ``do``."""

    what: str
    do: Callable[[], object]


@final
class GroupLane:
    """Lane of the group ``number``; ``engine`` is its own."""

    def __init__(self, session: Session, number: int, label: str, engine: Engine) -> None:
        self.engine, self.label, self.number = engine, label, number
        self._session = session
        self._collectives = session.planned.lane(number, label, f"{label}: ")
        self._is_checked = engine.name in CHECKS_CALLS
        self._begin = threading.RLock()
        self._idle = threading.Condition(self._begin)
        self._queue: queue.SimpleQueue[tuple[GroupCall, QueuedWork, str] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._unfinished, self._mismatches = 0, 0
        self._inside: int | None = None
        self._last: QueuedWork | None = None  # only while unfinished, because it holds tensors

    def run_call(self, call: GroupCall, tensors: Sequence[torch.Tensor], is_async: bool) -> dist.Work:
        """Run ``call`` after all collectives begun before; its results are ``tensors``."""
        if self._inside == threading.get_ident():
            raise interrupted(f"{self.label}: {call.what}", "another collective of the same group")
        with self._begin:
            if not is_async and not self._unfinished:
                self._inside = threading.get_ident()
                try:
                    self._perform(call, None)
                finally:
                    self._inside = None
                return DoneWork(tensors)
            self._last = work = QueuedWork(tensors)
            self._unfinished += 1
            self._queue.put((call, work, _place()))
            self._start()
        return work

    @property
    def count(self) -> int:
        """Number of collectives begun."""
        return self._collectives.sequence

    @property
    def last(self) -> dist.Work:
        """Work of the last collective begun; collectives end in order."""
        return self._last or DoneWork([])

    def drain(self) -> None:
        """Wait until all collectives begun so far are done."""
        with self._idle:
            self._idle.wait_for(lambda: not self._unfinished)

    def close(self) -> None:
        """End the lane's thread and its engine, and notify members that still use the lane."""
        if self._thread is not None:
            self._queue.put(None)
        self._session.planned.closed(self.number, self.label, self._collectives.sequence)
        self.engine.close()

    def _start(self) -> None:
        if self._thread is None:
            # A daemon, because its waits end with the session, which ends at the interpreter's exit.
            self._thread = threading.Thread(target=self._serve, name=f"torch.distributed {self.label}", daemon=True)
            self._thread.start()

    def _serve(self) -> None:
        while (item := self._queue.get()) is not None:
            call, work, place = item
            error: BaseException | None = None
            try:
                self._perform(call, place)
            except BaseException as raised:
                error = raised
            del item, call  # release the tensors
            with self._idle:
                self._unfinished -= 1
                self._last = self._last if self._unfinished else None
                self._idle.notify_all()
            work.finish(error)
            del work, error

    def _perform(self, call: GroupCall, place: str | None) -> None:
        try:
            with self._collectives.next(call.what, needs_all=True):
                if not self._is_checked:
                    self._compare(call.what)
                call.do()
        except MismatchError as error:
            raise self._explained(error, call.what, place) from None

    def _compare(self, what: str) -> None:
        said = self.engine.gather_small(what.encode()[-60:])
        if said.count(said[0]) < len(said):
            raise MismatchError(f"the members of {self.label} asked for different things")

    def _explained(self, error: MismatchError, what: str, place: str | None) -> MismatchError:
        """The error with every member's call and its place; collective, because all members raised in the same call."""
        self._mismatches += 1
        where = "".join(traceback.format_list(_own(traceback.extract_stack()))) if place is None else f"  {place}\n"
        key = f"{self.label} mismatch {self._mismatches}"
        said = self._session.planned.exchange(self.number, key, f"{what}\n{where[-4000:]}".encode())
        group = self.engine.group
        told = "".join(f"\n{group.name(i)} called {each.decode()}" for i, each in enumerate(said))
        return MismatchError(f"{error}{told}")


def _own(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    """Frames of the user's program: those above the frames of PyTorch and Farandole."""
    found = list(stack)
    while found and found[-1].filename.startswith(FAR):
        found.pop()
    return found


def _place() -> str:
    """Line of the user's program that begins a collective, for error texts."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(FAR):
        frame = frame.f_back
    if frame is None:
        return "in the backward pass"
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
