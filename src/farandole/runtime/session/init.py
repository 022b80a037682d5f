"""Session of this process, of which there is one at a time: ``init`` and ``shutdown``.

    init()
    current().topology.rank
    shutdown()

A process that is forked from a worker (those of a data loader) is none itself: it starts without a session, and
leaves the one of its parent alone.

Threads. ``init``, ``rejoin`` and ``shutdown`` may come from any thread, and hold ``_here.lock`` from beginning to end,
as two of them cannot take place at once. Signal handlers call them on top of the main thread, hence an ``RLock``; what
a handler cannot do there, as the frame below it is in the middle of it, ``_doing`` tells and ``require_rest`` refuses.
A handler that has to end such a wait withdraws (``withdraw``), and raises nothing on top of it.
Every operation reads ``_here.session`` without the lock, which may be held for minutes: it is one reference, set when
the session is complete, and taken away before that is closed, so that no new operation finds one that is ending.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

from farandole import events
from farandole.cluster.detect import detect
from farandole.errors import (
    AbortError,
    DivergenceError,
    MismatchError,
    NotInitializedError,
    UnsupportedError,
    UsageError,
)
from farandole.runtime.coordination import forked_children
from farandole.runtime.lanes.lane import interrupted
from farandole.runtime.lanes.reentry import Reentry
from farandole.runtime.lanes.thread_joins import join
from farandole.runtime.lanes.weak_objects import WeakObjects
from farandole.runtime.session import tracebacks
from farandole.runtime.session.cancelled_join import CancelledJoin
from farandole.runtime.session.process_sets import ProcessSet, ProcessSetLike, global_process_set, require_registered
from farandole.runtime.session.session import Session
from farandole.runtime.session.start import PreviousSession, start

__all__ = [
    "ProcessSet",
    "Session",
    "aside",
    "begin_anew",
    "current",
    "end_step",
    "finish",
    "finish_before_leaving",
    "forget_in_sessions",
    "global_process_set",
    "init",
    "is_initialized",
    "is_outside",
    "last_rank",
    "on_absence",
    "on_joined",
    "rejoin",
    "session_number",
    "settle",
    "settle_before_leaving",
    "shutdown",
    "takes_part",
    "withdraw",
]


LAST_WAIT_S = 10.0
"""How long the interpreter's end waits for a thread whose collective the end of the session has ended."""


def init(comm: object = None, process_sets: Sequence[ProcessSetLike] | str | None = None, **settings: Any) -> None:
    """Join the job that this process was started for, and return when all ranks have; alone, be a job of one.

    >>> init(process_sets=[[0, 2]], stall_warning_s=10)

    ``comm`` may list the ranks that take part; ``process_sets`` are made at once and must agree between ranks;
    ``settings`` are fields of ``Settings``. Does nothing if the process is in a job already. Raises ``StartError`` if
    the job does not form within ``start_timeout_s``, ``SettingsError`` or ``UsageError`` for what cannot be.
    """
    _require_main_interpreter()
    with _here.lock:
        _here.require_rest("init()")
        if _here.session is None:
            _here.asked = (comm, process_sets, settings)
            _here.join()


def _require_main_interpreter() -> None:
    """A subinterpreter cannot wait for the threads of a session when it ends, and takes the process down then."""
    for name in ("_interpreters", "_xxsubinterpreters"):  # of Python 3.13, and of those before
        with contextlib.suppress(ImportError):
            interpreters = importlib.import_module(name)
            if interpreters.get_current() != interpreters.get_main():
                raise UnsupportedError("init() was called in a subinterpreter: call it in the main interpreter")
            return


def rejoin(state: str = "", state_step: int = 0, withdrawn: bool = False) -> None:
    """Leave, and join again as ``init`` was last told to: the next generation of an elastic job.

    ``state`` says what this worker's state consists of, and ``state_step`` from which step the others could go on with
    it; -1: from none. Raises ``StartError`` if the state of the others consists of something else, and where this
    worker withdraws, or is ``withdrawn`` already: then it tells the others that it will not come.
    """
    with _here.lock:
        _here.require_rest("the next generation")
        _here.withdrawal = CancelledJoin(withdrawn)  # first: it also ends a wait that has not begun
        _here.leave()
        _here.join(state, state_step)


