"""Session: the membership of one process in a job, from ``init`` to ``shutdown``.

    session = Session(settings, topology, "shm", "all ranks are on one host", sets=[])
    handle = session.submit([Call(Kind.ALLREDUCE, "allreduce.loss", array, shape=())])
    handle.wait()
    session.close()

A session lasts for one generation. When the generation has ended (a worker died), every operation raises until
``shutdown`` and ``init`` have started the next session in the same process.

Threads. Users' threads submit; one of them, or the lane's own thread, leads the negotiated lane and executes. The
control thread calls ``generation_ended``, ``change``, ``progress``, ``timeline`` and ``watch``. Engines report silence
in any thread. The session itself takes no lock: its parts have their own, and any thread may end it (``session_end``).

``close`` also frees resources, after all threads have left the lane. If its own thread is inside (in a signal handler),
or another one does not leave within ``LEAVE_S`` (a handler runs on top of it), a new thread waits and frees: what is in
use must not be freed, however long that takes.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from farandole import events
from farandole.collective import Kind
from farandole.control.keys import JobKeys
from farandole.control.message import Message
from farandole.control.messages import HostSilent, Order, Waits
from farandole.control.run_messages import Progressed
from farandole.control.watch_messages import ActAt, Prepare, SendMetrics
from farandole.engines.candidates import CANDIDATES
from farandole.engines.choose import base
from farandole.errors import (
    ControlError,
    FarandoleError,
    UsageError,
)
from farandole.runtime.coordination.agreement import title
from farandole.runtime.coordination.stall import Limits
from farandole.runtime.lanes.active_collectives import ActiveCollectives
from farandole.runtime.lanes.announcement import Announcement, FastRequest
from farandole.runtime.lanes.call import Call, CallResult, Handle, require_device
from farandole.runtime.lanes.failure import Failure
from farandole.runtime.lanes.lane import Lane
from farandole.runtime.lanes.negotiated import NegotiatedLane
from farandole.runtime.lanes.peer_lane import PeerLane
from farandole.runtime.lanes.reentry import Reentry
from farandole.runtime.lanes.single_process import SingleProcessLane
from farandole.runtime.lanes.thread_waits import survey
from farandole.runtime.session.cell_state import CellState
from farandole.runtime.session.control_thread import INTERACTIVE_LOOK_S, WAITS_LOOK_S, ControlThread
from farandole.runtime.session.engine_pool import EnginePool
from farandole.runtime.session.link import Link
from farandole.runtime.session.metric_sender import MetricSender
from farandole.runtime.session.mllog import MLLog
from farandole.runtime.session.planned_collective import CONSEQUENCES
from farandole.runtime.session.planned_lanes import PlannedLanes
from farandole.runtime.session.process_sets import ProcessSet, ProcessSetLike, Registry
from farandole.runtime.session.session_end import SessionEnd
from farandole.runtime.session.step_gate import StepGate
from farandole.runtime.session.timeline import Recorder, path_of
from farandole.runtime.session.training import training
from farandole.settings import Settings
from farandole.topology import Topology

DYNAMIC = "DYNAMIC"
"""Horovod's value of ``HOROVOD_TIMELINE`` for a timeline whose file is set by ``start_timeline``."""


LEAVE_S = 5.0
"""Time that ``close`` waits for the thread that leads the lane; an aborted engine releases it at once."""

LONGEST_REASON = 500
"""Most characters of a reason that is sent to the other ranks."""


