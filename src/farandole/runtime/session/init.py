"""Session of this process (at most one at a time): ``init`` and ``shutdown``.

    init()
    current().topology.rank
    shutdown()

A process forked from a worker (for example by a data loader) is not a worker: it starts without a session, and does not
touch the session of its parent.

Threads. Any thread may call ``init``, ``rejoin`` and ``shutdown``. They hold ``_here.lock`` from beginning to end,
because two of them cannot run at once. Signal handlers call them on top of the main thread, hence an ``RLock``; a call
that a handler cannot make because it interrupted another one is detected by ``_doing`` and refused by ``require_rest``.
A handler that must end such a wait calls ``withdraw``, and raises no exception. Every operation reads ``_here.session``
without the lock, which may be held for minutes: it is one reference, set when the session is complete, and cleared
before the session is closed, so that no new operation finds a session that is ending.
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
from farandole.runtime.session.link import CancelledJoin
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
"""Time that the interpreter waits at exit for a thread whose collective was ended by the end of the session."""


def init(comm: object = None, process_sets: Sequence[ProcessSetLike] | str | None = None, **settings: Any) -> None:
    """Join the job that this process was started for; return when all ranks have joined. Alone, be a job of one rank.

    >>> init(process_sets=[[0, 2]], stall_warning_s=10)

    ``comm`` may list the ranks that take part; ``process_sets`` are registered at once, the same on all ranks;
    ``settings`` are fields of ``Settings``. Does nothing if the process is in a job. Raises ``StartError`` if the job
    does not form within ``start_timeout_s``, ``SettingsError`` or ``UsageError`` for invalid arguments.
    """
    _require_main_interpreter()
    with _here.lock:
        _here.require_rest("init()")
        if _here.session is None:
            _here.asked = (comm, process_sets, settings)
            _here.join()


def _require_main_interpreter() -> None:
    """Refuse a subinterpreter: it cannot wait for a session's threads when it ends, and then crashes the process."""
    for name in ("_interpreters", "_xxsubinterpreters"):  # Python 3.13; earlier versions
        with contextlib.suppress(ImportError):
            interpreters = importlib.import_module(name)
            if interpreters.get_current() != interpreters.get_main():
                raise UnsupportedError("init() was called in a subinterpreter: call it in the main interpreter")
            return


def rejoin(state: str = "", state_step: int = 0, withdrawn: bool = False) -> None:
    """Leave, and join the next generation of an elastic job with the arguments of the last ``init``.

    ``state`` describes the contents of this worker's state; ``state_step`` is the step from which the others could
    continue with it (-1: none). Raises ``StartError`` if the state of the others has other contents, or if this worker
    withdraws, or is ``withdrawn`` already: then the controller learns that this worker will not join.
    """
    with _here.lock:
        _here.require_rest("the next generation")
        _here.withdrawal = CancelledJoin(withdrawn)  # first: it also applies to a wait that has not begun
        _here.close_session()
        _here.join(state, state_step)


def withdraw() -> bool:
    """Make ``rejoin`` raise ``StartError`` instead of waiting; for a signal handler that interrupted it.

    Returns False outside of ``init``, ``rejoin`` and ``shutdown``: there the handler may raise an exception.
    """
    if _here.is_changing:
        _here.withdrawal.end_wait()
    return _here.is_changing


def shutdown() -> None:
    """Leave the job. Does nothing if the process is in no job."""
    _here.finish()
    _here.close_session()


def begin_anew(error: BaseException | None = None) -> None:
    """Leave the job and forget it: the next ``init`` joins another job as a new worker.

    ``error``: the exception that ended the function of this job; the other ranks receive it as the reason.
    """
    if error is None:
        _here.finish()
    _here.close_session(error)
    _here.forget_past()


def finish() -> None:
    """Wait for background work that needs the other ranks, as ``shutdown`` does before it leaves."""
    _here.finish()


def finish_before_leaving(work: threading.Thread) -> None:
    """Make ``shutdown`` and the interpreter's exit wait for a background thread that needs the other ranks.

    The wait ends as every collective does: by its result, by an abort when another rank is lost, or at a deadline. A
    script that ends with an error leaves at once, which also ends the thread's collective.
    """
    _here.unfinished.add(work)


def settle_before_leaving(work: Callable[[], None]) -> None:
    """Make ``shutdown`` and ``join`` call ``work``, which waits for computations of a framework that need other ranks.

    The wait ends as every collective does: by its result, by an abort when another rank has left, or at a deadline.
    """
    _here.settling.append(work)


def settle() -> None:
    """Wait for computations of frameworks that need the other ranks: see ``settle_before_leaving``."""
    for work in _here.settling:
        work()


