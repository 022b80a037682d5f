"""Guard of an engine: hooks that make its cells those of a rank.

    install()                   # in the engine, once; then the hooks of IPython call it
    take_seat(seat)

A cell that fails ends the collectives of all ranks; the next cell forms a new session, and models stay. Cells that
differ between ranks never mix their sums: at its first collective, each rank sends which cell it runs. An interrupt
ends the cell on all ranks after the same step. A task of a load-balanced view is a job of one rank.
"""

# Threads. IPython's hooks, tasks and SIGINT run in the main thread. Any thread may be the first to reach a collective
# in a cell; it calls ``_enter``, and other threads wait for it by ``_lock``, so that none begins a collective before
# the cells are known to be the same. (``_passed`` only grows while a cell runs, and is read without the lock.) The main
# thread takes the lock when a cell ends; the lock is reentrant, because the SIGINT handler runs on top of either.
# ``_lapse`` and ``_show_stack`` run in timers: ``_lapse`` sends SIGINT to the main thread under the lock, so that the
# cell cannot end between the check and the signal.
#
# Nothing here raises into IPython's hooks: IPython would print the error, and go on. The reason why a cell may not use
# collectives is kept as ``_refusal``, which its first collective raises.

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import sys
import threading
import time
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from glob import glob
from types import FrameType, TracebackType
from typing import Any, final

import msgspec

from farandole.cluster import engine
from farandole.cluster.contact import Contact
from farandole.cluster.engine import EngineSeat
from farandole.control.addresses import everywhere, own_host_only
from farandole.control.keys import new_secret
from farandole.errors import FarandoleError, MismatchError, StartError
from farandole.notebook.cells import (
    CellMark,
    CellStart,
    difference,
    ended_refusal,
    partial_refusal,
    queued_refusal,
    unformed_refusal,
)
from farandole.runtime.coordination.rank_names import name_rank
from farandole.runtime.lanes.thread_waits import count_as_servants
from farandole.runtime.selfstart.spawn import ControllerConfig, end_controller, ensure_controller
from farandole.runtime.session.init import (
    Session,
    aside,
    current,
    is_initialized,
    on_absence,
    on_joined,
    rejoin,
    shutdown,
)
from farandole.runtime.session.tracebacks import folded
from farandole.settings import Settings
from farandole.version import __version__

_PER_SERIAL = 2**20

VOTE_S = 2.0
"""Longest wait of an interrupt for the end of a step on which all ranks agree."""

SETTLE_S, LOOK_S = 2.0, 0.002
"""Longest time that the news of a failed cell takes to reach a rank, and the polling interval."""

STACK_S = 8.0
"""Time after ``VOTE_S`` until an engine that still runs prints its stack."""


@final
class EngineReport(msgspec.Struct, frozen=True):
    """Report of an engine on its host, process and hardware."""

    host: str
    pid: int
    version: str
    python: str
    cores: int
    gpus: int


