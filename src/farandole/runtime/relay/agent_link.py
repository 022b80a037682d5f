"""Connection of an agent to the controller: its ``AgentHello``, heartbeats, and requested stacks.

    link = AgentLink("tcp://10.0.0.1:7000", keys, "hostA", silence_s=3.0)
    poll.register(fd, select.POLLIN) for fd in link.fds
    while True:
        poll.poll(until link.deadline_s)
        for message in link.receive(): ...
        link.beat()

``receive`` raises ``ControlError`` after the controller is lost, or was silent for ``silence_s``. If another controller
will replace it, as in elastic jobs, the link goes on after ``renew``.

The agent's loop calls everything, in one thread; only ``_dump`` runs in its own thread for each requested stack.
Reading a stack takes seconds if the process is stopped, and heartbeats delayed that long would make the controller give
up the whole host. Such a thread uses only ``Dealer.send``, which any thread may call, and which raises after ``close``:
therefore no field of the link has a lock, and ``_dump`` must not touch any.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from farandole.control import process
from farandole.control.agent_messages import (
    AGENT,
    AgentHello,
    Alive,
    DumpStack,
    LeaseOffer,
    Stack,
    Started,
)
from farandole.control.channel import Dealer
from farandole.control.exits import WorkerExited
from farandole.control.keys import JobKeys
from farandole.control.message import Message
from farandole.errors import ControlError
from farandole.runtime.coordination.host_liveness import HEARTBEATS
from farandole.version import __version__


class AgentLink:
    """Link that connects without blocking. ``silence_s=0``: no heartbeats, for the controller's own host.

    ``name``: for a host that may have several agents in succession, see ``Root.name``; ``lent``: the offer of the agent
    of a lease; ``relays``: addresses of the host's relay, in a job that needs a tree (``RelayedAgentLink``).
    """

    def __init__(
        self,
        address: str,
        keys: JobKeys,
        host: str,
        silence_s: float,
        name: str = "",
        lent: LeaseOffer | None = None,
        ports: tuple[int, ...] = (),
        relays: tuple[str, ...] = (),
    ) -> None:
        self._dealer = Dealer(address, AGENT + (name or host).encode(), keys, timeout_s=None, silence_s=silence_s)
        self._silence_s, self._pause_s = silence_s, silence_s / HEARTBEATS
        self._next_s = time.monotonic() + self._pause_s
        self._is_closed = False
        self.worker_address = address
        """Address at which workers of this host reach the controller."""
        self._host, self._lent = host, lent
        self._lost_s: float | None = None
        """Time at which the controller was lost; ``None`` while there is one."""
        self._patience_s, self._elsewhere = 0.0, False
        self.send(AgentHello(host, os.getpid(), __version__, relays, lent=lent, ports=ports))

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors to poll: if one is readable, or at ``deadline_s``, call ``receive``, then ``beat``."""
        return () if self._is_closed else self._dealer.fds

    @property
    def deadline_s(self) -> float | None:
        """Time at which ``receive`` or ``beat`` has something to do."""
        if self._is_closed:
            return None
        moments = (self._next_s if self._pause_s else None, self._given_up_s)
        return min((moment for moment in moments if moment is not None), default=None)

    @property
    def may_come_back(self) -> bool:
        """False after the link has waited too long for another controller."""
        until_s = self._given_up_s
        return until_s is None or time.monotonic() < until_s

    def send(self, message: Message) -> None:
        """Queue ``message`` for the controller; raises ``ControlError`` after ``close``."""
        self._dealer.send(message)

    def receive(self) -> Iterator[Any]:
        """Yield the messages that have arrived, except those handled here. Never blocks."""
        while not self._is_closed and (message := self._next()) is not None:
            if isinstance(message, DumpStack):
                # A daemon: an agent that must exit does not wait for the stack of a stopped process.
                threading.Thread(target=self._dump, args=(message,), daemon=True).start()
            else:
                yield message

    @property
    def address(self) -> str:
        """Address of the controller; "" while not connected."""
        return self._dealer.address if self._dealer.peer.connected and self._lost_s is None else ""

    def renew(
        self,
        patience_s: float,
        running: Sequence[Started],
        ended: Sequence[WorkerExited],
        *,
        elsewhere: bool = False,
        address: str = "",
    ) -> None:
        """After ``receive`` has raised: wait for another controller, and report the state of the workers to it.

        The wait is limited to ``patience_s``, and to ``silence_s`` if the controller's host does not answer, unless the
        next controller may run ``elsewhere``. Call this again when its ``address`` is known.
        """
        self._dealer.renew(address)
        self._patience_s, self._elsewhere = patience_s, elsewhere
        # Kept from the first loss until a handshake succeeds: attempts that fail must not extend the wait.
        self._lost_s = time.monotonic() if self._lost_s is None else self._lost_s
        self.send(AgentHello(self._host, os.getpid(), __version__, (), tuple(running), tuple(ended), self._lent))

    def beat(self) -> None:
        """Send a heartbeat if it is due."""
        now = time.monotonic()
        if self._pause_s and now >= self._next_s and not self._is_closed:
            self._next_s = now + self._pause_s  # not _next_s + pause: missed heartbeats are not made up
            self.send(Alive())

    def close(self, *, deliver: bool = True) -> None:
        """Disconnect; first ``deliver`` queued messages. Idempotent."""
        self._is_closed = True
        self._dealer.close(deliver=deliver)

    @property
    def _given_up_s(self) -> float | None:
        """Time at which the wait for another controller ends; ``None`` while there is one."""
        if self._lost_s is None:
            return None
        is_cut_off = self._silence_s > 0 and not self._dealer.peer.reached and not self._elsewhere
        return self._lost_s + (self._silence_s if is_cut_off else self._patience_s)

    def _next(self) -> Any:
        message = self._dealer.recv(0.0)
        if self._dealer.peer.connected:
            self._lost_s = None
        if not self.may_come_back:
            where = self._dealer.address
            raise ControlError(f"the controller at {where} is lost, and no other controller replaced it in time")
        return message

    def _dump(self, message: DumpStack) -> None:
        try:
            text = process.dump_stack(message.pid, message.signal, message.fd)
        except ControlError as error:
            text = str(error)
        with contextlib.suppress(ControlError):  # the job has ended meanwhile
            self.send(Stack(message.worker_id, text))
