"""Engines on ``torch.distributed`` process groups, made directly: no global default group is touched.

    engine = GlooEngine(group, exchange)

Gloo is used for what it is good at: connected, asynchronous, point-to-point TCP; ``pairwise`` does the rest. What the
members of a process group must know of each other travels through ``Exchange``, which is authenticated, not through a
store with a port of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, final

from farandole.collective import Array
from farandole.engines.engine import Exchange, Group
from farandole.engines.pairwise import PairwiseEngine
from farandole.engines.reach import reachable_address
from farandole.engines.transport import Parcel, Transport, interruptible
from farandole.errors import CollectiveError, EngineError

if TYPE_CHECKING:
    import torch

CONNECT_S = 30.0
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
        self._connections = _connections(list(store.values.values()))

    def _move(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> None:
        deadline = time.monotonic() + self.group.deadline_s
        running: list[tuple[int, Any]] = []
        peer = self.group.rank
        try:
            for start, parcels in ((self._process_group.recv, receives), (self._process_group.send, sends)):
                for peer, array in parcels:
                    running.append((peer, start([_tensor(array)], peer, 0)))
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
    if lost:
        raise EngineError(f"not all of {group.label} could connect to the others. {'; '.join(lost)}")
    return process_group


def _make_gloo(group: Group, exchange: Exchange, store: Any) -> Any:
    import torch.distributed as dist

    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    make = gloo.create_device
    options._devices = [make(hostname=reachable_address(group, exchange), lazy_init=False)]
    options._threads = 1  # one collective at a time
    options._timeout = timedelta(seconds=CONNECT_S)
    return gloo(store, group.rank, group.size, options)


def _connections(addresses: Sequence[bytes]) -> list[socket.socket]:
    """Duplicates of this process's connections to the members, whose socket addresses appear in ``addresses``.

    Gloo's listener is left alone: it ends the process when it is shut down.
    """
    found = []
    for candidate in _sockets():
        names = list(_names(candidate))
        if len(names) == 2 and any(name in address for name in names for address in addresses):
            found.append(candidate)
        else:
            candidate.close()
    return found


def _sockets() -> Iterator[socket.socket]:
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):
                yield socket.socket(fileno=os.dup(int(entry)))


def _names(connection: socket.socket) -> Iterator[bytes]:
    """The own and, when connected, the peer's address, as the kernel lays a ``sockaddr`` out."""
    for ask in (connection.getsockname, connection.getpeername):
        with contextlib.suppress(OSError):
            name = ask()
            if connection.family == socket.AF_INET:
                yield struct.pack("=H", socket.AF_INET) + struct.pack(">H", name[1]) + socket.inet_aton(name[0])
            elif connection.family == socket.AF_INET6:
                head = struct.pack("=H", socket.AF_INET6) + struct.pack(">HI", name[1], name[2])
                yield head + socket.inet_pton(socket.AF_INET6, name[0].partition("%")[0])


def _tensor(array: Array) -> torch.Tensor:
    import torch

    return torch.frombuffer((ctypes.c_uint8 * array.nbytes).from_address(array.address), dtype=torch.uint8)
