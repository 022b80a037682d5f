"""Run a function in N real processes that can exchange data, without a launcher.

    from farandole.testing.harness import run_ranks
    from farandole.testing.rank import RankContext

    def program(member: RankContext, word: str) -> int:
        return len(member.exchange(word.encode()))

    assert run_ranks(program, 3, "hello") == [3, 3, 3]

An exception of a rank is raised with its traceback; a rank that hangs is killed at the time-out, with stacks of all.
"""

# One thread here serves all ranks: ``_Hub`` waits for all of them at once, and answers an exchange when all its ranks
# have requested it. Ranks get the harness's own deadline, ``until_s``: CLOCK_MONOTONIC is one clock for all processes
# of a machine, also on the hosts of a ``Cluster``, which have no time namespaces.
#
# A rank does not exit with its result: it waits for ``leave``, which is sent to all ranks together. To its peers'
# engines, a rank that exits at once would look like a rank that died.

from __future__ import annotations

import contextlib
import inspect
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from typing import IO, Any, TypeAlias, final

import cloudpickle
import msgspec

from farandole.control import messages, task_messages
from farandole.control.message import Message
from farandole.testing.fork_server import ForkedProcess, server_for
from farandole.testing.rank import RankConfig, outcome

_TAIL_BYTES = 8000
_EXIT_S = 60.0
_START_S = 60.0

Start: TypeAlias = Callable[[int, list[str], Mapping[str, str], IO[bytes]], Sequence["subprocess.Popen[Any]"]]
"""Function that starts a number of processes with a command, an environment and a file for their output.

It returns one process per rank, to whose command it adds the rank, or one process for all ranks.
"""


Process: TypeAlias = "subprocess.Popen[Any] | ForkedProcess"
"""Process of a rank, or of the launcher that started the rank."""


@final
class RanksFailedError(AssertionError):
    """Some ranks raised, died or hung; the text holds each one's traceback, exit code or stack."""


@final
class Died:
    """Replaces the result of a rank that was allowed to die; ``code`` is as in ``subprocess``."""

    def __init__(self, code: int) -> None:
        self.code = code

    def __repr__(self) -> str:
        return f"Died({self.code})"


def run_ranks(
    program: Callable[..., Any],
    size: int,
    *args: Any,
    timeout_s: float = 120.0,
    environment: Mapping[str, str] | None = None,
    may_die: Collection[int] = (),
    start: Start | None = None,
    hosts: Sequence[str] = (),
) -> list[Any]:
    """Call ``program(member, *args)`` in ``size`` new processes and return the results, by rank.

    Arguments and results are pickled; ``program`` may be any function that cloudpickle can pickle, also from a test's
    module. ``start``: another function to start the processes. ``hosts``: the hosts on which it starts them, by rank.
    Raises ``RanksFailedError`` if a rank raises, exits without a result (ranks in ``may_die`` return ``Died`` instead),
    or exceeds ``timeout_s``.
    """
    sys.audit("farandole.testing.ranks", size)
    with tempfile.TemporaryDirectory(prefix="farandole-ranks-") as directory, contextlib.ExitStack() as held:
        ranks = (
            _start_elsewhere(start, size, directory, environment or {}, held)
            if start
            else [_start(rank, directory, environment or {}, held) for rank in range(size)]
        )
        payload, until_s = _pickle(program, args), time.monotonic() + timeout_s
        for rank in ranks:
            rank.send(msgspec.msgpack.encode(RankConfig(rank.rank, size, until_s, payload, list(hosts))))
        _Hub(ranks, until_s).serve()
        return _results(ranks, may_die, timeout_s)


