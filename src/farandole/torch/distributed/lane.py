"""Lane of one process group: its collectives, one after the other in the order in which the program begins them.

    lane = GroupLane(session, number, "world", engine)
    work = lane.run("all_reduce", lambda: engine.allreduce(array, how), [tensor], is_async=False)
    work.wait()

What the program waits for at once is done in its own thread; the rest in a thread of the lane.
"""

# Threads. Any thread of the program begins collectives: the main one, and those of autograd, under DDP. ``_begin``
# orders them: it is held while one is done in the caller's thread, and while one is put into ``_queue``. So nothing is
# put there while the former goes on, and that begins only where ``_unfinished`` is 0, as the lane's thread is idle
# then: it counts down under the same lock, after each collective, which it does without the lock.
#
# A signal handler that comes on top of a collective in the program's thread would wait for ``_begin`` for ever, or
# begin another collective in the middle of one: it is told so (``_inside``).

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
"""Engines that notice by themselves that members do not call the same collective."""

FAR = tuple(os.path.join(os.path.dirname(str(each.__file__)), "") for each in (torch, farandole))
"""Folders of the packages whose frames are not where the program has begun a collective."""


class GroupCall(NamedTuple):
    """A collective: ``what`` all members must say of it, and what does it."""

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
        self._last: QueuedWork | None = None  # of what is unfinished: it holds tensors

    def run(self, call: GroupCall, tensors: Sequence[torch.Tensor], is_async: bool) -> dist.Work:
        """Do ``call`` after all that was begun before, whose results are ``tensors``."""
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
        """The collective that was begun last; each ends after those before it."""
        return self._last or DoneWork([])

    def drain(self) -> None:
        """Wait until all that was begun is done."""
        with self._idle:
            self._idle.wait_for(lambda: not self._unfinished)

    def close(self) -> None:
        """End the lane's thread and its engine, and tell members that go on."""
        if self._thread is not None:
            self._queue.put(None)
        self._session.planned.closed(self.number, self.label, self._collectives.sequence)
        self.engine.close()

    def _start(self) -> None:
        if self._thread is None:
            # A daemon: what it waits for ends with the session, which the interpreter's end ends.
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
            del item, call  # the tensors are the program's again
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
        """The error with what every member has called, and where: all members have raised it in the same collective."""
        self._mismatches += 1
        where = "".join(traceback.format_list(_own(traceback.extract_stack()))) if place is None else f"  {place}\n"
        key = f"{self.label} mismatch {self._mismatches}"
        said = self._session.planned.exchange(self.number, key, f"{what}\n{where[-4000:]}".encode())
        group = self.engine.group
        told = "".join(f"\n{group.name(i)} called {each.decode()}" for i, each in enumerate(said))
        return MismatchError(f"{error}{told}")


def _own(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    """Frames of the program: those above PyTorch's and ours."""
    found = list(stack)
    while found and found[-1].filename.startswith(FAR):
        found.pop()
    return found


def _place() -> str:
    """Line of the program that begins a collective, as errors say it later."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(FAR):
        frame = frame.f_back
    if frame is None:
        return "in the backward pass"
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