def withdraw() -> bool:
    """Have ``rejoin`` wait no longer, in a signal handler on top of it: it raises ``StartError`` then.

    False in a process that is in the middle of neither that nor ``shutdown``: the handler may raise an exception.
    """
    if _here.is_changing:
        _here.withdrawal.give()
    return _here.is_changing


def shutdown() -> None:
    """Leave the job. Does nothing if the process is in none."""
    _here.finish()
    _here.leave()


def begin_anew(error: BaseException | None = None) -> None:
    """Leave the job, and forget it: the next ``init`` joins another one, as a worker that is new there.

    With the ``error`` that the function of this job has ended with, the other ranks are told so.
    """
    if error is None:
        _here.finish()
    _here.leave(error)
    _here.forget_past()


def finish() -> None:
    """Wait for all that needs the other ranks and goes on, as ``shutdown`` does before it leaves."""
    _here.finish()


def finish_before_leaving(work: threading.Thread) -> None:
    """Have ``shutdown`` and the interpreter's end wait for a background thread that needs the other ranks for its work.

    That ends as every collective does: by its result, by an abort when another rank is lost, or at a deadline. A script
    that ends with an error leaves at once, which ends the thread's collective, too.
    """
    _here.unfinished.add(work)


def settle_before_leaving(work: Callable[[], None]) -> None:
    """Have ``shutdown`` and ``join`` call ``work``: it waits for what a framework computes and needs other ranks for.

    That ends as every collective does: by its result, by an abort when another rank has left, or at a deadline.
    """
    _here.settling.append(work)


def settle() -> None:
    """Wait for what frameworks still compute and need the other ranks for: see ``settle_before_leaving``."""
    for work in _here.settling:
        work()


def forget_in_sessions(forget: Callable[[], object]) -> None:
    """Have ``forget`` called whenever a session of this process begins that is not the first.

    It drops what belongs to the one before. Not for one in whose place another is ``aside``: the one before goes on
    after it.
    """
    _here.forgetting.append(forget)


def session_number() -> int:
    """Number of sessions that this process has begun, with the present one; without those beside one ``aside``."""
    return _here.sessions


def is_initialized() -> bool:
    """True between ``init`` and ``shutdown``."""
    return _here.session is not None


def is_outside() -> bool:
    """True in a worker that others do not train with yet: until it joins them, it has no state of the training's.

    Also if it leaves before that, as the last that it knows is a session of its own.
    """
    session = _here.session
    return _here.has_only_waited if session is None else session.provisional


def current(asked: str = "an operation of the job") -> Session:
    """The session; raises ``NotInitializedError``, which names what was ``asked``, if there is none."""
    if _here.bystanders and threading.get_ident() in _here.bystanders:
        raise UsageError(
            f"{asked} in a thread that was there before the task which now runs in this process: the task is a job of "
            "its own. Let the thread end first, or send the task to another engine"
        )
    session = _here.session or _here.revived()
    if session is None:
        raise NotInitializedError(asked)
    return session


def takes_part(process_set: ProcessSet, asked: str) -> bool:
    """True if this process is in ``process_set``; ``asked`` names the call in the errors.

    Raises ``NotInitializedError`` without a session, and ``UsageError`` for a set that is not registered in it: to take
    this process for none of its members would leave out a reduction that the others rely on.
    """
    if process_set.included():
        return True
    current(asked)  # in a notebook it may make one, whose sets this process is in
    require_registered(process_set, asked)
    return bool(process_set.included())


def on_absence(revive: Callable[[], object] | None) -> None:
    """Have operations that find no session call ``revive`` first, which may make one (by ``rejoin``) or raise."""
    _here.reviver = revive


