"""The engines of one session: one for each process set of the negotiated lane, and those of the planned lanes.

crews = Crews(topology, "shm", share, deadline_s=600.0)
crews.executor(0, ranks=[0, 1]).perform(order, mine)
crews.close()
"""

from __future__ import annotations

import dataclasses
import socket
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import final

from farandole.engines.engine import Engine, Group, Rendezvous, Share
from farandole.engines.factory import make
from farandole.engines.silence import Lookout
from farandole.runtime.lanes.executor import Executor
from farandole.topology import Topology

BY_SOCKETS = ("shm", "tcp", "hybrid+tcp")
"""The engines whose members reach each other by TCP; those of one host always do."""


@final
class EnginePool:
    """Makes engines when they are first needed, in the same order on all members. Any thread may abort.

    ``address``, ``silence_s`` and ``on_silence`` are what every ``Group`` is told.
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
    ) -> None:
        self._topology, self._engine, self._share, self._deadline_s = topology, engine, share, deadline_s
        self._address, self._silence_s, self._on_silence = address, silence_s, on_silence
        self.broken = threading.Event()
        """Set when the generation ends otherwise than by ``shutdown()``."""
        self._lock = threading.RLock()  # a signal handler may abort while its thread is in here
        self._engines: weakref.WeakSet[Engine] = weakref.WeakSet()  # a lane that is gone takes its engine along
        self._executors: dict[int, Executor] = {}
        self._labels: Counter[str] = Counter()
        self._reason = ""
        self._over = threading.Event()

    def executor(self, process_set: int, ranks: Sequence[int]) -> Executor:
        """The executor of a process set; the first call is collective. Only the thread that leads the lane calls it."""
        found = self._executors.get(process_set)
        if found is None:
            engine = self.engine(ranks, f"process set {process_set}")
            found = self._executors[process_set] = Executor(engine, ranks)
        return found

    def engine(self, ranks: Sequence[int], label: str, name: str = "") -> Engine:
        """A new engine among ``ranks``. Collective: each member calls it as often as the others with this label.

        ``name`` is that of another engine than the job's.
        """
        group, rendezvous = self._gather(ranks, label)
        engine = make(name or self._engine, group, rendezvous)
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

    def connect(self) -> tuple[dict[int, socket.socket], Lookout]:
        """A connection to each other rank, and who looks after them. Collective."""
        from farandole.engines.mesh import connect  # many jobs do without

        group, rendezvous = self._gather(range(self._topology.size), "the direct lane")
        group = dataclasses.replace(group, broken=self._over)  # nobody closes what is not made yet
        connections = connect(group, rendezvous)
        return connections, Lookout.of(group, connections)

    def _gather(self, ranks: Sequence[int], label: str) -> tuple[Group, Rendezvous]:
        """What a new engine among ``ranks`` is made of."""
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
        )
        return group, Rendezvous(self._share, key, ranks)

    def drop(self, process_set: int) -> None:
        """A process set is gone: close its engine."""
        executor = self._executors.pop(process_set, None)
        if executor is not None:
            executor.engine.close()

    def abort(self, reason: str, orderly: bool = False) -> None:
        """Wake whoever waits in an engine, now and later; ``orderly`` if nobody is to blame for the end."""
        self._over.set()
        if not orderly:
            self.broken.set()
        with self._lock:
            self._reason = self._reason or reason
            engines = list(self._engines)
        for engine in engines:
            engine.abort(reason)

    def close(self) -> None:
        """Close every engine; nobody uses them any more."""
        for engine in list(self._engines):
            engine.close()
        self._executors.clear()

    def statistics(self) -> dict[str, dict[str, int | float | str]]:
        """What each engine counts, by its label."""
        with self._lock:
            return {engine.group.label: engine.statistics() for engine in self._engines}