def _pickle(program: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Pickle by value, because other processes cannot import the module of a test by name."""
    module = inspect.getmodule(program)
    if module is None or module.__name__.partition(".")[0] in ("farandole", "__main__"):
        return bytes(cloudpickle.dumps((program, args)))
    cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps((program, args)))
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _start(rank: int, directory: str, environment: Mapping[str, str], held: contextlib.ExitStack) -> _Rank:
    """Start the process of one rank, which inherits a socket and is ended with ``held``."""
    ours, theirs = map(held.enter_context, Pipe())
    output = held.enter_context(open(f"{directory}/rank-{rank}.txt", "w+b"))  # noqa: SIM115 (held)
    process: Process
    with theirs:  # closed here after the rank has it: else the rank's exit would not close the connection
        if server := server_for(environment):
            process = held.enter_context(
                contextlib.closing(server.start(theirs, output, {**_environment(), **environment}))
            )
        else:
            process = subprocess.Popen(
                _command(str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**_environment(), **environment},
            )
    held.callback(_end, process)
    return _Rank(rank, ours, process, output)


def _start_elsewhere(
    start: Start, size: int, directory: str, environment: Mapping[str, str], held: contextlib.ExitStack
) -> list[_Rank]:
    """Let ``start`` start the processes, which connect to a socket in ``directory`` and are ended with ``held``."""
    address = f"{directory}/socket"
    output = held.enter_context(open(f"{directory}/output.txt", "w+b"))  # noqa: SIM115 (held)
    connections: dict[int, Connection] = {}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(size)
        listener.settimeout(_START_S)
        processes = start(size, _command(address), {**_environment(), **environment}, output)
        for process in processes:
            held.callback(_end, process)
        try:
            while len(connections) < size:
                connection = _connected(listener, held)
                rank = int(connection.recv_bytes())
                connections[len(connections) if rank < 0 else rank] = connection
        except (TimeoutError, EOFError) as error:
            output.seek(0)
            text = output.read().decode(errors="replace")
            why = f"in {_START_S:g} s" if isinstance(error, TimeoutError) else "before one ended"
            raise RanksFailedError(f"{len(connections)} of {size} ranks came {why}:\n{text}") from None
    return [_Rank(rank, connections[rank], processes[min(rank, len(processes) - 1)], output) for rank in range(size)]


def _connected(listener: socket.socket, held: contextlib.ExitStack) -> Connection:
    """Connection of the next rank that connects; it has sent its rank, or has exited."""
    connected, _ = listener.accept()
    connected.setblocking(True)  # ``Connection`` reads the bare descriptor, which has to block
    connection = held.enter_context(Connection(connected.detach()))
    if not connection.poll(_START_S):
        raise TimeoutError
    return connection


def _end(process: Process) -> None:
    """Kill a process if it still runs; children of a launcher end with it."""
    process.kill()  # does nothing if it has exited
    process.wait()


def _command(socket_path: str) -> list[str]:
    return [sys.executable, "-m", "farandole.testing.rank", socket_path]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "1"}


@final
class _Rank:
    """One rank: the socket to it, its result, if it has sent one, and its process or its launcher's."""

    def __init__(self, rank: int, connection: Connection, process: Process, output: IO[bytes]) -> None:
        self.rank, self.connection, self.process, self._output = rank, connection, process, output
        self.result: task_messages.TaskResult | None = None
        self.hung_up = False

    def send(self, frame: bytes) -> None:
        """Send a message to the rank; if the rank has exited, its exit code shows that."""
        with contextlib.suppress(OSError):
            self.connection.send_bytes(frame)

    def tail(self) -> str:
        """The end of the output of the rank."""
        self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, self._output.tell() - _TAIL_BYTES))
        return self._output.read().decode(errors="replace")


@final
class _Hub:
    """Answers the exchanges of all ranks until each rank has a result or has exited, or until the deadline."""

    def __init__(self, ranks: Sequence[_Rank], deadline: float) -> None:
        self._ranks, self._deadline = ranks, deadline
        self._open: dict[Connection, _Rank] = {r.connection: r for r in ranks}
        self._waiting: dict[tuple[str, tuple[int, ...]], dict[int, bytes]] = {}
        self._gone: set[int] = set()

    def serve(self) -> None:
        """Run until each rank has a result or has exited, or until the deadline."""
        while self._open and (left := self._deadline - time.monotonic()) > 0:
            for connection in wait(list(self._open), left):
                self._read(self._open[connection])  # type: ignore[index]

    def _read(self, rank: _Rank) -> None:
        try:
            message = messages.decode(rank.connection.recv_bytes())
        except (EOFError, OSError):
            self._drop(rank)
            return
        if isinstance(message, messages.Exchange):
            self._waiting.setdefault((message.key, tuple(message.ranks)), {})[rank.rank] = message.payload
            self._answer()
        elif isinstance(message, task_messages.TaskResult):
            rank.result = message
            self._drop(rank)

    def _drop(self, rank: _Rank) -> None:
        del self._open[rank.connection]
        rank.hung_up = True
        self._gone.add(rank.rank)
        self._answer()

    def _answer(self) -> None:
        for (key, members), came in list(self._waiting.items()):
            missing = [r for r in members if r not in came]
            if missing and not self._gone.intersection(missing):
                continue
            reply: Message = messages.Exchanged(1, key, [came[r] for r in members if r in came])
            if missing:
                # Ranks in this exchange get an abort: they would wait for a rank that has exited.
                reply = messages.Abort(1, f"the exchange {key!r} cannot complete: ranks {missing} have ended")
            for rank in came:
                self._ranks[rank].send(messages.encode(reply))
            del self._waiting[key, members]


def _results(ranks: Sequence[_Rank], may_die: Collection[int], timeout_s: float) -> list[Any]:
    """Send ``leave`` to all ranks, then collect their results; raises if a rank failed."""
    values: list[Any] = []
    failed: list[str] = []
    for rank in ranks:
        rank.send(b"leave")
    for rank in ranks:
        if rank.result is None and not rank.hung_up:
            failed.append(f"rank {rank.rank} had no result after {timeout_s} s; it wrote:\n{rank.tail()}")
            continue
        try:
            code = rank.process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            failed.append(f"rank {rank.rank} has a result but does not exit; it wrote:\n{rank.tail()}")
            continue
        if rank.result is not None and rank.result.ok and code == 0:
            values.append(outcome(rank.result))
        elif rank.result is not None and not rank.result.ok:
            failed.append(f"rank {rank.rank} raised:\n{rank.result.payload.decode()}{rank.tail()}")
        elif rank.rank in may_die:
            values.append(Died(code))
        else:
            failed.append(f"rank {rank.rank} ended with {code} before or after its result; it wrote:\n{rank.tail()}")
    if failed:
        raise RanksFailedError("\n".join(failed))
    return values
