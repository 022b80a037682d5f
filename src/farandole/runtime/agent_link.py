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
from typing import TYPE_CHECKING, Any, final

import farandole
from farandole.control import process
from farandole.control.agent_messages import AGENT, AgentHello, Alive, Branch, DumpStack, Severed, Stack
from farandole.control.channel import Dealer
from farandole.control.keys import JobKeys
from farandole.control.message import Message
from farandole.errors import ControlError
from farandole.runtime.hosts import HEARTBEATS

if TYPE_CHECKING:
    from farandole.runtime.relay import Relay


@final
class AgentLink:
    """Connects without waiting. ``silence_s=0`` is for the host of the controller: there, nobody's silence counts.

    The ``relay`` of the host, in a job that needs a tree, is served and closed together with it. ``name`` is given
    where a host may have one agent after another, see ``Root.name``.
    """

    def __init__(
        self, address: str, keys: JobKeys, host: str, silence_s: float, relay: Relay | None = None, name: str = ""
    ) -> None:
        self._dealer = Dealer(address, AGENT + (name or host).encode(), keys, timeout_s=None, silence_s=silence_s)
        self._pause_s = silence_s / HEARTBEATS
        self._next_s = time.monotonic() + self._pause_s
        self._relay, self._severed = relay, False
        self.send(AgentHello(host, os.getpid(), farandole.__version__, tuple(relay.addresses) if relay else ()))

    @property
    def fds(self) -> tuple[int, ...]:
        """When one of these is readable, or ``deadline_s`` has come, call ``receive``, then ``beat``."""
        return self._dealer.fds + (self._relay.fds if self._relay else ())

    @property
    def deadline_s(self) -> float | None:
        """When ``receive`` or ``beat`` has something to do."""
        relay_s = self._relay.deadline_s if self._relay else None
        moments = [moment for moment in (self._next_s if self._pause_s else None, relay_s) if moment is not None]
        return min(moments, default=None)

    def send(self, message: Message) -> None:
        """Queue ``message`` for the controller."""
        self._dealer.send(message)

    def receive(self) -> Iterator[Any]:
        """Everything that is there, but for requests that are answered here. Never blocks."""
        self._serve_relay()
        while (message := self._next()) is not None:
            if isinstance(message, DumpStack):
                threading.Thread(target=self._dump, args=(message,), daemon=True).start()
            elif isinstance(message, Branch) and self._relay:
                self._relay.attach(message.addresses or (self._dealer.address,), message.host)
                self._severed = False
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
        if self._relay:
            self._relay.close()
            self._relay = None
        self._dealer.close(deliver=deliver)

    def _next(self) -> Any:
        try:
            return self._dealer.recv(0.0)
        except ControlError as error:
            if self._relay:
                self._relay.abort(str(error))
            raise

    def _serve_relay(self) -> None:
        if self._relay:
            self._relay.serve()
            if self._relay.lost and not self._severed:
                self._severed = True
                self.send(Severed(self._relay.lost))

    def _dump(self, message: DumpStack) -> None:
        try:
            text = process.dump_stack(message.pid, message.signal, message.fd)
        except ControlError as error:
            text = str(error)
        with contextlib.suppress(ControlError):  # the job has ended meanwhile
            self.send(Stack(message.place, text))