def on_joined(tell: Callable[[Session], object]) -> None:
    """Have ``tell`` called with every session of this process that is made, before anything uses it."""
    _here.on_joined = tell


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Context without the session of this process, which is as it was afterwards; one that is made inside is left.

    Threads that are there already belong to that session, and would take the other one for it: they get an error.
    """
    with _here.lock:
        _here.require_rest("a task")
        kept = _here.session, _here.asked, _here.reviver, _here.on_joined, _here.rank
        had_only_waited = _here.has_only_waited
        before, was_aside, me = _here.bystanders, _here.is_aside, threading.get_ident()
        # First, and last below: none of them may see the other session in between.
        _here.bystanders = before | {each.ident for each in threading.enumerate() if each.ident not in (None, me)}
        _here.session, _here.reviver, _here.on_joined, _here.is_aside = None, None, _nothing, True
        events.end_shortcuts()  # of that session: graphs may call with the names that it had
    try:
        yield
    finally:
        with _here.lock:
            _here.leave(releasing=False)
            _here.session, _here.asked, _here.reviver, _here.on_joined, _here.rank = kept
            _here.has_only_waited = had_only_waited
            if _here.session is not None:
                _here.session.restore_process_sets()
            _here.bystanders, _here.is_aside = before, was_aside


def is_aside() -> bool:
    """True in a task of ``aside``, which is a job of its own: what this process makes there, other ranks need not."""
    return _here.is_aside


def end_step(process_set: ProcessSet, step: int | None = None) -> None:
    """End a step of an optimizer of ``process_set``, the ``step``-th where the job counts them: ``Session.stepped``."""
    session = _here.session
    if session is not None:  # else ``shutdown`` came between the reduction and its use
        session.stepped(step, by_all=len(process_set.ranks) == len(session.topology.hosts))


def last_rank() -> int | None:
    """The rank of this process in the last generation that it took part in; ``None`` before the first."""
    session = _here.session
    return _here.rank if session is None or session.provisional else session.topology.rank


def _leave_at_exit() -> None:
    """Leave in good order, unless the script has raised: then the others are told so."""
    error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    if error is None:
        _here.finish()
        _here.tell_unseen_end()
    _here.leave(error)
    _here.await_daemons()


def _nothing(_: object) -> None:
    pass


def _first_line(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].partition("\n")[0]


@final
class _ProcessState:
    """State of this process: its session, and what the next one needs to know of it. ``lock`` guards it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.session: Session | None = None
        self.asked: tuple[object, Sequence[ProcessSetLike] | str | None, dict[str, Any]] = (None, None, {})
        """The arguments of the last ``init``, for ``rejoin``."""
        self.rank: int | None = None
        """The rank in the last session that was shared with others; ``None`` before that."""
        self.has_only_waited = False
        """True if the last session was one in which this process has waited for the others."""
        self.unfinished: WeakObjects[threading.Thread] = WeakObjects()
        self.bystanders: frozenset[int | None] = frozenset()
        """Threads of the session that is set aside (``aside``)."""
        self.reviver: Callable[[], object] | None = None
        self.on_joined: Callable[[Session], object] = _nothing
        self.is_aside = False
        """True while a session is set aside: one that begins meanwhile is none of those that go on after each other."""
        self.sessions = 0
        self.forgetting: list[Callable[[], object]] = []
        self._doing = ""  # with the lock
        self.withdrawal = CancelledJoin()
        self.settling: list[Callable[[], None]] = []
        self._step_s: float | None = None  # the longest step of the last session; of none, before the first
        self._inherited: Session | None = None
        self._watching = False

    def require_rest(self, asked: str) -> None:
        """Raise ``UsageError`` in a signal handler that has interrupted ``init`` or ``shutdown``. With the lock."""
        if self._doing:
            raise interrupted(asked, self._doing)

    @property
    def is_changing(self) -> bool:
        """True in the middle of ``init`` or ``shutdown``, where an exception of a handler might leave half of it."""
        return bool(self._doing)

    @contextlib.contextmanager
    def _busy(self, doing: str) -> Iterator[None]:
        before, self._doing = self._doing, doing  # put back, as ``shutdown`` may be a handler's, on top of ``init``
        try:
            yield
        finally:
            self._doing = before

    def join(self, state: str = "", state_step: int = 0) -> None:
        """Make a session as ``init`` was told to. A process that has had one before is ready to go on with the others.

        In an elastic job, a worker that is lost while a generation forms only means that another one does.
        """
        tracebacks.install()  # first: ``init`` may be what raises
        with self._busy("init()"):
            while self.session is None:
                try:
                    self.session = start(*self.asked, PreviousSession(self._step_s, state, state_step), self.withdrawal)
                except BaseException as error:  # Ctrl-C, too: children must be free to take the place of this process
                    forked_children.release()
                    if not isinstance(error, AbortError) or not detect().is_elastic:
                        raise
                    self._step_s = self._step_s or 0.0
                else:
                    self.session.is_aside = self.is_aside
                    self.on_joined(self.session)
                    if not self.is_aside:
                        self.sessions += 1
                        for forget in self.forgetting if self.sessions > 1 else ():
                            forget()
        self._watch()

    def revived(self) -> Session | None:
        """The session that ``reviver`` makes, if there is one and it does."""
        if self.reviver is None:
            return None
        with self.lock:
            if self.session is None and not self._doing:
                self.reviver()
            return self.session

    def _watch(self) -> None:
        """From the first session on: leave the job at exit, forget all in forked children."""
        if not self._watching:
            self._watching = True
            atexit.register(_leave_at_exit)
            os.register_at_fork(after_in_child=self._forget)

    def finish(self) -> None:
        """Wait for all that needs the other ranks and goes on; not in a handler on top of what that waits for."""
        session = self.session  # without the lock: these threads may need the session for long, and others the lock
        if session is None or Reentry.anywhere():
            return
        if not session.broken:
            for work in self.settling:  # first, as programs may begin such threads
                work()  # in this thread, as JAX keeps account of its programs by thread
        for thread in self.unfinished.living():
            if thread.is_alive():
                join(thread)

    def tell_unseen_end(self) -> None:
        """Warn where the job of a script that ends in order has failed: nobody may have looked at the last results.

        Frameworks compute in the background, and tell of an error where a result is used. Keras drops such errors.
        """
        session = self.session
        if session is not None and session.end_reason and not session.has_left and not detect().is_elastic:
            events.logger.warning(
                "rank %d: the script ends without a traceback, but its last collectives have failed: %s",
                session.topology.rank, session.end_reason,
            )  # fmt: skip

    def await_daemons(self) -> None:
        """Wait for the threads of ``finish_before_leaving`` when the session is closed, which ends what they wait for.

        One that came back from a collective when the interpreter is gone would abort the process.
        """
        for thread in self.unfinished.living():
            if thread.is_alive():
                thread.join(LAST_WAIT_S)

    def leave(self, error: BaseException | None = None, *, releasing: bool = True) -> None:
        """Close the session, if there is one; with an error its end is not in order, and the process ends with it."""
        with self.lock, self._busy("shutdown()"):
            session, self.session = self.session, None  # before it is closed, also for a handler on top of this
            if session is not None:
                self._step_s = session.pace.step_s
                self.rank = self.rank if session.provisional else session.topology.rank
                self.has_only_waited = session.provisional
                # An elastic job goes on without this worker, so the others must be told of a lost one, and no more.
                if isinstance(error, MismatchError | DivergenceError) and not detect().is_elastic:
                    session.end_with(error)
                elif error is not None:
                    session.abort(f"its script raised {_first_line(error)}", ending=True)
                session.close()
            if releasing:
                forked_children.release()

    def forget_past(self) -> None:
        """Forget what ``rejoin`` would tell the others of the last session."""
        with self.lock:
            self.asked, self.rank, self._step_s = (None, None, {}), None, None
            self.has_only_waited = False

    def _forget(self) -> None:
        # In the child, in its only thread.
        self.lock, self._doing = threading.RLock(), ""  # the parent's may be held by a thread that is not here
        self.withdrawal = CancelledJoin()
        forked_children.release()
        Reentry.forsake_all()
        self._inherited = (
            self.session or self._inherited
        )  # kept: its sockets are the parent's, nothing may finalise them
        self.session = None


_here = _ProcessState()
