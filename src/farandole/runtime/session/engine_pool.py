"""Engine pool of a session: one engine for each process set of the negotiated lane, and the planned lanes' engines.

    pool = EnginePool(topology, "shm", share, settings)
    pool.executor(0, ranks=[0, 1]).perform(order, mine)
    pool.close()

Threads. Engines are made by the thread that leads the negotiated lane and by users' threads that begin a planned lane.
Making one blocks until all members take part, so it is done without the lock. Any thread may call ``abort`` at any
time, also a signal handler, and must not wait for that. ``_lock`` guards ``_engines``, ``_labels`` and ``_reason``: an
engine is added and ``_reason`` read in one critical section, so an abort either finds the engine or has set its reason
before. ``_executors`` needs no lock: besides the leading thread, only ``drop`` (all ranks have agreed that the set is
unused) and ``close`` touch it.
"""

from __future__ import annotations

import dataclasses
import socket
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import final

from farandole import events
from farandole.control.reentrant_event import ReentrantEvent
from farandole.engines.choose import SHM_MEMBERS, base
from farandole.engines.engine import Engine, Group, Rendezvous, Share
from farandole.engines.factory import make
from farandole.engines.reach import known_address
from farandole.engines.silence_monitor import SilenceMonitor
from farandole.errors import AbortError, EngineError
from farandole.native import core
from farandole.runtime.lanes.executor import Executor
from farandole.runtime.lanes.fast_path import WATCH_S, FastPath
from farandole.settings import Settings
from farandole.topology import Topology

BY_SOCKETS = ("shm", "tcp", "hybrid+tcp")
"""Engines whose use implies that all members reach each other by TCP; members on one host always do."""

ENDED_S = 2.0
"""Longest time from the disappearance of a member's shared memory to the message that it has left."""


@final
class EnginePool:
    """Engines of one session, made on first use, in the same order on all members. Any thread may abort them.

    ``on_silence`` is passed on to every ``Group``; ``controller`` is its address, "" without one.
    """

    def __init__(
        self,
        topology: Topology,
        engine: str,
        share: Share,
        settings: Settings,
        on_silence: Callable[[str], object] = lambda _: None,
        controller: str = "",
    ) -> None:
        self._topology, self._engine, self._share, self._settings = topology, engine, share, settings
        self._on_silence, self._address = on_silence, known_address(settings.network_interface, controller)
        self.broken = ReentrantEvent()
        """Set when the generation ends for another reason than ``shutdown()``."""
        self._lock = threading.RLock()  # a signal handler may abort while its thread holds it
        self._engines: weakref.WeakSet[Engine] = weakref.WeakSet()  # a deleted lane deletes its engine
        self._executors: dict[int, Executor] = {}
        self._labels: Counter[str] = Counter()
        self._reason = ""
        self._over = ReentrantEvent()
        self._fast_path: FastPath | None = None

    def executor(self, process_set: int, ranks: Sequence[int]) -> Executor:
        """The executor of a process set; the first call is collective. Only the thread that leads the lane calls it."""
        found = self._executors.get(process_set)
        if found is None:
            try:
                engine = self.engine(ranks, f"process set {process_set}")
            except EngineError as error:
                # A member that left meanwhile unlinked its memory, which looks like memory that cannot be shared.
                if self._over.wait(ENDED_S):
                    raise AbortError(self._reason or "the generation has ended") from error
                raise
            found = self._executors[process_set] = Executor(engine, ranks)
        return found

    def engine(self, ranks: Sequence[int], label: str, name: str = "", deadline_s: float = 0.0) -> Engine:
        """Make an engine among ``ranks``. Collective: all members call it equally often with this label.

        ``name``: another engine than the job's; ``deadline_s``: another limit of a collective.
        """
        group, rendezvous = self._gather(ranks, label)
        group = dataclasses.replace(group, deadline_s=deadline_s) if deadline_s else group
        engine = make(name or self._engine, group, rendezvous)
        with self._lock:
            self._engines.add(engine)
            reason = self._reason
        if reason:
            engine.abort(reason)
        return engine

    @property
    def has_reach(self) -> bool:
        """True if the use of the engine implies that all ranks reach each other by TCP."""
        return self._engine in BY_SOCKETS

    def connect(self) -> tuple[dict[int, socket.socket], SilenceMonitor, FastPath | None]:
        """Connect to every other rank, for the peer lane; return the sockets, their silence monitor, and the fast path.

        Collective. The fast path is ``None`` if ranks share no memory.
        """
        from farandole.engines.mesh import connect  # many jobs do not need it

        group, rendezvous = self._gather(range(self._topology.size), "the peer lane")
        # Not ``self.broken``, which an orderly end leaves unset: that end must stop connecting, too, because
        # ``PeerLane.interrupt`` cannot shut down sockets that do not exist yet.
        group = dataclasses.replace(group, broken=self._over)
        connections = connect(group, rendezvous)
        self._fast_path = self._make_fast_path(group, rendezvous)
        return connections, SilenceMonitor.of(group, connections), self._fast_path

    def _make_fast_path(self, group: Group, rendezvous: Rendezvous) -> FastPath | None:
        if base(self._engine) != "shm" or group.size > SHM_MEMBERS:
            return None
        names = [group.name(member) for member in range(group.size)]
        try:
            return FastPath(core.FastPath(group.rank, names, rendezvous, WATCH_S))
        except EngineError as error:  # on all members: they do without a fast path
            events.logger.debug("calls of graphs go through Python: %s", error)
            return None

    def _gather(self, ranks: Sequence[int], label: str) -> tuple[Group, Rendezvous]:
        """Group of a new engine among ``ranks``, and a rendezvous with its own key."""
        topology, settings = self._topology, self._settings
        with self._lock:
            self._labels[label] += 1
            key = f"{label}.{self._labels[label]}"
        hosts = tuple(topology.hosts[r] for r in ranks)
        member = list(ranks).index(topology.rank)
        group = Group(
            member,
            tuple(ranks),
            hosts,
            topology.generation,
            label,
            settings.stall_limit_s(settings.stall_shutdown_s),
            self._address,
            self.broken,
            settings.host_timeout_s,
            self._on_silence,
            settings.ports,
        )
        return group, Rendezvous(self._share, key, ranks)

    def drop(self, process_set: int) -> None:
        """Close the engine of a removed process set."""
        executor = self._executors.pop(process_set, None)
        if executor is not None:
            executor.engine.close()

    def abort(self, reason: str, orderly: bool = False) -> None:
        """Wake threads waiting in an engine, now and later; ``orderly``: the end is no failure."""
        self._over.set()  # before the lock: engines being made read these events, and not ``_reason``
        if not orderly:
            self.broken.set()
        with self._lock:
            self._reason = self._reason or reason
            engines = list(self._engines)
        for engine in engines:  # without the lock, which other threads need
            engine.abort(reason)

    def close(self) -> None:
        """Close every engine; call it when no thread uses one."""
        for engine in list(self._engines):
            engine.close()
        self._executors.clear()

    def stop_fast_path(self) -> None:
        """Make calls of compiled graphs go through Python, where they learn of the end."""
        if self._fast_path is not None:
            self._fast_path.stop()

    def fast_path_statistics(self) -> dict[str, int]:
        """Number of calls of graphs that met the other ranks without Python (``met``), or not in time (``left``)."""
        return {"met": 0, "left": 0} if self._fast_path is None else self._fast_path.statistics()

    def statistics(self) -> dict[str, dict[str, int | float | str]]:
        """Counters of each engine, by its label."""
        with self._lock:
            return {engine.group.label: engine.statistics() for engine in self._engines}
