"""The ZeroMQ sockets of the control plane: their options, and a cheap test whether one is readable.

socket = client_socket(context, keys)
connect(socket, address)
if is_readable(socket): frame = socket.recv(NOBLOCK)
"""

# Threads. A context has threads of libzmq, which the first socket starts; if the system refuses one, libzmq aborts the
# process. So the same number of Python threads is started before, all alive at once, because started one after the
# other they would need the room of only one. They only wait, and are joined before the context is made. Between that
# and the first socket another process may use up the limit: then libzmq still aborts.

from __future__ import annotations

import resource
import threading
from typing import Any, final

import zmq

from farandole.control.keys import JobKeys
from farandole.control.messages import LIMIT_BYTES
from farandole.errors import StartError

NOBLOCK, SNDMORE, RCVMORE = int(zmq.NOBLOCK), int(zmq.SNDMORE), int(zmq.RCVMORE)
EVENTS, POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)
"""Plain integers: the enumerations of pyzmq cost microseconds for every message."""

LINGER_MS = 1000

MOST_DESCRIPTORS = 2**16
"""More than a job has workers; some programs are slow if the limit is 10^9."""

LONGEST_WAIT_S = 86400.0
"""Longest single wait: the kernel accepts timeouts of some weeks at most; longer waits are repeated."""

CUT_BYTES = 2 * LIMIT_BYTES
"""ZeroMQ disconnects a peer that announces a larger frame, before allocating it; other oversized frames are dropped."""


THREADS = 3
"""Two threads of the context (for connections, and for closed sockets), and one of the reader of its sockets."""


@final
class Context(zmq.Context[zmq.Socket[bytes]]):
    """ZeroMQ context that is not terminated when it is garbage-collected.

    An exception between any two lines (Ctrl-C) may leave it to the garbage collector with sockets that are open, or in
    use by other threads. Terminating it there would wait for these sockets forever.
    Raises ``StartError`` if its threads could not start, where libzmq would abort the process.
    """

    def __init__(self, *given: Any, **options: Any) -> None:
        """Make a context, or the shadow of one, as ``zmq.Context`` does."""
        require_threads(THREADS)
        super().__init__(*given, **options)

    def __del__(self) -> None:
        """Do nothing: the exit of the process frees the context."""


def require_threads(number: int) -> None:
    """Start ``number`` threads and end them; raises ``StartError`` with the limit if the system refuses one."""
    end, started = threading.Event(), list[threading.Thread]()
    try:
        for _ in range(number):
            thread = threading.Thread(target=end.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError:
        raise StartError(
            f"this process may start no more threads, of which its connections need {number}; your limit of processes "
            f"and threads is {resource.getrlimit(resource.RLIMIT_NPROC)[0]}: raise it (ulimit -u 4096, or pids.max of "
            "a container), or end others of yours (ps -Lu $USER)"
        ) from None
    finally:
        end.set()
        for thread in started:
            thread.join()


def client_socket(context: zmq.Context[zmq.Socket[bytes]], keys: JobKeys) -> zmq.Socket[bytes]:
    """Make a socket with the job's keys; not connected yet."""
    socket = new_socket(context, zmq.DEALER)
    socket.curve_serverkey = keys.server.public
    socket.curve_publickey = keys.client.public
    socket.curve_secretkey = keys.client.secret
    return socket


def connect(socket: zmq.Socket[bytes], address: str) -> None:
    """Connect to ``address`` with the right address family: an IPv4 socket would try an IPv6 address forever, silently.

    Raises ``zmq.ZMQError`` for an invalid address.
    """
    socket.ipv6 = "[" in address
    socket.connect(address)


def new_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    """Make a socket with unlimited queues: no message is dropped while its peer lives."""
    socket = context.socket(kind)
    socket.sndhwm = socket.rcvhwm = 0
    socket.linger = LINGER_MS
    socket.maxmsgsize = CUT_BYTES
    return socket


def allow_descriptors() -> None:
    """Raise the soft limit of descriptors: connections of strangers must not use up those that workers need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def is_readable(socket: zmq.Socket[bytes]) -> bool:
    """True if a message is ready. Like any use of the socket, this call consumes the edge of its descriptor."""
    return int(socket.getsockopt(EVENTS)) & POLLIN != 0