@final
class CellGuard:
    """Guard of this engine; ``shell`` is IPython's, whose kernel is IPython Parallel's."""

    def __init__(self, shell: Any) -> None:
        self.job = ""
        """The job of the last seat; this process may have started its controller."""
        self._shell, self._kernel = shell, shell.kernel
        self._apply = self._kernel.do_apply
        self._lock = threading.RLock()
        self._tokens = itertools.count(1)
        self._cell: CellStart | None = None
        self._mark: CellMark | None = None
        self._last: CellStart | None = None
        self._before: Any = None  # IPython's last result when the cell began
        self._runs = Counter[str]()  # number of runs of each cell in this session, by digest
        self._refusal = ""
        self._joined_in: EngineSeat | None = None  # seat of the current or last session
        self._number = 0  # of the newest cell of all ranks; rises by ``_PER_SERIAL``, by 1 without a mark
        self._interrupts = 0
        self._is_forced = False
        self._is_telling = False  # True while the error that has ended the cell is shown
        self._passed: set[int] = set()
        self._watched: weakref.ref[Session] | None = None
        self._is_end_known = False  # True if ``_watched`` is known to have ended before the next cell
        self._timers: list[threading.Timer] = []
        self._handler: Any = None

    def watch(self) -> None:
        """Register with IPython; from now on cells are guarded."""
        main = threading.main_thread().ident
        count_as_servants(each.ident for each in threading.enumerate() if each.ident and each.ident != main)
        count_as_servants(ident for ident in sys._current_frames() if ident != main)
        # Silent cells, such as those of ``view.execute``, have no ``post_run_cell``; for others ``_end`` may know less.
        for name, hook in (("pre_execute", self._begin), ("post_execute", self._end), ("post_run_cell", self._judge)):
            self._shell.events.register(name, hook)
        self._kernel.do_apply = self._do_task
        self._shell.set_custom_exc((FarandoleError,), partial(self._show_error, _show_folded))
        self._shell.showtraceback = partial(self._show_error, self._shell.showtraceback)
        _load_tracebacks(self._shell)
        on_joined(self._joined)
        on_absence(self._revive)

    def seated(self, job: str) -> None:
        """Begin to count the cells of a job."""
        self.job, self._number, self._last = job, 0, None
        self._runs.clear()

    # -- sessions -----------------------------------------------------------------------------------------------------

    def _joined(self, session: Session) -> None:
        self._joined_in = engine.occupied()
        self._watched, self._is_end_known = weakref.ref(session), False
        self._runs.clear()
        if self._mark is None:
            self._number = 0  # in a failed session, some ranks may have counted more cells
        if self._cell is not None:
            self._count(self._cell)
            session.cells.gate = partial(self._enter, session)

    def _revive(self) -> None:
        """Form a new session, because the previous one has ended with a failed cell, or with another seat."""
        seat, cell = engine.occupied(), self._cell
        if seat is None or cell is None or self._joined_in is None:
            return
        if self._refusal:
            raise MismatchError(self._refusal)
        if self._mark is not None and not self._mark.is_whole:
            raise MismatchError(unformed_refusal(cell))
        rejoin()
        if (size := current().topology.size) < seat.size:
            shutdown()
            raise StartError(
                f"{seat.size - size} of the {seat.size} ranks have ended. In a cell without %%px: ranks.replace() "
                "starts engines in their place, and farandole.notebook.attach(rc) goes on with those that are left"
            )

    def _enter(self, session: Session, process_set: int) -> None:
        """Let a thread begin the first collective of a process set in a cell, if all its members run that cell."""
        if process_set in self._passed:
            return
        with self._lock:
            cell, members = self._cell, session.sets[process_set].ranks
            if process_set in self._passed or cell is None:
                return  # another thread was first, or the cell has ended before its threads
            if self._refusal:
                raise MismatchError(self._refusal)
            if self._mark is not None and not self._mark.is_whole and not self._reaches(self._mark, session, members):
                raise MismatchError(partial_refusal(cell))
            if self._mark is None:
                self._number += 1
            what = f"the first collective of {cell.name}"
            said = session.planned.meet_in_cell(process_set, self._number, what, msgspec.json.encode(cell))
            names = [name_rank(member, session.topology.hosts) for member in members]
            self._refusal = difference([_decode(each) for each in said], names)
            if self._refusal:
                raise MismatchError(self._refusal)
            self._passed.add(process_set)

    def _reaches(self, mark: CellMark, session: Session, members: Sequence[int]) -> bool:
        """True if a cell was sent to all ``members``, and no rank of the seats has died."""
        seat = self._joined_in
        return seat is not None and session.topology.size == seat.size and set(members) <= set(mark.ranks)

    # -- IPython's hooks ----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        seat = engine.occupied()
        if seat is None:
            return
        parent = self._kernel.get_parent("shell") or {}
        self._mark = CellMark.of(parent.get("metadata", {}).get("label"))
        self._refusal, self._interrupts, self._is_forced, self._is_telling = "", 0, False, False
        self._passed.clear()
        if self._mark is not None:
            self._number = self._mark.serial * _PER_SERIAL
        cell = self._count(CellStart.of(self._mark, parent.get("content", {}).get("code", "")))
        self._before = self._shell.last_execution_result
        self._handler = signal.signal(signal.SIGINT, self._on_interrupt)
        session = self._session()
        if session is None:
            return
        if self._mark is None and not session.broken:
            # Between cells without a mark, no sender waits until all ranks know of the failure of the last cell.
            try:
                session.sync_with_controller(SETTLE_S)
            except KeyboardInterrupt:  # IPython would only print it, and run the cell without a gate
                self._refusal = f"{cell.name} was interrupted before it began"
        is_partial = self._mark is not None and not self._mark.is_whole
        if self._joined_in is not seat or (session.broken and not is_partial):
            if session.broken and self._joined_in is seat:
                self._refusal = self._why_not(cell, session)
            if not self._refusal:
                shutdown()  # ``_revive`` forms another session, if the cell needs it
                return
        session.cells.interrupted = False  # an interrupt after the previous cell's last step was for that cell
        session.cells.rest, session.cells.gate = None, partial(self._enter, session)

    def _count(self, cell: CellStart) -> CellStart:
        """Begin a cell: ranks that run the same cells in a session count them alike."""
        self._runs[cell.digest] += 1
        self._cell = msgspec.structs.replace(cell, run=self._runs[cell.digest])
        return self._cell

    def _why_not(self, cell: CellStart, session: Session) -> str:
        """Reason why a cell may not form a new session: a rank that has failed in this cell will not join."""
        if self._last is not None and self._mark is not None and self._last.serial > self._mark.settled:
            return queued_refusal(cell, self._last)
        # Cells without a mark are sent before all ranks know of the end: of these, only the failed cell is refused.
        is_over = self._is_end_known if self._mark is not None else not cell.is_named_in(session.end.reason)
        return "" if is_over else ended_refusal(cell, session.end.reason)

    def settle(self) -> None:
        """Wait until this engine knows that a failed cell has ended the session."""
        session, until_s = None if self._watched is None else self._watched(), time.monotonic() + SETTLE_S
        while session is not None and not session.broken and time.monotonic() < until_s:
            time.sleep(LOOK_S)  # the control thread gets the news
        self._is_end_known = session is not None and session.broken

    def _end(self) -> None:
        if self._cell is None:
            return
        with self._lock:
            signal.signal(signal.SIGINT, self._handler)
            while self._timers:
                self._timers.pop().cancel()
            ended, self._cell = self._cell, None
        session, self._last = self._session(), ended
        if (result := self._shell.last_execution_result) is not self._before:
            self._judge(result)
        if session is not None:
            session.cells.gate = None
            session.cells.rest_after(self._number, -next(self._tokens), f"no cell, as {ended.name} has ended there")

    def _judge(self, result: Any) -> None:
        """End the collectives of all ranks if the cell has failed; not after an interrupt on which they have agreed."""
        error = result.error_before_exec or result.error_in_exec
        session = self._session()
        if error is None or session is None or engine.occupied() is None:
            return
        is_voted = isinstance(error, KeyboardInterrupt) and not self._is_forced
        if not session.broken and not is_voted:
            session.end.abort(f"{_named(self._last)} raised {traceback.format_exception_only(error)[-1].strip()}")
            # Now the controller has notified the others, which may begin the next cell when this cell has ended.
            with contextlib.suppress(KeyboardInterrupt):  # the cell has ended already
                session.sync_with_controller(SETTLE_S)
        session.cells.interrupted = False
        if not is_voted:
            self.settle()

    def _show_error(self, show: Callable[..., Any], *how: Any, **more: Any) -> Any:
        """Show the error that has ended the cell. Interrupts of the cell are ignored meanwhile."""
        self._is_telling = self._cell is not None
        return show(*how, **more)

    def _do_task(self, *request: Any) -> Any:
        with engine.as_task(), aside():
            return self._apply(*request)

    @staticmethod
    def _session() -> Session | None:
        return current() if is_initialized() else None

    # -- interrupts ---------------------------------------------------------------------------------------------------

    def _on_interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_telling:
            return
        session = self._session()
        self._interrupts += 1
        is_training = session is not None and session.is_interactive and bool(self._passed) and not session.broken
        if session is None or not is_training or self._interrupts > 1:
            if is_training and session is not None:
                session.end.abort(f"{_named(self._cell)} was interrupted, and no step has ended since")
            self._is_forced = True
            raise KeyboardInterrupt
        session.cells.interrupted = True
        session.forget_orders()  # a pause ends: the next step has the vote
        self._after(VOTE_S, partial(self._lapse, self._cell))

    def _lapse(self, cell: CellStart | None) -> None:
        """Interrupt the main thread, whatever it runs."""
        with self._lock:
            if self._cell is not cell or self._interrupts > 1:
                return
            self._after(STACK_S, partial(self._show_stack, cell))
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def _show_stack(self, cell: CellStart | None) -> None:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        if self._cell is cell and frame is not None:
            seat = engine.occupied()
            where = "".join(traceback.format_stack(frame))
            rank = "?" if seat is None else seat.rank
            sys.stderr.write(f"rank {rank} was interrupted {VOTE_S + STACK_S:g} s ago, and still runs here:\n{where}")
            sys.stderr.flush()

    def _after(self, seconds: float, work: Any) -> None:
        timer = threading.Timer(seconds, work)
        timer.daemon, timer.name = True, "farandole-interrupt"
        timer.start()
        self._timers.append(timer)


