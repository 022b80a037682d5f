"""Server of processes that are forked after their imports: a rank starts in milliseconds.

    with fork_server():                       # once for a whole test run
        assert run_ranks(program, 3) == ...   # its ranks are forks of one process that has imported NumPy and Farandole

Without the block, and for ranks with variables that an interpreter reads at its start (``PYTHON*``, ``LD_*``),
``run_ranks`` starts an interpreter for each rank.

Unlike separate processes, forked ranks share the order of sets of strings, because they have one hash seed, and the
state of ``numpy.random``.
"""

# Processes: the server has no threads, and exits at the end of the socket that it was started with. It is no child of
# the testing process, because tests check and end all their children. A request is one message on that socket, with the
# sockets and files of the rank as descriptors; so only the process that started the server can send requests. A forked
# rank returns from ``_serve`` and exits like any interpreter: it joins its threads, runs its exit handlers and clears
# its modules.
#
# The requesting process holds a socket per rank (``status``): it receives a pidfd, which identifies the process even
# after its pid was reused, and finally the exit status.

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from typing import IO, final

import msgspec

_IMPORTS = ("cloudpickle", "farandole.numpy", "farandole.testing.engine_contract", "numpy")
_READ_AT_START = ("PYTHON", "LD_", "OMP_", "OPENBLAS_")
_LARGEST = 1 << 20
_FIRST_S = 60.0


@final
class _Request(msgspec.Struct, frozen=True):
    """Request for a process; ``_DESCRIPTORS`` names the descriptors that are sent with it."""

    environment: dict[str, str]
    cwd: str


_DESCRIPTORS = ("connection", "output", "status")


@final
class ForkedProcess:
    """Process of a rank, with the methods of ``subprocess.Popen`` that the harness uses."""

    def __init__(self, status: socket.socket) -> None:
        self._status, self.returncode = status, None  # type: tuple[socket.socket, int | None]
        status.settimeout(_FIRST_S)
        number, descriptors, _, _ = socket.recv_fds(status, 8, 1)
        if not number:
            raise RuntimeError("the fork server has ended: what it wrote to standard error says why")
        [self._pidfd] = descriptors
        self.pid = int.from_bytes(number, "little")

    def kill(self) -> None:
        """Send SIGKILL; does nothing to a process that has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status, -N after signal N; raises ``subprocess.TimeoutExpired``."""
        if self.returncode is None:
            self._status.settimeout(timeout)
            try:
                told = self._status.recv(8)
            except TimeoutError:
                raise subprocess.TimeoutExpired(["forked rank"], timeout or 0.0) from None
            if not told:
                raise RuntimeError(f"the fork server ended before its rank in process {self.pid}")
            self.returncode = int.from_bytes(told, "little", signed=True)
        return self.returncode

    def close(self) -> None:
        """Close the descriptors; later calls do nothing."""
        self._status.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


@final
class ForkServer:
    """The server's process, in the process that started it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            paths = [*environment.get("PYTHONPATH", "").split(os.pathsep), *sys.path]
            found = {"PYTHONPATH": os.pathsep.join(filter(None, dict.fromkeys(paths))), "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-m", "farandole.testing.fork_server", str(theirs.fileno())]
            variables = {**os.environ, **environment, **found}
            subprocess.run(command, pass_fds=[theirs.fileno()], env=variables, check=True)

    def start(self, connection: Connection, output: IO[bytes], environment: Mapping[str, str]) -> ForkedProcess:
        """Fork a rank that communicates over ``connection`` and writes to ``output``."""
        request = msgspec.msgpack.encode(_Request(dict(environment), os.getcwd()))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                socket.send_fds(self._socket, [request], [connection.fileno(), output.fileno(), theirs.fileno()])
            return ForkedProcess(ours)
        except BaseException:
            ours.close()
            raise

    def close(self) -> None:
        """End the server."""
        with self._socket:
            self._socket.shutdown(socket.SHUT_WR)
            self._socket.settimeout(_FIRST_S)
            while self._socket.recv(1):
                pass


_running: list[ForkServer] = []


@contextlib.contextmanager
def fork_server(environment: Mapping[str, str] | None = None) -> Iterator[None]:
    """Let ``run_ranks`` fork its ranks while the block runs; ``environment``: variables of the server."""
    server = ForkServer(environment or {})
    _running.append(server)
    try:
        yield
    finally:
        _running.remove(server)
        server.close()


def server_for(environment: Mapping[str, str]) -> ForkServer | None:
    """Return the server of this process, if there is one and ``environment`` can be set after the start."""
    if any(name.startswith(_READ_AT_START) for name in environment):
        return None
    return _running[-1] if _running else None


def _main() -> None:
    """Import the modules of ranks, then fork one rank per request; returns in each rank's process when it is done."""
    if os.fork():
        os._exit(0)
    os.setsid()
    for name in _IMPORTS:
        __import__(name)
    requests = socket.socket(fileno=int(sys.argv[1]))
    if rank := _serve(requests):
        from farandole.testing.rank import serve

        serve(rank)


def _serve(requests: socket.socket) -> Connection | None:
    """Fork until the socket ends: returns None in the server, and the rank's connection in a forked process."""
    ranks: dict[int, tuple[int, socket.socket]] = {}
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor != requests.fileno():
                poll.unregister(descriptor)
                _tell_end(descriptor, *ranks.pop(descriptor))
                continue
            payload, descriptors, _, _ = socket.recv_fds(requests, _LARGEST, len(_DESCRIPTORS))
            if not payload:
                return None
            sys.stdout.flush()
            if (pid := os.fork()) == 0:
                for pidfd, (_, status) in ranks.items():
                    os.close(pidfd)
                    status.close()
                requests.close()
                return _become(msgspec.msgpack.decode(payload, type=_Request), *descriptors)
            status = socket.socket(fileno=descriptors[2])
            os.close(descriptors[0])
            os.close(descriptors[1])
            pidfd = os.pidfd_open(pid)
            ranks[pidfd] = pid, status
            poll.register(pidfd, select.POLLIN)
            with contextlib.suppress(OSError):
                socket.send_fds(status, [pid.to_bytes(8, "little")], [pidfd])


def _tell_end(pidfd: int, pid: int, status: socket.socket) -> None:
    """Send the exit status of a process that has exited to the process that requested it."""
    _, code = os.waitpid(pid, 0)
    os.close(pidfd)
    with status, contextlib.suppress(OSError):
        status.send(os.waitstatus_to_exitcode(code).to_bytes(8, "little", signed=True))


def _become(request: _Request, connection: int, output: int, status: int) -> Connection:
    """Turn a fork of the server into the requested process."""
    os.close(status)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(request.environment)
    return Connection(connection)


if __name__ == "__main__":
    _main()
