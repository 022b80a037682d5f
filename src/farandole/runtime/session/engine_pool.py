"""Engine pool of a session: one engine for each process set of the negotiated lane, and those of the planned lanes.

    pool = EnginePool(topology, "shm", share, deadline_s=600.0)
    pool.executor(0, ranks=[0, 1]).perform(order, mine)
    pool.close()

Threads. Engines are made by the thread that leads the negotiated lane and by users' threads that begin a planned one;
that blocks until all members have come, and so it is done without the lock. ``abort`` comes from any thread at any
time, a signal handler too, and must not wait for it. ``_lock`` guards ``_engines``, ``_labels`` and ``_reason``: an
engine is added and ``_reason`` read in one critical section, in which an abort either finds the engine or has left its
reason. ``_executors`` needs no lock: besides the leader, only ``drop`` (all ranks have agreed that nobody uses that one
any more) and ``close`` touch it.
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
from farandole.engines.silence_monitor import SilenceMonitor
from farandole.errors import AbortError, EngineError
from farandole.native import core
from farandole.runtime.lanes.executor import Executor
from farandole.runtime.lanes.fast_path import WATCH_S, FastPath
from farandole.topology import Topology

BY_SOCKETS = ("shm", "tcp", "hybrid+tcp")
"""Engines that show that their members reach each other by TCP; those of one host always do."""

ENDED_S = 2.0
"""How long the news that a member has left may come after its memory has gone."""


@final
class EnginePool:
    """Engines of one session, made when first needed, in the same order on all members. Any thread may abort them.

    ``address``, ``silence_s`` and ``on_silence`` are passed on to every ``Group``.
    """

    def __init__(
        self,
        topology: Topology,
        engine: str,
        share: Share,
        deadline_s: float,
        address: str = "",
        silence_s: float = 0.0,
        on_silence: Callable[[str], object] = lambda _: None,
        ports: str = "",
    ) -> None:
        self._topology, self._engine, self._share, self._deadline_s = topology, engine, share, deadline_s
        self._address, self._silence_s, self._on_silence, self._ports = address, silence_s, on_silence, ports
        self.broken = ReentrantEvent()
        """Set when the generation ends otherwise than by ``shutdown()``."""
        self._lock = threading.RLock()  # a signal handler may abort while its thread is in here
        self._engines: weakref.WeakSet[Engine] = weakref.WeakSet()  # a lane that is gone takes its engine along
        self._executors: dict[int, Executor] = {}
        self._labels: Counter[str] = Counter()
        self._reason = ""
        self._over = ReentrantEvent()
        self._fast_path: FastPath | None = None

    def executor(self, process_set: int, ranks: Sequence[int]) -> Executor:
        """The executor of a process set; the first call is collective. Only the thread that leads the lane calls it."""
        found = self._executors.get(process_set)
        if found is None:
            engine = self.engine(ranks, f"process set {process_set}")
            found = self._executors[process_set] = Executor(engine, ranks)
        return found

    def engine(self, ranks: Sequence[int], label: str, name: str = "", deadline_s: float = 0.0) -> Engine:
        """A new engine among ``ranks``. Collective: each member calls it as often as the others with this label.

        ``name`` is that of another engine than the job's, and ``deadline_s`` another limit of a collective.
        """
        group, rendezvous = self._gather(ranks, label)
        group = dataclasses.replace(group, deadline_s=deadline_s) if deadline_s else group
        try:
            engine = make(name or self._engine, group, rendezvous)
        except EngineError as error:
            # A member that has left meanwhile has taken its memory along, and this looks as if it could not be shared.
            if self._over.wait(ENDED_S):
                raise AbortError(self._reason or "the generation has ended") from error
            raise
        with self._lock:
            self._engines.add(engine)
            reason = self._reason
        if reason:
            engine.abort(reason)
        return engine

    @property
    def has_reach(self) -> bool:
        """True where the engine shows that all ranks reach each other by TCP."""
        return self._engine in BY_SOCKETS

    def connect(self) -> tuple[dict[int, socket.socket], SilenceMonitor, FastPath | None]:
        """Connect with each other rank, for the peer lane; returns the sockets, their lookout, and the fast path.

        Collective. There is no fast path where ranks share no memory.
        """
        from farandole.engines.mesh import connect  # many jobs do without

        group, rendezvous = self._gather(range(self._topology.size), "the peer lane")
        # Not ``self.broken``, which an orderly end leaves unset: that must stop the connecting, too, as
        # ``PeerLane.interrupt`` cannot shut down what is not made yet.
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
        except EngineError as error:  # on all of them: they do without
            events.logger.debug("calls of graphs go through Python: %s", error)
            return None

    def _gather(self, ranks: Sequence[int], label: str) -> tuple[Group, Rendezvous]:
        """The group of a new engine among ``ranks``, and a rendezvous under a key of its own."""
        topology = self._topology
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
            self._deadline_s,
            self._address,
            self.broken,
            self._silence_s,
            self._on_silence,
            self._ports,
        )
        return group, Rendezvous(self._share, key, ranks)

    def drop(self, process_set: int) -> None:
        """Close the engine of a process set that has been removed."""
        executor = self._executors.pop(process_set, None)
        if executor is not None:
            executor.engine.close()

    def abort(self, reason: str, orderly: bool = False) -> None:
        """Wake whoever waits in an engine, now and later; ``orderly`` if nobody is to blame for the end."""
        self._over.set()  # before the lock, for engines that are being made: they look at these, and not at ``_reason``
        if not orderly:
            self.broken.set()
        with self._lock:
            self._reason = self._reason or reason
            engines = list(self._engines)
        for engine in engines:  # without the lock, which other threads need to make or count engines
            engine.abort(reason)

    def close(self) -> None:
        """Close every engine, once nobody uses them any more."""
        for engine in list(self._engines):
            engine.close()
        self._executors.clear()

    def stop_fast_path(self) -> None:
        """Have calls of graphs come to Python, and learn there of the end."""
        if self._fast_path is not None:
            self._fast_path.stop()

    def fast_path_statistics(self) -> dict[str, int]:
        """Number of calls of graphs that have met the others without Python, and of those that have not, in time."""
        return {"met": 0, "left": 0} if self._fast_path is None else self._fast_path.statistics()

    def statistics(self) -> dict[str, dict[str, int | float | str]]:
        """Counters of each engine, by its label."""
        with self._lock:
            return {engine.group.label: engine.statistics() for engine in self._engines}