@final
class Session:
    """Session of one process, used from any thread. ``link``: ``None`` in a job of one rank without launcher."""

    def __init__(
        self,
        settings: Settings,
        topology: Topology,
        engine: str,
        reason: str,
        sets: Sequence[ProcessSet],
        link: Link | None = None,
        clock_offset_s: float = 0.0,
    ) -> None:
        self.settings, self.topology, self.generation = settings, topology, topology.generation
        self.engine, self.reason = engine, reason
        self.devices = CANDIDATES[base(engine)].devices
        """Kinds of device whose tensors the engine accepts."""
        self.change_due = ""  # or why the generation should end at the next commit
        own = Topology.of(0, (topology.host,), 0) if self.provisional else topology
        self._counters: dict[tuple[Kind, int], itertools.count[int]] = defaultdict(itertools.count)
        self._reentry, self._in_lane, self._active = Reentry(), Reentry(), ActiveCollectives()
        self.recorder = Recorder(topology.rank, topology.host, clock_offset_s, settings, self._reentry)
        self.pace, self.cells = self._active.pace, CellState(self._active)
        self.sets = Registry(own.rank, own.size, sets)
        self._link, send = link, _nobody if link is None else link.up.send
        self._metrics = MetricSender(send, self.generation)
        self.gate = StepGate(send, self.generation, training, self.pace.beat, self.cells)
        self.cells.withdraw = self.gate.cell_over
        self._closing = list[Callable[[], None]]()
        self._control: ControlThread | None = None
        controller = "" if link is None else link.controller
        self._engine_pool = EnginePool(own, engine, self._share, settings, self._on_silence, controller)
        self.end = SessionEnd(topology, link, self._active, self._engine_pool, self.gate, self._metrics)
        self._lane = self._open_lane(sets)
        self.end.waiters = [self._lane.end]
        lane_parts = self._active, self._reentry, self.end.explain, self.cells
        self.planned = PlannedLanes(
            self.generation, self.sets, self._engine_pool, self._share, self._send_to_controller, *lane_parts
        )
        """Planned lanes: collectives in an order that every member knows."""
        self._begin(link)

    _mllog: MLLog | None = None

    is_aside = False
    """True if another session of this process continues afterwards (``init.aside``)."""

    @property
    def has_fast_path(self) -> bool:
        """True if compiled graphs may bypass Python: not in a notebook (gate between cells), nor inside ``aside``."""
        return not self.is_interactive and not self.is_aside

    @property
    def provisional(self) -> bool:
        """True in an elastic job until this worker is admitted: it is alone, and ``topology`` is a forecast."""
        return self.generation == 0

    @property
    def keys(self) -> JobKeys | None:
        """Keys with which processes of the job authenticate each other; ``None`` in a job of one rank."""
        return None if self._link is None else self._link.keys

    @property
    def is_interactive(self) -> bool:
        """True in a notebook: a user waits for each cell that the ranks run."""
        return self._link is not None and self._link.is_interactive

    @property
    def broken(self) -> bool:
        """True if the generation ended for another reason than ``shutdown()``: a peer may be lost."""
        return self._engine_pool.broken.is_set()

    # -- collectives --------------------------------------------------------------------------------------------------

    def name_unnamed(self, kind: Kind, process_set: int) -> str:
        """Name for a call of this kind without a user's name; counted here for all frameworks of the process."""
        return f"{kind.label}.noname.{next(self._counters[kind, process_set])}"

    def submit(
        self, calls: Sequence[Call], background: bool = True, progress_s: float = 0.0, fast: FastRequest | None = None
    ) -> Handle:
        """Announce that this rank is ready for ``calls``; several are one group.

        ``background=False``: nothing happens until a caller waits; for callers that wait at once. ``progress_s``: see
        ``Lane``; for callers that would otherwise have to be woken, and can spare this time. Raises
        ``DuplicateNameError``, ``UsageError``, or the error that ended the generation.
        """
        if self.cells.gate is not None:
            self.cells.gate(calls[0].process_set)
        first = calls[0]
        self.sets.members(first.process_set, first.name)
        for call in calls:
            require_device(call, self.engine, self.devices)
        self.pace.beat()
        fast = fast if self.has_fast_path else None
        announcement = Announcement(first.process_set, first.name, first.kind, calls, fast=fast)
        return self._lane.submit(announcement, background, progress_s)

    def refuse(self, process_set: int, name: str, kind: Kind, error: Exception) -> None:
        """Tell the other members that ``error`` prevents this rank from submitting a collective."""
        reason = str(error) if isinstance(error, FarandoleError) else f"{type(error).__name__}: {error}"
        self._lane.refuse(Announcement(process_set, name, kind, (), refusal=reason[:LONGEST_REASON]))

    def join(self) -> int:
        """Take part in no further collectives until every rank has called ``join``; return the last rank to call it."""
        return self._agree(0, Kind.JOIN).value

    def barrier(self, process_set: int = 0) -> None:
        """Return when every member has called it."""
        self.sets.members(process_set, "barrier")
        self._agree(process_set, Kind.BARRIER)

    def add_process_set(self, ranks: ProcessSetLike) -> ProcessSet:
        """Register a set; every rank of the job calls it with the same ranks."""
        try:
            process_set = self.sets.admit(ranks)
        except Exception as error:  # perhaps only on this rank: the others would wait
            self.refuse(0, self.name_unnamed(Kind.ADD_SET, 0), Kind.ADD_SET, error)
            raise
        self.sets.add(self._agree(0, Kind.ADD_SET, process_set.ranks).value, process_set)
        return process_set

    def remove_process_set(self, process_set: ProcessSet) -> bool:
        """Remove a set on every rank; False if it is the global set or not registered."""
        number = process_set.process_set_id
        if not number or number not in self.sets:
            return False
        self._agree(0, Kind.REMOVE_SET, [number])
        self.sets.remove(number)
        self._engine_pool.drop(number)
        return True

    # -- steps ---------------------------------------------------------------------------------------------------------

    def stepped(self, step: int | None = None, by_all: bool = True) -> None:
        """End a step of an optimizer (number ``step`` if the job counts steps), and obey orders that are due then.

        ``by_all``: all ranks share the step; a step of only some ranks does not check for orders, because the others do
        not count it. Raises ``SystemExit`` if the live view ordered the end, in a notebook cell ``KeyboardInterrupt``.
        """
        training.stepped(self.topology.rank, step)
        if by_all or self.provisional:
            self.gate.passes()

    def watch(self, message: SendMetrics | Prepare | ActAt) -> None:
        """Obey an order of the live view; called by the control thread."""
        if isinstance(message, SendMetrics):
            self._metrics.every(message.every_s)
        else:
            self.gate.watch(message)

    def forget_orders(self) -> None:
        """End a pause, and drop orders not obeyed yet; called by the control thread, and by signal handlers."""
        self.gate.forget()

    def report(self, told: Progressed) -> None:
        """Send metrics or advice to the controller of an elastic job; only rank 0 sends."""
        if self._link is not None and self.settings.is_elastic and self.topology.rank == 0 and not self.provisional:
            with contextlib.suppress(ControlError), self._reentry:  # the end is reported elsewhere
                self._link.up.send(told)

    # -- the generation and its end -----------------------------------------------------------------------------------

    def await_lane(self) -> None:
        """If the session has ended, wait until no thread is in an engine for a named collective."""
        if self.end.failure is not None:
            self._lane.await_exit(None)

    def sync_with_controller(self, timeout_s: float) -> None:
        """Wait, at most ``timeout_s``, until an end of the generation that the controller knows is known here too."""
        if self._control is not None:
            self._control.sync_with_controller(self.topology.rank, timeout_s)

    def generation_ended(self, failure: Failure) -> None:
        """End the session because its generation is over; called by the control thread."""
        self.end.generation_over(failure)

    def at_close(self, work: Callable[[], None]) -> None:
        """Call ``work`` when the session closes; it must not block."""
        self._closing.append(work)

    def close(self) -> None:
        """Leave the job and free everything; called once. Collectives still in flight here raise ``AbortError``.

        A signal handler may call it in the middle of a collective: the collective raises after the handler has
        returned, and its resources are freed then.
        """
        self._engine_pool.stop_fast_path()
        self.recorder.close()  # before the end: rank 0 considers the timeline complete when the others have left
        self._metrics.close()  # while the controller still listens
        self.end.shut_down()
        for work in self._closing:
            work()
        if self._reentry.here() or self._in_lane.here():
            # In a handler on top of the frame that ``_free`` waits for. No daemon: the interpreter's exit waits for it.
            threading.Thread(target=self._free, name="farandole-shutdown").start()
        elif self._lane.await_exit(LEAVE_S):
            self._free()
        else:
            # A daemon: the other thread may never leave the lane, and then nothing is freed.
            with contextlib.suppress(RuntimeError):  # the interpreter exits, which frees all
                threading.Thread(target=self._free, name="farandole-shutdown", daemon=True).start()

    def _free(self) -> None:
        """Close everything after the last thread has left the lane."""
        self._lane.await_exit(None)  # first: its leader uses the link and the engines
        self._lane.close()
        if self._control is not None:
            self._control.stop()  # before the link, from which it reads
        if self._link is not None:
            self._link.close()
        self._engine_pool.close()
        self.sets.clear()

    # -- timeline and statistics --------------------------------------------------------------------------------------

    def timeline(self, path: str, mark_cycles: bool) -> None:
        """Start or stop recording, as ordered by rank 0; called by the control thread."""
        self.recorder.record(path, mark_cycles)

    def mllog(self, key: str, value: Any, metadata: Mapping[str, Any]) -> None:
        """Write a line to the MLPerf log, on rank 0 of a job with such a log."""
        if self._mllog is not None:
            self._mllog.write(key, value, metadata)

    def change(self, reason: str) -> None:
        """Note why a change of the membership is due; called by the control thread."""
        self.change_due = reason

    def progress(self) -> tuple[str, str]:
        """Titles of the last collective finished here, and of the active ones or of the order being executed."""
        return _title(self._lane.last), self._active.now() or _title(self._lane.inside)

    def waits(self) -> Waits:
        """Waits of all threads that could begin a collective; called by the control thread."""
        return survey(self.generation, self._active, self._lane, self.cells.rest)

    def statistics(self) -> dict[str, Any]:
        """Generation, rank, size, the engine and why it was chosen, counters of each engine and of the fast path."""
        return {
            "generation": self.generation,
            "rank": self.topology.rank,
            "size": self.topology.size,
            "engine": self.engine,
            "reason": self.reason,
            "engines": self._engine_pool.statistics(),
            "fast_path": self._engine_pool.fast_path_statistics(),
        }

    # -- internals ----------------------------------------------------------------------------------------------------

    def _begin(self, link: Link | None) -> None:
        """Listen to the controller, after everything that the control thread uses is made; then start the engine."""
        if link is not None:
            limits, stay = Limits.of(self.settings), link.stay(self.generation)
            look_s = INTERACTIVE_LOOK_S if link.is_interactive else WAITS_LOOK_S
            control = ControlThread(link.control, link.up, self.generation, self, self._active, limits, stay, look_s)
            # The thread may have ended the session by now: then it has ended its own waiters (``ControlThread._over``).
            self._control = self.recorder.others = control
            self.end.waiters = [control.end, self._lane.end]  # another list: that thread may read the former
        try:
            self._introduce()
        except BaseException as error:  # also Ctrl-C: the other ranks wait in their init() for this rank
            self.end.give_up_start(error)
            self.close()
            raise

    def _open_lane(self, sets: Sequence[ProcessSet]) -> Lane:
        if self._link is None or self.topology.size == 1:
            dynamic = self.settings.dynamic_process_sets
            return SingleProcessLane(self._perform, self.topology.host, [s.ranks for s in sets], dynamic, self._in_lane)
        connect = self._engine_pool.connect if self._engine_pool.has_reach else None
        direct = PeerLane(self.topology, connect, self._link.orders, self._active, self.end.explain)
        return NegotiatedLane(
            direct,
            self._link.up.send,
            self.generation,
            self._perform,
            self.end.tear,
            self._in_lane,
            self.settings.cache_capacity,
            eager=self.topology.size <= self.settings.tree_radix,  # relays cannot combine eager messages
            stay=self._link.stay(self.generation, wait=True),
        )

    def _introduce(self) -> None:
        # Made now, not when first needed: a failure to start the engine should stop init(), not the first step.
        self._engine_pool.executor(0, self.sets[0].ranks)
        text = f"engine {self.engine}: {self.reason}"
        if events.subscribers:
            events.emit(events.Note(time.monotonic(), self.topology.rank, text))
        if self.topology.rank == 0:
            events.logger.info("%s", text)
            if self.settings.timeline not in ("", DYNAMIC):
                self.recorder.record_all(path_of(self.settings.timeline, self.generation))
            if self.settings.mllog and not self.provisional:
                self._mllog = MLLog(self.settings.mllog)
                self._closing.append(self._mllog.close)
                self._mllog.introduce(self.topology.hosts)

    def _perform(self, order: Order, mine: Sequence[Sequence[Call] | None]) -> list[list[CallResult]]:
        if not order.signatures[0].dtypes:  # an agreement without data
            if order.kind == Kind.JOIN:  # ranks that joined early counted fewer calls; none is in flight
                self._counters.clear()
            return [[CallResult(value=order.value)] for _ in mine]
        executor = self._engine_pool.executor(order.process_set, self.sets[order.process_set].ranks)
        if order.contributions:  # nothing to wait for
            return executor.perform(order, mine)
        self._active.enter_agreed(order.process_set, _title(order))
        try:
            return executor.perform(order, mine)
        except CONSEQUENCES:
            self.end.explain()  # before ``exit``: it reports the collective that blocks this rank
            raise
        finally:
            self._active.exit(order.process_set)

    def _agree(self, process_set: int, kind: Kind, splits: Sequence[int] = ()) -> CallResult:
        """Agree with all members on a call without tensors; calls are matched by order."""
        if self.cells.gate is not None:
            self.cells.gate(process_set)
        name = self.name_unnamed(kind, process_set)
        self.pace.beat()
        announcement = Announcement(process_set, name, kind, (), splits)
        try:
            handle = self._lane.submit(announcement, background=False)
        except UsageError as error:
            if kind is not Kind.JOIN:  # the others wait until this rank joins anyway
                self.refuse(process_set, name, kind, error)
            raise
        [outcome] = handle.wait()
        return outcome

    def _share(self, key: str, ranks: Sequence[int], payload: bytes) -> list[bytes]:
        if self._control is None:
            return [payload]
        # A rank may reach its first planned collective late, after a long computation.
        limit_s = self.settings.stall_limit_s(self.settings.stall_shutdown_s)
        return self._control.exchange(key, ranks, payload, limit_s)

    def _send_to_controller(self, message: Message) -> None:
        """Send to the controller, if there is one and the session has not ended."""
        if self._link is not None and self.end.failure is None:
            self._link.up.send(message)

    def _on_silence(self, host: str) -> None:
        """Report that an engine receives nothing from ``host``; the controller decides what follows."""
        if self._link is not None:
            with contextlib.suppress(ControlError):  # closed: the session is over, and the engine will be aborted
                self._link.up.send(HostSilent(self.generation, host))


def _nobody(_: object) -> None:
    """Drop a message: this process is alone."""


def _title(order: Order | None) -> str:
    return "" if order is None else title(order.kind, order.names[-1], order.process_set)
