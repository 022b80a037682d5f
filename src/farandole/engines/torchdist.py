"""Engines on ``torch.distributed`` process groups, made directly: no global default group is touched.

    engine = GlooEngine(group, exchange)

Gloo is used for what it is good at: connected, asynchronous, point-to-point TCP; ``pairwise`` does the rest. What the
members of a process group must know of each other travels through ``Exchange``, which is authenticated, not through a
store with a port of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, final

from farandole.collective import Array
from farandole.engines.connections import connections, to_other_hosts
from farandole.engines.engine import Exchange, Group
from farandole.engines.pairwise import PairwiseEngine
from farandole.engines.reach import out_of_reach, reachable_address
from farandole.engines.silence import Lookout, limit_s
from farandole.engines.transport import Parcel, Transport, interruptible
from farandole.errors import CollectiveError, EngineError

if TYPE_CHECKING:
    import torch

CONNECT_S = 30.0
_CONNECT_TRIES = 5
"""How often Gloo tries a connection, each time for as long as it was told."""
_SHORTEST_S = 0.001
"""The least time a wait is given, as Gloo takes 0 for ever."""
_SETTLE_S = 1.0
"""How long an operation may take to notice that its connection is gone."""
_REASON_S = 0.25
"""How long a lost connection waits for ``abort`` to say who ended the generation."""


@final
class GlooEngine(PairwiseEngine):
    """Collectives of host memory over TCP. Each member is connected to each other."""

    name = "gloo"

    def __init__(self, group: Group, exchange: Exchange) -> None:
        super().__init__(group, GlooTransport(group, exchange))


@final
class GlooTransport(Transport):
    """Gloo's sends and receives.

    Gloo cannot interrupt an operation; ``abort`` therefore shuts the group's connections down, which Gloo notices.
    """

    def __init__(self, group: Group, exchange: Exchange) -> None:
        super().__init__(group)
        from farandole.engines.exchange_store import ExchangeStore

        store = ExchangeStore(exchange)
        self._process_group = connect(group, exchange, store, lambda: _make_gloo(group, exchange, store))
        hosts = {address: group.hosts[int(key.rpartition("/")[2])] for key, address in store.values.items()}
        self._connections = connections(list(hosts))
        leaving = to_other_hosts(self._connections, hosts, group.hosts[group.rank])
        self._lookout = Lookout(leaving, group.silence_s, group.on_silence)

    def _move(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> None:
        deadline = time.monotonic() + self.group.deadline_s
        running: list[tuple[int, Any]] = []
        peer = self.group.rank
        try:
            for start, parcels in ((self._process_group.recv, receives), (self._process_group.send, sends)):
                for peer, array in parcels:
                    running.append((peer, start([_tensor(array)], peer, 0)))
            with self._lookout.waiting():
                while running:
                    peer, work = running[0]
                    work.wait(timedelta(seconds=max(_SHORTEST_S, deadline - time.monotonic())))
                    running.pop(0)
        except BaseException as error:
            self._interrupt()
            for _, work in running:
                with contextlib.suppress(RuntimeError):
                    work.wait(timedelta(seconds=_SETTLE_S))
            failure = self._translate(error, peer)
            if not isinstance(error, RuntimeError):
                raise
            raise failure from error

    def _translate(self, error: BaseException, peer: int) -> CollectiveError:
        label = self.group.label
        if not isinstance(error, RuntimeError):
            return self.failure(EngineError, f"a collective of {label} was interrupted by {type(error).__name__}")
        if "timed out" in str(error).lower() and self.reason is None:
            return self.stalled(peer)
        self.aborted.wait(_REASON_S)
        why = str(error).splitlines()[0]
        return self.failure(EngineError, f"the connection to {self.group.name(peer)} in {label} was lost: {why}")

    def _interrupt(self) -> None:
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _release(self, clean: bool) -> None:
        self._lookout.close()
        self._process_group = None
        for connection in self._connections:
            connection.close()
        self._connections = []


def connect(group: Group, exchange: Exchange, store: Any, make: Callable[[], Any]) -> Any:
    """The process group that ``make`` makes of ``store``; raises ``EngineError`` on all members if one has none.

    ``store`` is ``None`` for a group whose members meet later, by its first collective.
    """
    process_group, failure = None, ""
    try:
        process_group = interruptible(group, "a process group", CONNECT_S + group.deadline_s, make)
    except (RuntimeError, OSError) as error:
        if group.broken.is_set():
            raise
        failure = str(error).splitlines()[0]
    if store is not None:
        store.meet()
    # Nobody goes on, and perhaps closes or aborts, while another still connects.
    lost = [f"{group.name(place)}: {said.decode()}" for place, said in enumerate(exchange(failure.encode())) if said]
    if not lost:
        return process_group
    cut = [] if store is None else out_of_reach(group, exchange, limit_s(group.silence_s))
    for host in cut:
        group.on_silence(host)
    own = f"{group.name(group.rank)} does not reach {' and '.join(cut)}" if cut else ""
    why = [said.decode() for said in exchange(own.encode()) if said]
    raise EngineError(f"not all of {group.label} could connect to the others. {'; '.join(why or lost)}")


def _make_gloo(group: Group, exchange: Exchange, store: Any) -> Any:
    import torch.distributed as dist

    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    make = gloo.create_device
    options._devices = [make(hostname=reachable_address(group, exchange), lazy_init=False)]
    options._threads = 1  # one collective at a time
    options._timeout = timedelta(seconds=CONNECT_S / _CONNECT_TRIES)
    return gloo(store, group.rank, group.size, options)


def _tensor(array: Array) -> torch.Tensor:
    import torch

    return torch.frombuffer((ctypes.c_uint8 * array.nbytes).from_address(array.address), dtype=torch.uint8)
