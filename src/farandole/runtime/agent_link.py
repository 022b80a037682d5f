"""An agent's connection to the controller: its hello, its heartbeats, and the stacks it is asked for.

    link = AgentLink("tcp://10.0.0.1:7000", keys, "hostA", silence_s=3.0)
    poll.register(fd, select.POLLIN) for fd in link.fds
    while True:
        poll.poll(until link.deadline_s)
        for message in link.receive(): ...
        link.beat()

Raises ``ControlError`` from ``receive`` once the controller is gone, or silent for ``silence_s``.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from typing import Any, final

import farandole
from farandole.control import process
from farandole.control.agent_messages import AGENT, AgentHello, Alive, DumpStack, Stack
from farandole.control.channel import Dealer
from farandole.control.keys import JobKeys
from farandole.control.message import Message
from farandole.errors import ControlError
from farandole.runtime.hosts import HEARTBEATS


@final
class AgentLink:
    """Connects without waiting. ``silence_s=0`` is for the host of the controller: there, nobody's silence counts."""

    def __init__(self, address: str, keys: JobKeys, host: str, silence_s: float) -> None:
        self._dealer = Dealer(address, AGENT + host.encode(), keys, timeout_s=None, silence_s=silence_s)
        self._pause_s = silence_s / HEARTBEATS
        self._next_s = time.monotonic() + self._pause_s
        self.send(AgentHello(host, os.getpid(), farandole.__version__))

    @property
    def fds(self) -> tuple[int, ...]:
        """When one of these is readable, or ``deadline_s`` has come, call ``receive``, then ``beat``."""
        return self._dealer.fds

    @property
    def deadline_s(self) -> float | None:
        """When ``beat`` has something to do."""
        return self._next_s if self._pause_s else None

    def send(self, message: Message) -> None:
        """Queue ``message`` for the controller."""
        self._dealer.send(message)

    def receive(self) -> Iterator[Any]:
        """Everything that is there, but for requests that are answered here. Never blocks."""
        while (message := self._dealer.recv(0.0)) is not None:
            if isinstance(message, DumpStack):
                threading.Thread(target=self._dump, args=(message,), daemon=True).start()
            else:
                yield message

    def beat(self) -> None:
        """Tell the controller that this host is there, if it is time to."""
        now = time.monotonic()
        if self._pause_s and now >= self._next_s:
            self._next_s = now + self._pause_s
            self.send(Alive())

    def close(self, *, deliver: bool = True) -> None:
        """Deliver what was sent, unless there is nobody to deliver it to, and disconnect. Idempotent."""
        self._dealer.close(deliver=deliver)

    def _dump(self, message: DumpStack) -> None:
        try:
            text = process.dump_stack(message.pid, message.signal, message.fd)
        except ControlError as error:
            text = str(error)
        with contextlib.suppress(ControlError):  # the job has ended meanwhile
            self.send(Stack(message.place, text))
