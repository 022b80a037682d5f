"""Choice among several addresses of a controller: the first address that answers with the right key.

    address = first_answering(["tcp://10.0.0.1:7000", "tcp://[fd77::1]:7000", "tcp://login:7000"], keys, timeout_s=15.0)

All addresses are tried at once, so that an unreachable address costs no time; another program's port, or another job,
does not have the key.

Threads. The sockets, the monitors and ``_poll`` belong to the thread that calls ``first_answering``. Each name is
resolved in a thread of its own, because ``getaddrinfo`` may wait for a name server for minutes and cannot be
interrupted: the caller abandons such threads. They append results to ``_Names._found``, a deque, and signal its
``Wakeup``, also after it is closed.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import final

import zmq

from farandole.control.addresses import endpoints
from farandole.control.admission import HANDSHAKE_FAILED, Monitor
from farandole.control.keys import JobKeys
from farandole.control.sockets import Context, client_socket, connect
from farandole.control.wakeup import Wakeup
from farandole.errors import ControlError


def first_answering(addresses: Sequence[str], keys: JobKeys, timeout_s: float, lifeline: int | None = None) -> str:
    """Return the numeric address whose handshake succeeds first.

    Raises ``ControlError`` with all tried addresses if none answers within ``timeout_s``, if the key is refused, or if
    the descriptor ``lifeline`` becomes readable before.
    """
    with contextlib.closing(_Attempts(keys, lifeline)) as attempts:
        for address in addresses:
            attempts.add(address)
        found = attempts.wait(timeout_s)
    if found:
        return found
    tried = ", ".join(addresses)
    if attempts.called_off:
        raise ControlError(f"called off while looking for the controller (tried {tried})")
    if attempts.refused:
        raise ControlError(f"{', '.join(attempts.refused)} answered, but is not of this job (tried {tried})")
    raise ControlError(f"none of the controller's addresses answered within {timeout_s:g} s: {tried}")


@final
class _Attempts:
    """Connecting sockets, each with the monitor that reports the result of its handshake."""

    def __init__(self, keys: JobKeys, lifeline: int | None) -> None:
        self.refused: list[str] = []
        self.called_off = False
        self._keys, self._lifeline = keys, lifeline
        self._context = Context()  # not shared: it ends with these sockets
        self._open: dict[int, tuple[str, zmq.Socket[bytes], Monitor]] = {}
        self._poll = select.poll()
        self._names = _Names()
        self._poll.register(self._names.fd, select.POLLIN)
        if lifeline is not None:
            self._poll.register(lifeline, select.POLLIN)

    def add(self, address: str) -> None:
        """Add ``address`` to the attempts; a host name is resolved first, which may take long."""
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        if not host or not port.isdecimal():
            raise ControlError(f"{address!r} is no address of a controller, such as tcp://10.0.0.1:7000")
        if _is_literal(host.strip("[]")):
            self._connect(address)
        else:
            self._names.look_up(host, int(port))

    def wait(self, timeout_s: float) -> str:
        """Return the first address that answers, or "" if none does in time."""
        deadline = time.monotonic() + timeout_s
        while not self.called_off and (left_s := deadline - time.monotonic()) > 0:
            for fd, _ in self._poll.poll(left_s * 1000):
                if fd == self._lifeline:
                    self.called_off = True
                elif fd == self._names.fd:
                    for address in self._names.found():
                        self._connect(address)
                elif self._has_answered(fd):
                    return self._open[fd][0]
        return ""

    def close(self) -> None:
        """Give up all attempts."""
        for _, link, monitor in self._open.values():
            monitor.close()
            link.close(0)  # no lingering: nothing was sent, and an unreachable address would block term()
        self._context.destroy(0)
        self._names.close()

    def _connect(self, address: str) -> None:
        if any(address == known for known, _, _ in self._open.values()):
            return
        link = client_socket(self._context, self._keys)
        monitor = Monitor(link)  # before it connects, or the end of its handshake might be missed
        self._open[monitor.fd] = address, link, monitor
        self._poll.register(monitor.fd, select.POLLIN)
        connect(link, address)

    def _has_answered(self, fd: int) -> bool:
        address, _, monitor = self._open[fd]
        events = [event for event, _ in monitor.drain()]
        if any(event & HANDSHAKE_FAILED for event in events) and address not in self.refused:
            self.refused.append(address)  # and go on: another address may lead to the right controller
        return zmq.EVENT_HANDSHAKE_SUCCEEDED in events


@final
class _Names:
    """Name resolution in threads of its own, because the wait for a name server cannot be interrupted."""

    def __init__(self) -> None:
        self._wakeup = Wakeup()
        self._found: deque[str] = deque()

    @property
    def fd(self) -> int:
        """Descriptor that is readable when there are new addresses."""
        return self._wakeup.fd

    def look_up(self, name: str, port: int) -> None:
        """Resolve ``name``; ``fd`` becomes readable when its addresses are known."""
        # A daemon: a name server that does not answer must not delay the exit of the process.
        threading.Thread(target=self._resolve, args=(name, port), name="farandole-name", daemon=True).start()

    def found(self) -> Iterator[str]:
        """Yield the new addresses."""
        self._wakeup.clear()  # before the deque is emptied: a later result signals again
        while self._found:
            yield self._found.popleft()

    def close(self) -> None:
        """Close the descriptor; threads that still resolve a name end by themselves."""
        self._wakeup.close()

    def _resolve(self, name: str, port: int) -> None:
        try:
            answers = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return
        self._found.extend(endpoints(port, [str(answer[4][0]) for answer in answers]))
        self._wakeup.signal()


def _is_literal(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            socket.inet_pton(family, host)
            return True
    return False