def forget_in_sessions(forget: Callable[[], object]) -> None:
    """Call ``forget`` at the start of every session of this process but the first.

    It drops cached state of the previous session. Sessions inside ``aside`` do not count: the previous session
    continues after them.
    """
    _here.forgetting.append(forget)


def session_number() -> int:
    """Number of sessions that this process has begun, including the current one, but not sessions inside ``aside``."""
    return _here.sessions


def is_initialized() -> bool:
    """True between ``init`` and ``shutdown``."""
    return _here.session is not None


def is_outside() -> bool:
    """True in a worker that has not been admitted to the training yet: until then it has no state of the training.

    True also after it leaves without having been admitted: its last session was one of its own.
    """
    session = _here.session
    return _here.has_only_waited if session is None else session.provisional


def current(asked: str = "an operation of the job") -> Session:
    """The session; raises ``NotInitializedError``, which names the call ``asked``, if there is none."""
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

    Raises ``NotInitializedError`` without a session, and ``UsageError`` for a set that is not registered in it:
    returning False there would skip a reduction that the other members wait for.
    """
    if process_set.included():
        return True
    current(asked)  # in a notebook it may start a session, which registers sets
    require_registered(process_set, asked)
    return bool(process_set.included())


def on_absence(revive: Callable[[], object] | None) -> None:
    """Make operations without a session call ``revive`` first, which may start one (by ``rejoin``) or raise."""
    _here.reviver = revive


def on_joined(tell: Callable[[Session], object]) -> None:
    """Call ``tell`` with every new session of this process before it is used."""
    _here.on_joined = tell


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Context in which the session of this process is set aside; a session started inside is closed at its end.

    Threads that exist already belong to the outer session; they get an error, or they would use the inner one.
    """
    with _here.lock:
        _here.require_rest("a task")
        kept = _here.session, _here.asked, _here.reviver, _here.on_joined, _here.rank
        had_only_waited = _here.has_only_waited
        before, was_aside, me = _here.bystanders, _here.is_aside, threading.get_ident()
        # Set first, and reset last below: no such thread may see the inner session.
        _here.bystanders = before | {each.ident for each in threading.enumerate() if each.ident not in (None, me)}
        _here.session, _here.reviver, _here.on_joined, _here.is_aside = None, None, _nothing, True
        events.end_shortcuts()  # of the outer session: graphs may use its names
    try:
        yield
    finally:
        with _here.lock:
            _here.close_session(releasing=False)
            _here.session, _here.asked, _here.reviver, _here.on_joined, _here.rank = kept
            _here.has_only_waited = had_only_waited
            if _here.session is not None:
                _here.session.sets.restore()
            _here.bystanders, _here.is_aside = before, was_aside


def is_aside() -> bool:
    """True inside ``aside``, a job of its own: other ranks of the outer job need not make what this process makes."""
    return _here.is_aside


def end_step(process_set: ProcessSet, step: int | None = None) -> None:
    """End a step of an optimizer of ``process_set``, number ``step`` if the job counts steps: ``Session.stepped``."""
    session = _here.session
    if session is not None:  # else ``shutdown`` ran between the reduction and its use
        session.stepped(step, by_all=len(process_set.ranks) == len(session.topology.hosts))


def last_rank() -> int | None:
    """The rank of this process in the last generation that it took part in; ``None`` before the first."""
    session = _here.session
    return _here.rank if session is None or session.provisional else session.topology.rank


def _leave_at_exit() -> None:
    """Leave in order at exit; if the script raised, abort the generation with that error."""
    error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    if error is None:
        _here.finish()
        _here.tell_unseen_end()
    _here.close_session(error)
    _here.await_daemons()


def _nothing(_: object) -> None:
    pass


def _first_line(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].partition("\n")[0]