def _named(cell: CellStart | None) -> str:
    return "its cell" if cell is None else cell.name + cell.tag


def _show_folded(
    shell: Any, kind: type[BaseException], error: BaseException, trace: TracebackType, **_options: Any
) -> list[str]:
    """Show an error of Farandole as in a script: IPython would show all its frames, which takes long."""
    lines = folded(error.with_traceback(trace.tb_next)).splitlines()
    shell._showtraceback(kind, error, lines)  # IPython leaves that to handlers
    return lines


def _load_tracebacks(shell: Any) -> None:
    """Make IPython format an error now, because loading its modules at the first error takes a second."""
    try:
        int("")
    except ValueError:
        shell.InteractiveTB.structured_traceback(*sys.exc_info())


_guards: list[CellGuard] = []


def report() -> EngineReport:
    """Report of this engine, which is guarded from now on. Called by the notebook, as a task."""
    install()
    gpus = len(glob("/proc/driver/nvidia/gpus/*"))
    python = ".".join(map(str, sys.version_info[:3]))
    return EngineReport(socket.gethostname(), os.getpid(), __version__, python, len(os.sched_getaffinity(0)), gpus)


def install() -> None:
    """Guard this engine; later calls do nothing."""
    if not _guards:
        from IPython import get_ipython  # an engine has it

        # This runs in a task, but before there is a guard, so no session is set aside.
        guard = CellGuard(get_ipython())
        guard.watch()
        _guards.append(guard)


