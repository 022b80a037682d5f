"""Engines on ``torch.distributed`` process groups, made directly: no global default group is touched.

    engine = GlooEngine(group, exchange)

Gloo is used for what it is good at: connected, asynchronous, point-to-point TCP. The arithmetic is the native core's,
so that every dtype and op exists, float16 accumulates in float32, and the order of reduction is the ranks', as the
contract of ``Engine`` says; Gloo's own all-reduce knows fewer dtypes and rounds float16 between each two ranks.

The members' addresses travel through ``Exchange``, which is authenticated, not through a store with a port of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, final

import msgspec

from farandole import _native
from farandole.collective import Array, ReduceOp
from farandole.engines.engine import Engine, Exchange, Group, Memory, require_served
from farandole.errors import AbortError, CollectiveError, EngineError, StallError

if TYPE_CHECKING:
    import torch

_CONNECT_S = 30.0
_SMALL_BYTES = 32 * 1024
"""Up to here everybody gets everything and reduces it all: one exchange instead of two."""
_BLOCK_BYTES = 32 * 2**20
"""Larger arrays are reduced in pieces of this size, which bounds the scratch memory."""
_SHORTEST_S = 0.001
"""The least time a wait is given, as Gloo takes 0 for ever."""
_SETTLE_S = 1.0
"""How long an operation may take to notice that its connection is gone."""
_REASON_S = 0.25
"""How long a lost connection waits for ``abort`` to say who ended the generation."""


@final
class GlooEngine(Engine):
    """Collectives of host memory over TCP. Each member is connected to each other.

    Gloo cannot interrupt an operation; ``abort`` therefore shuts the group's connections down, which Gloo notices.
    """

    name = "gloo"

    def __init__(self, group: Group, exchange: Exchange) -> None:
        self.group = group
        self._reason: str | None = None
        self._aborted = threading.Event()
        self._failure: tuple[type[CollectiveError], str] | None = None
        self._scratch = _plain(0)
        self._calls = self._bytes_sent = 0
        self._process_group, addresses = _connect_gloo(group, exchange)
        self._connections = _connections(addresses)

    def allocate(self, nbytes: int) -> Memory:
        """Plain zeroed memory: the kernel copies to the socket from anywhere equally fast."""
        return _plain(nbytes)

    def allreduce(self, array: Array, op: ReduceOp, prescale: float = 1.0, postscale: float = 1.0) -> None:
        """Reduce in place: everybody reduces a slice and sends it to all; small arrays are reduced by everybody."""
        require_served(array.dtype, op)
        block = max(1, _BLOCK_BYTES // array.dtype.itemsize)
        for start in range(0, array.count, block):
            piece = array.slice(start, min(block, array.count - start))
            if piece.nbytes * self.group.size <= _SMALL_BYTES:
                self._reduce(piece, [piece] * self.group.size, piece, op, prescale, postscale)
                continue
            slices = _split(piece, _even(piece.count, self.group.size))
            mine = slices[self.group.rank]
            self._reduce(mine, slices, mine, op, prescale, postscale)
            self._swap([mine] * self.group.size, slices)

    def allgather(self, send: Array, recv: Array, counts: Sequence[int]) -> None:
        """Send mine to each, and receive theirs in place."""
        slices = _split(recv, counts)
        _copy(slices[self.group.rank], send)
        self._swap([send] * self.group.size, slices)

    def broadcast(self, array: Array, root: int) -> None:
        """Along a binomial tree: receive from the parent, then send to the children, the largest subtree first."""
        size = self.group.size
        place = (self.group.rank - root) % size
        below = place & -place if place else 1 << (size - 1).bit_length()
        steps = [1 << bit for bit in reversed(range(below.bit_length() - 1))]
        if place:
            self._transfer([], [((place - below + root) % size, array)])
        self._transfer([((place + step + root) % size, array) for step in steps if place + step < size], [])

    def alltoall(self, send: Array, send_counts: Sequence[int], recv: Array, recv_counts: Sequence[int]) -> None:
        """Send and receive all slices at once."""
        outgoing, incoming = _split(send, send_counts), _split(recv, recv_counts)
        _copy(incoming[self.group.rank], outgoing[self.group.rank])
        self._swap(outgoing, incoming)

    def reducescatter(
        self,
        send: Array,
        recv: Array,
        counts: Sequence[int],
        op: ReduceOp,
        prescale: float = 1.0,
        postscale: float = 1.0,
    ) -> None:
        """Send each member its slice, and reduce mine."""
        require_served(send.dtype, op)
        slices = _split(send, counts)
        self._reduce(slices[self.group.rank], slices, recv, op, prescale, postscale)

    def barrier(self) -> None:
        """Hear from everybody."""
        self.gather_small(b"")

    def abort(self, reason: str) -> None:
        """Note why, then shut the connections down."""
        if self._reason is None:
            self._reason = reason
        self._aborted.set()
        self._sever()

    def close(self) -> None:
        """Drop the group, its connections and its threads."""
        self._failure = self._failure or (EngineError, f"the gloo engine of {self.group.label} is closed")
        self._process_group = None
        self._scratch = _plain(0)
        for connection in self._connections:
            connection.close()
        self._connections = []

    def statistics(self) -> dict[str, int | float | str]:
        """Calls and bytes sent besides."""
        return {**super().statistics(), "calls": self._calls, "bytes_sent": self._bytes_sent}

    def _reduce(
        self, mine: Array, outgoing: Sequence[Array], target: Array, op: ReduceOp, prescale: float, postscale: float
    ) -> None:
        """Send ``outgoing[i]`` to member ``i``, receive its part of ``mine``, and reduce all parts into ``target``."""
        room = (mine.nbytes + 63) // 64 * 64
        if self._scratch.nbytes < room * self.group.size:
            self._scratch = _plain(room * self.group.size)
        incoming = [self._scratch.array(mine.dtype, i * room, mine.count) for i in range(self.group.size)]
        self._swap(outgoing, incoming)
        incoming[self.group.rank] = mine
        divisor = self.group.size if op is ReduceOp.AVERAGE else 1
        addresses = [array.address for array in incoming]
        _native.reduce(addresses, target.address, mine.count, mine.dtype, op, prescale, postscale, divisor)

    def _swap(self, outgoing: Sequence[Array], incoming: Sequence[Array]) -> None:
        """Send ``outgoing[i]`` to and receive ``incoming[i]`` from each other member ``i``."""
        rank, size = self.group.rank, self.group.size
        self._transfer(
            [(peer, outgoing[peer]) for peer in ((rank + step) % size for step in range(1, size))],
            [(peer, incoming[peer]) for peer in ((rank - step) % size for step in range(1, size))],
        )

    def _transfer(self, sends: Sequence[tuple[int, Array]], receives: Sequence[tuple[int, Array]]) -> None:
        """Send and receive all at once; nothing empty travels. After an error Gloo touches no array any more."""
        self._check()
        self._calls += 1
        deadline = time.monotonic() + self.group.deadline_s
        running: list[tuple[int, Any]] = []
        peer = 0
        try:
            for start, transfers in ((self._process_group.recv, receives), (self._process_group.send, sends)):
                for peer, array in transfers:
                    if array.nbytes:
                        running.append((peer, start([_tensor(array)], peer, 0)))
            self._bytes_sent += sum(array.nbytes for _, array in sends)
            while running:
                peer, work = running[0]
                work.wait(timedelta(seconds=max(_SHORTEST_S, deadline - time.monotonic())))
                running.pop(0)
        except BaseException as error:
            self._sever()
            for _, work in running:
                with contextlib.suppress(RuntimeError):
                    work.wait(timedelta(seconds=_SETTLE_S))
            self._failure = self._translate(error, self.group.name(peer))
            if not isinstance(error, RuntimeError):
                raise
            raise self._error() from error

    def _translate(self, error: BaseException, peer: str) -> tuple[type[CollectiveError], str]:
        label = self.group.label
        if "timed out" in str(error).lower() and self._reason is None:
            return StallError, f"{peer} did not come to a collective of {label} in {self.group.deadline_s:g} s"
        if not isinstance(error, RuntimeError):
            return EngineError, f"a collective of {label} was interrupted by {type(error).__name__}"
        self._aborted.wait(_REASON_S)
        return EngineError, f"the connection to {peer} in {label} was lost: {str(error).splitlines()[0]}"

    def _check(self) -> None:
        if self._reason is not None or self._failure is not None:
            raise self._error()

    def _error(self) -> CollectiveError:
        if self._reason is not None:
            return AbortError(self._reason)
        assert self._failure is not None
        kind, text = self._failure
        return kind(text)

    def _sever(self) -> None:
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def _connect_gloo(group: Group, exchange: Exchange) -> tuple[Any, list[bytes]]:
    """The process group, and what each member published about its addresses."""
    import torch.distributed as dist

    local = len(set(group.hosts)) == 1
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    make = gloo.create_device
    options._devices = [make(hostname="127.0.0.1" if local else socket.gethostname(), lazy_init=False)]
    options._threads = 1  # one collective at a time
    options._timeout = timedelta(seconds=max(_CONNECT_S, group.deadline_s))
    store = _store_type()(exchange)
    process_group, failure = None, ""
    try:
        process_group = gloo(store, group.rank, group.size, options)
    except RuntimeError as error:
        failure = str(error).splitlines()[0]
    # Nobody goes on, and perhaps closes or aborts, while another still connects.
    for place, said in enumerate(exchange(failure.encode())):
        if said:
            text = f"{group.name(place)} could not connect to the others of {group.label}: {said.decode()}"
            raise EngineError(text)
    return process_group, list(store.values.values())


@functools.cache
def _store_type() -> Any:
    """The class ``ExchangeStore``; made on first use, since its base needs torch."""
    import torch.distributed as dist

    base: Any = dist.Store  # type: ignore[attr-defined,unused-ignore]

    @final
    class ExchangeStore(base):  # type: ignore[misc]
        """What a process group needs of a store: publish, then read what the others published.

        One all-gather serves the whole start: everybody publishes before reading.
        """

        def __init__(self, exchange: Exchange) -> None:
            super().__init__()
            self.values: dict[str, bytes] = {}
            self._exchange: Exchange | None = exchange

        def set(self, key: str, value: bytes) -> None:
            """Publish."""
            self.values[key] = bytes(value)

        def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
            """Gather what all have published, once."""
            del timeout  # the exchange has its own
            if self._exchange is not None and any(key not in self.values for key in keys):
                for said in self._exchange(msgspec.msgpack.encode(self.values)):
                    self.values.update(msgspec.msgpack.decode(said, type=dict[str, bytes]))
                self._exchange = None
            if missing := [key for key in keys if key not in self.values]:
                raise EngineError(f"no member published {missing} before the exchange")

        def get(self, key: str) -> bytes:
            """Read."""
            self.wait([key])
            return self.values[key]

    return ExchangeStore


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


def _plain(nbytes: int) -> Memory:
    owner = (ctypes.c_uint8 * max(1, nbytes))()
    return Memory(ctypes.addressof(owner), nbytes, owner)


def _tensor(array: Array) -> torch.Tensor:
    import torch

    return torch.frombuffer((ctypes.c_uint8 * array.nbytes).from_address(array.address), dtype=torch.uint8)


def _copy(target: Array, source: Array) -> None:
    if target.address != source.address:
        _native.copy(target.address, source.address, source.nbytes)


def _even(count: int, parts: int) -> list[int]:
    return [count // parts + (i < count % parts) for i in range(parts)]


def _split(array: Array, counts: Sequence[int]) -> list[Array]:
    starts = [sum(counts[:i]) for i in range(len(counts))]
    return [array.slice(start, count) for start, count in zip(starts, counts, strict=True)]
