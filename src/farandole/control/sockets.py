"""The ZeroMQ sockets of the control plane: their options, and a cheap look whether one is readable.

socket = client_socket(context, keys)
connect(socket, address)
if is_readable(socket): frame = socket.recv(NOBLOCK)
"""

# Threads. A context has threads of libzmq's own, which the first socket starts; where the system refuses one, libzmq
# aborts the process. So as many threads of Python are started before, and held until all are there: one after the other
# would fit into room for one. They only wait, and are joined before the context is made. Between that and the first
# socket another process may take the room: then libzmq aborts after all.

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
"""As plain integers: ZeroMQ's own enumerations cost microseconds in the path of every message."""

LINGER_MS = 1000

MOST_DESCRIPTORS = 2**16
"""More than a job has workers; some programs are slow where the limit is a thousand million."""

LONGEST_WAIT_S = 86400.0
"""The kernel takes no time-outs of more than some weeks; who asks for more waits again and again."""

CUT_BYTES = 2 * LIMIT_BYTES
"""A peer that announces a frame above this is cut off before memory is spent on it; up to it, the frame is dropped."""


THREADS = 3
"""Of a context two (for connections, and for closed sockets), and one of whoever reads its sockets."""


@final
class Context(zmq.Context[zmq.Socket[bytes]]):
    """ZeroMQ context that nobody waits for when it is forgotten.

    An exception that comes between any two lines (Ctrl-C) may leave it to the garbage collector with sockets that are
    open, or in use by other threads. Terminating it there would wait for them for ever.
    Raises ``StartError`` where its threads could not start, for which libzmq would abort the process.
    """

    def __init__(self, *given: Any, **options: Any) -> None:
        """Make a context, or the shadow of one, as ``zmq.Context`` does."""
        require_threads(THREADS)
        super().__init__(*given, **options)

    def __del__(self) -> None:
        """Leave everything to the end of the process."""


def require_threads(number: int) -> None:
    """Start so many threads and end them; raises ``StartError`` with the limit where the system refuses one."""
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
    """A socket that will be let in; not connected yet."""
    socket = new_socket(context, zmq.DEALER)
    socket.curve_serverkey = keys.server.public
    socket.curve_publickey = keys.client.public
    socket.curve_secretkey = keys.client.secret
    return socket


def connect(socket: zmq.Socket[bytes], address: str) -> None:
    """Connect to ``address``, be the one before of IPv4 or IPv6: a socket of IPv4 would try for ever, and say nothing.

    Raises ``zmq.ZMQError`` for what is no address.
    """
    socket.ipv6 = "[" in address
    socket.connect(address)


def new_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    """A socket whose queues know no limit in number: a message is never dropped while its peer lives."""
    socket = context.socket(kind)
    socket.sndhwm = socket.rcvhwm = 0
    socket.linger = LINGER_MS
    socket.maxmsgsize = CUT_BYTES
    return socket


def allow_descriptors() -> None:
    """Raise the soft limit of this process: strangers at an open port must not use up what workers need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def is_readable(socket: zmq.Socket[bytes]) -> bool:
    """True if a message is there. Like any use of the socket, asking takes in the edge of its descriptor."""
    return int(socket.getsockopt(EVENTS)) & POLLIN != 0
