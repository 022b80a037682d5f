"""The one session of this process: ``init`` and ``shutdown``.

    init()
    current().topology.rank
    shutdown()

A process that is forked from a worker (those of a data loader) is none itself: it starts without a session, and
leaves the one of its parent alone.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import Any, final

from farandole.cluster.detect import detect
from farandole.errors import AbortError, NotInitializedError
from farandole.runtime.session.member import Session
from farandole.runtime.session.process_sets import ProcessSet, ProcessSetLike, global_process_set
from farandole.runtime.session.start import Past, start

__all__ = [
    "ProcessSet",
    "Session",
    "current",
    "global_process_set",
    "init",
    "is_initialized",
    "last_rank",
    "rejoin",
    "shutdown",
]


def init(comm: object = None, process_sets: Sequence[ProcessSetLike] | str | None = None, **settings: Any) -> None:
    """Join the job that this process was started for, and return when all ranks have; alone, be a job of one.

    >>> init(process_sets=[[0, 2]], stall_warning_s=10)

    ``comm`` may list the ranks that take part; ``process_sets`` are made at once and must agree between ranks;
    ``settings`` are fields of ``Settings``. Does nothing if the process is in a job already. Raises ``StartError`` if
    the job does not form within ``start_timeout_s``, ``SettingsError`` or ``UsageError`` for what cannot be.
    """
    with _here.lock:
        if _here.session is None:
            _here.asked = (comm, process_sets, settings)
            _here.join()


def rejoin(state: str = "", state_step: int = 0) -> None:
    """Leave, and join again as ``init`` was last told to: the next generation of an elastic job.

    ``state`` says what this worker's state consists of, and ``state_step`` from which step the others could go on with
    it; -1: from none. Raises ``StartError`` if the state of the others consists of something else.
    """
    with _here.lock:
        _here.leave()
        _here.join(state, state_step)


def shutdown() -> None:
    """Leave the job. Does nothing if the process is in none."""
    _here.leave()


def is_initialized() -> bool:
    """True between ``init`` and ``shutdown``."""
    return _here.session is not None


def current(asked: str = "an operation of the job") -> Session:
    """The session; raises ``NotInitializedError``, which names what was ``asked``, if there is none."""
    session = _here.session
    if session is None:
        raise NotInitializedError(asked)
    return session


def last_rank() -> int | None:
    """The rank of this process in the last generation that it took part in; ``None`` before the first."""
    session = _here.session
    return _here.rank if session is None or session.provisional else session.topology.rank


def _leave_at_exit() -> None:
    """Leave in good order, unless the script has raised: then the others are told so."""
    error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    _here.leave("" if error is None else f"its script raised {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].partition("\n")[0]


@final
class _Here:
    """What this process has."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.session: Session | None = None
        self.asked: tuple[object, Sequence[ProcessSetLike] | str | None, dict[str, Any]] = (None, None, {})
        """What ``init`` was last told."""
        self.rank: int | None = None
        """What it was in the last session that was shared with others."""
        self._step_s: float | None = None  # the longest step of the last session; of none, before the first
        self._inherited: Session | None = None
        self._watching = False

    def join(self, state: str = "", state_step: int = 0) -> None:
        """Make a session of what was asked. A process that has had one before is ready to go on with the others.

        In an elastic job, a worker that is lost while a generation forms only means that another one does.
        """
        while self.session is None:
            try:
                self.session = start(*self.asked, Past(self._step_s, state, state_step))
            except AbortError:
                if not detect().is_elastic:
                    raise
                self._step_s = self._step_s or 0.0
        self._watch()

    def _watch(self) -> None:
        """From the first session on: leave the job at the interpreter's exit, and forget it in forked children."""
        if not self._watching:
            self._watching = True
            atexit.register(_leave_at_exit)
            os.register_at_fork(after_in_child=self._forget)

    def leave(self, because: str = "") -> None:
        """Close the session, if there is one; with a reason, its end is not in order, and that of the process."""
        with self.lock:
            session, self.session = self.session, None
            if session is not None:
                self._step_s = session.pace.step_s
                self.rank = self.rank if session.provisional else session.topology.rank
                if because:
                    session.abort(because, ending=True)
                session.close()

    def _forget(self) -> None:
        self.lock = threading.RLock()  # the parent's may be held by a thread that is not here
        self._inherited = (
            self.session or self._inherited
        )  # kept: its sockets are the parent's, nothing may finalise them
        self.session = None


_here = _Here()
