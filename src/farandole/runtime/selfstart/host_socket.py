"""Meeting point of a job's processes on one host: a socket's name, which one of them can have at a time.

    name = name_of(secret, "node7", "tcp://10.0.0.1:7000")
    with claim(name) as claimed:                    # None: another one has it
        tell(claimed, "tcp://127.0.0.1:7000")       # when it is readable: somebody asks
    ask(name, "node7", timeout_s=30.0)              # "tcp://127.0.0.1:7000"

The name is free again with the last process that has the descriptor, and nothing is left in any folder.

Binding it is a lock between processes that do not know each other: the kernel lets one have it, and takes it back
however that one ends. The agent of a host inherits the descriptor from the worker that started it, so the name passes
over without a moment in which it is free; others that ask before the agent looks wait in the queue of the socket.

Processes of all users share such names, so nobody else can work this one out: the secret is in it, and the port of the
controller, as some users give all their jobs one secret. What another user's process says all the same is refused.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections.abc import Iterator
from hashlib import blake2b

from farandole.cluster.environment import KEY
from farandole.control.local_peer import is_own, user_of
from farandole.errors import StartError

LOOK_AGAIN_S = 0.02


def name_of(secret: str, host: str, address: str) -> bytes:
    """Name on ``host`` of the job whose controller listens at ``address``; an address of any of its interfaces."""
    port = address.rpartition(":")[2]
    return b"\0farandole-" + blake2b(f"{secret} {host} {port}".encode(), digest_size=16).hexdigest().encode()


@contextlib.contextmanager
def claim(name: bytes) -> Iterator[socket.socket | None]:
    """Take the name, as the sole watcher of this host for this job; ``None`` if another process has it."""
    with socket.socket(socket.AF_UNIX) as claimed:
        try:
            claimed.bind(name)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            yield None
            return
        claimed.listen(1024)  # not later, in the agent: while that is starting, workers of the host ask already
        yield claimed


def tell(claimed: socket.socket, address: str) -> None:
    """Send ``address`` to one process that asks, if it is of this user."""
    with contextlib.suppress(OSError):  # it has given up
        asking, _ = claimed.accept()
        with asking:
            if is_own(asking):
                asking.sendall(address.encode())


def ask(name: bytes, host: str, timeout_s: float) -> str:
    """Ask the process that has the name for its address, once it is there; ``StartError`` after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while (left_s := deadline - time.monotonic()) > 0:
        with socket.socket(socket.AF_UNIX) as asking, contextlib.suppress(OSError):
            asking.settimeout(left_s)
            asking.connect(name)
            if not is_own(asking):
                raise StartError(
                    f"a process of user {user_of(asking)} has the socket by which workers on {host} find their agent: "
                    f"it has seen {KEY} in use before. Set another one for this job, or none"
                )
            if address := asking.recv(4096):  # nothing: it has ended before it looked
                return address.decode()
        time.sleep(LOOK_AGAIN_S)  # between its having the name and its listening
    raise StartError(
        f"the agent of host {host}, which another worker there has started, did not say within {timeout_s:g} s where "
        "it is to be reached: look for its words on standard error, or give it more time with --start-timeout"
    )