@final
class _ProcessState:
    """State of this process: its session, and what the next session needs from it. ``lock`` guards it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.session: Session | None = None
        self.asked: tuple[object, Sequence[ProcessSetLike] | str | None, dict[str, Any]] = (None, None, {})
        """The arguments of the last ``init``, for ``rejoin``."""
        self.rank: int | None = None
        """The rank in the last session shared with other ranks; ``None`` before the first."""
        self.has_only_waited = False
        """True if the last session was provisional: this process only waited for admission."""
        self.unfinished: WeakObjects[threading.Thread] = WeakObjects()
        self.bystanders: frozenset[int | None] = frozenset()
        """Threads of the session that is set aside (``aside``)."""
        self.reviver: Callable[[], object] | None = None
        self.on_joined: Callable[[Session], object] = _nothing
        self.is_aside = False
        """True inside ``aside``: sessions started there are not counted in ``sessions``."""
        self.sessions = 0
        self.forgetting: list[Callable[[], object]] = []
        self._doing = ""  # with the lock
        self.withdrawal = CancelledJoin()
        self.settling: list[Callable[[], None]] = []
        self._step_s: float | None = None  # longest step of the last session; None before the first
        self._inherited: Session | None = None
        self._watching = False

    def require_rest(self, asked: str) -> None:
        """Raise ``UsageError`` in a signal handler that interrupted ``init`` or ``shutdown``. Needs the lock."""
        if self._doing:
            raise interrupted(asked, self._doing)

    @property
    def is_changing(self) -> bool:
        """True inside ``init`` or ``shutdown``, where an exception of a signal handler could leave a partial state."""
        return bool(self._doing)

    @contextlib.contextmanager
    def _busy(self, doing: str) -> Iterator[None]:
        before, self._doing = self._doing, doing  # restored: a handler may call ``shutdown`` on top of ``init``
        try:
            yield
        finally:
            self._doing = before

    def join(self, state: str = "", state_step: int = 0) -> None:
        """Start a session with the arguments of ``init``. A process that had one before is ready to train at once.

        If a worker of an elastic job is lost while a generation forms, another generation forms.
        """
        tracebacks.install()  # first: ``init`` itself may raise
        with self._busy("init()"):
            while self.session is None:
                try:
                    self.session = start(*self.asked, PreviousSession(self._step_s, state, state_step), self.withdrawal)
                except BaseException as error:  # also Ctrl-C: children may then join in this process's place
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
        """The session that ``reviver`` starts, or ``None``."""
        if self.reviver is None:
            return None
        with self.lock:
            if self.session is None and not self._doing:
                self.reviver()
            return self.session

    def _watch(self) -> None:
        """Register handlers, at the first session: leave the job at exit, drop all state in forked children."""
        if not self._watching:
            self._watching = True
            atexit.register(_leave_at_exit)
            os.register_at_fork(after_in_child=self._forget)

    def finish(self) -> None:
        """Wait for background work that needs the other ranks; not in a handler that interrupted a collective."""
        session = self.session  # no lock: these threads may run for long, and others need the lock
        if session is None or Reentry.anywhere():
            return
        if not session.broken:
            for work in self.settling:  # first: programs may start such threads
                work()  # in this thread: JAX tracks programs per thread
        for thread in self.unfinished.living():
            if thread.is_alive():
                join(thread)

    def tell_unseen_end(self) -> None:
        """Warn if the job failed although the script ends in order: it may not have used the last results.

        Frameworks compute in the background, and raise an error where a result is used. Keras drops such errors.
        """
        session = self.session
        if session is not None and session.end.reason and not session.end.has_left and not detect().is_elastic:
            events.logger.warning(
                "rank %d: the script ends without a traceback, but its last collectives have failed: %s",
                session.topology.rank, session.end.reason,
            )  # fmt: skip

    def await_daemons(self) -> None:
        """Wait for the threads of ``finish_before_leaving`` after the session is closed, which ends their collectives.

        A thread that returned from a collective after the interpreter has exited would abort the process.
        """
        for thread in self.unfinished.living():
            if thread.is_alive():
                thread.join(LAST_WAIT_S)

    def close_session(self, error: BaseException | None = None, *, releasing: bool = True) -> None:
        """Close the session, if there is one; with ``error`` abort it, because the process exits with that error."""
        with self.lock, self._busy("shutdown()"):
            session, self.session = self.session, None  # before closing, also for a signal handler here
            if session is not None:
                self._step_s = session.pace.step_s
                self.rank = self.rank if session.provisional else session.topology.rank
                self.has_only_waited = session.provisional
                # An elastic job goes on without this worker, so it sends only ``abort``, as for a lost worker.
                if isinstance(error, MismatchError | DivergenceError) and not detect().is_elastic:
                    session.end.raise_everywhere(error)
                elif error is not None:
                    session.end.abort(f"its script raised {_first_line(error)}", ending=True)
                session.close()
            if releasing:
                forked_children.release()

    def forget_past(self) -> None:
        """Forget the state of the last session that ``rejoin`` would report."""
        with self.lock:
            self.asked, self.rank, self._step_s = (None, None, {}), None, None
            self.has_only_waited = False

    def _forget(self) -> None:
        # Runs in the forked child, in its only thread.
        self.lock, self._doing = threading.RLock(), ""  # a thread of the parent may hold the old lock
        self.withdrawal = CancelledJoin()
        forked_children.release()
        Reentry.forsake_all()
        self._inherited = (
            self.session or self._inherited
        )  # kept: its sockets belong to the parent and must not be finalised
        self.session = None


_here = _ProcessState()
