"""Meeting point of a job's processes on one host: a socket's name, which one of them can have at a time.

    with claim(secret, "node7") as claimed:         # None: another one has it
        tell(claimed, "tcp://127.0.0.1:7000")       # when it is readable: somebody asks
    ask(secret, "node7", timeout_s=30.0)            # "tcp://127.0.0.1:7000"

The name is free again with the last process that has the descriptor, and nothing is left in any folder.

Binding it is a lock between processes that do not know each other: the kernel lets one have it, and takes it back
however that one ends. The agent of a host inherits the descriptor from the worker that started it, so the name passes
over without a moment in which it is free; others that ask before the agent looks wait in the queue of the socket.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections.abc import Iterator
from hashlib import blake2b

from farandole.errors import StartError

LOOK_AGAIN_S = 0.02


@contextlib.contextmanager
def claim(secret: str, host: str) -> Iterator[socket.socket | None]:
    """Take the name, as the sole watcher of this host for this job; ``None`` if another process has it."""
    with socket.socket(socket.AF_UNIX) as claimed:
        try:
            claimed.bind(_name(secret, host))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            yield None
            return
        claimed.listen(1024)  # not later, in the agent: while that is starting, workers of the host ask already
        yield claimed


def tell(claimed: socket.socket, address: str) -> None:
    """Send ``address`` to one process that asks."""
    with contextlib.suppress(OSError):  # it has given up
        asking, _ = claimed.accept()
        with asking:
            asking.sendall(address.encode())


def ask(secret: str, host: str, timeout_s: float) -> str:
    """Ask the process that has the name for its address, once it is there; ``StartError`` after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while (left_s := deadline - time.monotonic()) > 0:
        with socket.socket(socket.AF_UNIX) as asking, contextlib.suppress(OSError):
            asking.settimeout(left_s)
            asking.connect(_name(secret, host))
            if address := asking.recv(4096):  # nothing: it has ended before it looked
                return address.decode()
        time.sleep(LOOK_AGAIN_S)  # between its having the name and its listening
    raise StartError(
        f"the agent of host {host}, which another worker there has started, did not say within {timeout_s:g} s where "
        "it is to be reached: look for its words on standard error, or give it more time with --start-timeout"
    )


def _name(secret: str, host: str) -> bytes:
    return b"\0farandole-" + blake2b(f"{secret} {host}".encode(), digest_size=16).hexdigest().encode()
