"""One rank of a test: its context, and exchanges with other ranks before there is an engine.

    def program(member: RankContext) -> list[bytes]:
        return member.exchange(b"hello from %d" % member.rank)

``python -m farandole.testing.rank SOCKET [RANK]`` is the process that ``harness.run_ranks`` starts for each rank; it
gets its program over the inherited socket with the number ``SOCKET``, or the socket at that path.

Threads. The main thread runs the program, which may start others, and each thread may exchange. ``_Wire._lock`` is held
from the request until its answer has arrived, because answers are not dispatched to threads: a second reader would take
the answer of the first. So threads of a rank must call their exchanges in the same order on all ranks. The main thread
reads the first message and writes the last one without the lock: before it returns, a program must end threads that
exchange.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection
from typing import Any, final

import msgspec

from farandole.control import messages, task_messages
from farandole.engines.engine import Group, Rendezvous, Share
from farandole.errors import CollectiveError, StartError

_PR_SET_PDEATHSIG = 1


@final
@dataclass(slots=True)
class RankContext:
    """Context of a rank's program. ``exchange``: the all-gather among all ranks with which engines start."""

    rank: int
    size: int
    share: Share
    hosts: Sequence[str] = ()
    _used: int = 0

    def exchange(self, payload: bytes) -> list[bytes]:
        """All-gather among all ranks; blocks until all ranks have called it."""
        self._used += 1
        return self.share(f"all.{self._used}", tuple(range(self.size)), payload)

    def exchange_among(self, label: str, ranks: tuple[int, ...] | None = None) -> Rendezvous:
        """Rendezvous among ``ranks`` (default: all) only; ``label`` must be new, and the same on each of them."""
        return Rendezvous(self.share, label, tuple(range(self.size)) if ranks is None else ranks)

    def group(self, label: str = "test", ranks: tuple[int, ...] | None = None, deadline_s: float = 20.0) -> Group:
        """Group of ``ranks`` (default: all) for an engine."""
        members = tuple(range(self.size)) if ranks is None else ranks
        hosts = tuple(self.hosts[rank] if self.hosts else "localhost" for rank in members)
        return Group(members.index(self.rank), members, hosts, generation=1, label=label, deadline_s=deadline_s)


@final
class RankConfig(msgspec.Struct, frozen=True):
    """The first message to the process of a rank."""

    rank: int
    size: int
    until_s: float
    program: bytes
    hosts: list[str]


@final
class _Wire:
    """The rank's end of the socket to the harness; one exchange at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._lock = connection, threading.Lock()

    def share(self, key: str, ranks: Sequence[int], payload: bytes) -> list[bytes]:
        with self._lock:
            self._connection.send_bytes(messages.encode(messages.Exchange(1, key, list(ranks), payload)))
            answer = messages.decode(self._connection.recv_bytes())
        if isinstance(answer, messages.Exchanged):
            return answer.payloads
        raise StartError(getattr(answer, "reason", f"unexpected {answer!r}"))


def main() -> None:
    """Run one rank in a process of its own."""
    serve(_connect(*sys.argv[1:]))


def serve(connection: Connection) -> None:
    """Run one rank: read the job, run it, report its result or its exception."""
    # If the parent has died before this line, no signal is sent; then the end of the socket ends this process.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    job = msgspec.msgpack.decode(connection.recv_bytes(), type=RankConfig)
    faulthandler.enable()
    # A second before the harness kills: ``until_s`` is on the clock that all processes of a machine share.
    faulthandler.dump_traceback_later(max(0.1, job.until_s - 1.0 - time.monotonic()))
    member = RankContext(job.rank, job.size, _Wire(connection).share, job.hosts)
    try:
        program, args = pickle.loads(job.program)  # noqa: S301 (from the parent, over an inherited socket)
        result = task_messages.TaskResult(job.rank, True, pickle.dumps(program(member, *args)))
    except BaseException:  # ``sys.exit`` and pytest's exceptions for failures and skips are results as well
        result = task_messages.TaskResult(job.rank, False, traceback.format_exc().encode())
    connection.send_bytes(messages.encode(result))
    connection.recv_bytes()  # leave together: a rank that exits early must not look like a lost peer to an engine
    sys.stdout.flush()
    sys.stderr.flush()
    if not result.ok:
        os._exit(0)  # a failed program may have left threads that would keep the interpreter from ending


def _connect(place: str, rank: str = "-1") -> Connection:
    """Connect over an inherited socket, by number, or to a socket at a path, to which it sends the rank, or -1."""
    if place.isdecimal():
        return Connection(int(place))
    connection = Client(place, "AF_UNIX")
    connection.send_bytes(rank.encode())
    return connection


def error_of(call: Callable[[], object]) -> str:
    """Kind and text of the collective error that ``call`` raises; "" if it raises none."""
    try:
        call()
    except CollectiveError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def outcome(result: task_messages.TaskResult) -> Any:
    """Unpickle the result of the program; only for results of processes that this process started."""
    return pickle.loads(result.payload)  # noqa: S301 (from a child, over an inherited socket)


if __name__ == "__main__":
    main()