def start_controller(job: str, size: int, spans_hosts: bool) -> tuple[list[str], str]:
    """Start the controller of a job as a child of this engine; its addresses, and the secret. For the notebook."""
    settings = Settings.resolve()
    listen = everywhere(settings.ports) if spans_hosts else own_host_only()
    config = ControllerConfig(listen, socket.gethostname(), size, new_secret(), in_cells=True)
    contact = ensure_controller(job, config, settings)
    return contact.addresses, contact.key


def take_seat(
    job: str, place: tuple[int, int, int], host: str, spans_hosts: bool, contact: tuple[list[str], str]
) -> None:
    """Take a seat: ``place`` is rank, size and local rank. The next cell belongs to that job. For the notebook."""
    rank, size, local_rank = place
    engine.set_seat(EngineSeat(job, rank, size, host, local_rank, spans_hosts, Contact(*contact)))
    for guard in _guards:
        if guard.job and guard.job != job:
            end_controller(guard.job)
        guard.seated(job)


def settle() -> None:
    """Wait until this engine knows that a failed cell has ended the session. Called by the notebook, as a task."""
    for guard in _guards:
        guard.settle()


def be_ready() -> None:
    """Take part in the next cell without ``init()``, which the other ranks have called. Called by the notebook."""
    for guard in _guards:
        guard._joined_in = guard._joined_in or engine.occupied()


def _decode(said: bytes) -> CellStart:
    try:
        return msgspec.json.decode(said, type=CellStart)
    except msgspec.DecodeError as error:
        raise FarandoleError(f"a rank has sent no description of its cell: {error}") from error
