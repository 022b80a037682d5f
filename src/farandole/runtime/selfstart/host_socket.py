"""Meeting point of a job's processes on one host: the name of a Unix socket, held by one of them at a time.

    name = name_of(secret, "node7", "tcp://10.0.0.1:7000")
    with claim(name) as claimed:                    # None: another process has it
        tell(claimed, "tcp://127.0.0.1:7000")       # when it is readable: a process has connected
    ask(name, "node7", timeout_s=30.0)              # "tcp://127.0.0.1:7000"

The name (abstract, no file) is free again when the last process with the descriptor has exited.

Binding it is a lock between unrelated processes: the kernel gives it to one process, and frees it however that process
ends. The agent of a host inherits the descriptor from the worker that started it, so the name is never free in between;
workers that connect before the agent accepts wait in the socket's backlog.

All users share the namespace, so other users must not be able to guess the name: it is a hash of the secret, and of the
controller's port, because some users give all their jobs one secret. An address from another user's process is refused.
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
    """Name on ``host`` for the job whose controller listens at ``address``, on any of its interfaces."""
    port = address.rpartition(":")[2]
    return b"\0farandole-" + blake2b(f"{secret} {host} {port}".encode(), digest_size=16).hexdigest().encode()


@contextlib.contextmanager
def claim(name: bytes) -> Iterator[socket.socket | None]:
    """Bind the name, as the only watcher of this host for this job; ``None`` if another process has it."""
    with socket.socket(socket.AF_UNIX) as claimed:
        try:
            claimed.bind(name)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            yield None
            return
        claimed.listen(1024)  # here and not in the agent: workers connect while it starts
        yield claimed


def send_address(claimed: socket.socket, address: str) -> None:
    """Send ``address`` to one connecting process, if it belongs to this user."""
    with contextlib.suppress(OSError):  # the process has given up
        asking, _ = claimed.accept()
        with asking:
            if is_own(asking):
                asking.sendall(address.encode())


def receive_address(name: bytes, host: str, timeout_s: float) -> str:
    """Get the address from the process that holds the name; raises ``StartError`` after ``timeout_s``."""
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
            if address := asking.recv(4096):  # empty: the process exited before it replied
                return address.decode()
        time.sleep(LOOK_AGAIN_S)  # it may have bound the name and not listen yet
    raise StartError(
        f"the agent of host {host}, which another worker there has started, did not say within {timeout_s:g} s where "
        "it is to be reached: look for its words on standard error, or give it more time with --start-timeout"
    )
