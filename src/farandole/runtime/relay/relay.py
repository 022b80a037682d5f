"""Relay of a host: its workers, and relays of other hosts, connect to it instead of to the controller.

    relay = Relay(keys, "node7", silence_s=3.0)
    poll.register(fd, select.POLLIN) for fd in relay.fds
    relay.attach(branch.addresses, branch.host)     # reply of the controller to AgentHello(relay=relay.addresses)
    while True:
        poll.poll(until relay.deadline_s)
        relay.serve()
        if relay.lost: ...                          # all workers below have been told; tell the controller

A thin loop around ``Relaying``, driven by the loop of the host's agent. No call blocks.

That loop calls everything, in one thread, which alone may touch the ZeroMQ sockets. Finding the parent takes up to
``DIAL_S``, during which workers and children must be served, so each ``attach`` runs ``_dial`` in its own thread. It
puts its result in the queue ``_answers`` and wakes the loop, which makes the socket; it may end after ``close``.
"""

from __future__ import annotations

import queue
import select
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, final

import msgspec

from farandole.control.addresses import everywhere, own_endpoints
from farandole.control.agent_messages import RELAY, RelayParentLost, SetRelayParent
from farandole.control.channel import Dealer, Router
from farandole.control.dial import first_answering
from farandole.control.keys import JobKeys
from farandole.control.message import Message
from farandole.control.messages import LIMIT_BYTES
from farandole.control.wakeup import Wakeup
from farandole.errors import ControlError
from farandole.runtime.relay.agent_link import AgentLink
from farandole.runtime.relay.combining import HOLD_S
from farandole.runtime.relay.relaying import Relaying

DIAL_S = 30.0
"""Longest time in which a parent must answer."""

KEPT_BYTES = LIMIT_BYTES
"""Most bytes queued for a parent: ``Hello`` messages of a few hundred bytes, of far more workers than a job has."""


@final
class Relay:
    """Relay that listens from the beginning; upward messages are queued until the parent has answered."""

    def __init__(
        self, keys: JobKeys, host: str, silence_s: float, interface: str = "", ports: str = "", hold_s: float = HOLD_S
    ) -> None:
        self.lost = ""
        """Reason why the parent was lost; "" while there is a parent, or ``attach`` looks for one."""
        self._keys, self._host, self._silence_s = keys, host, silence_s
        self._router = Router(keys, everywhere(ports))
        port = self._router.address.rpartition(":")[2]
        self.address = f"tcp://127.0.0.1:{port}"
        """Address for workers of this host."""
        self.addresses = own_endpoints(self._router.address, interface)
        """Addresses for relays of other hosts; some may be unreachable from there."""
        self._relaying = Relaying(self._router.send, self._send_up, time.monotonic, hold_s)
        self._parent: Dealer | None = None
        self._parent_host = ""
        self._kept: list[Message] = []
        self._kept_bytes = 0
        self._answers: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self._wakeup = Wakeup()
        self._epoll = select.epoll()
        for fd in (self._router.fd, self._wakeup.fd):
            self._epoll.register(fd, select.EPOLLIN)

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptor to poll: if it is readable, or at ``deadline_s``, call ``serve``."""
        return (self._epoll.fileno(),)

    @property
    def deadline_s(self) -> float | None:
        """Time (``time.monotonic``) at which ``serve`` has something to do even without messages."""
        return self._relaying.deadline_s

    def attach(self, addresses: Sequence[str], parent: str = "") -> None:
        """Connect to the relay of the host ``parent`` (default: the controller), at the address that answers first."""
        self.lost, self._parent_host = "", parent
        # A daemon: an agent that exits meanwhile does not wait for the timeout.
        threading.Thread(target=self._dial, args=(addresses,), name="farandole-dial", daemon=True).start()

    def serve(self) -> None:
        """Handle all messages that have arrived, and pass them on."""
        self._wakeup.clear()  # before the queue is read: a later answer signals again
        while not self._answers.empty():
            self._connect(*self._answers.get())
        self._router.wait(0.0)
        self._take_in()
        self._flush()
        while self._take_in():  # a send may have consumed ZeroMQ's signal for new messages
            self._flush()

    def abort(self, reason: str) -> None:
        """Tell all workers and relays below that the controller is lost."""
        self._relaying.abort(reason)
        self._wakeup.signal()  # wakes ``serve``: a send may have consumed ZeroMQ's signal

    def statistics(self) -> dict[str, int]:
        """Counters of messages by source and destination."""
        return {**self._router.statistics(), **self._relaying.statistics()}

    def close(self) -> None:
        """Deliver queued messages, and disconnect."""
        if self._parent is not None:
            self._parent.close()
        self._epoll.close()
        self._router.close()
        self._wakeup.close()

    # -- upwards ------------------------------------------------------------------------------------------------------

    def _take_in(self) -> bool:
        came = False
        while (got := self._router.recv()) is not None:
            self._relaying.from_below(*got)
            came = True
        try:
            while self._parent is not None and (message := self._parent.recv(0.0)) is not None:
                self._relaying.from_above(message)
                came = True
        except ControlError as error:
            self._lose(str(error))
        return came

    def _dial(self, addresses: Sequence[str]) -> None:
        try:
            # First the answer, then the signal: in the other order the loop could wake and find the queue empty.
            self._answers.put((first_answering(addresses, self._keys, DIAL_S), ""))
        except ControlError as error:
            self._answers.put(("", str(error)))
        self._wakeup.signal()

    def _connect(self, address: str, error: str) -> None:
        if error:
            self._lose(error)
            return
        if self._parent is not None:  # a second answer: the last one counts
            self._part()
        identity = RELAY + self._host.encode()
        # timeout_s=None: no blocking handshake in the loop; ``_dial`` has already seen a handshake succeed.
        self._parent = Dealer(address, identity, self._keys, timeout_s=None, silence_s=self._silence_s)
        for fd in self._parent.fds:
            self._epoll.register(fd, select.EPOLLIN)
        for message in self._kept:
            self._parent.send(message)
        self._forget_kept()

    def _lose(self, reason: str) -> None:
        self._part()
        self._forget_kept()  # hellos of refused workers: the next parent must not admit them
        above = f"host {self._parent_host}" if self._parent_host else "the controller"
        self.lost = f"host {self._host} was connected through {above} to the others, and is cut off: {reason}"
        self.abort(self.lost)

    def _part(self) -> None:
        """Close the connection to the parent, if there is one."""
        if self._parent is not None:
            for fd in self._parent.fds:  # before the numbers are reused
                self._epoll.unregister(fd)
            self._parent.close(deliver=False)  # the parent is lost
            self._parent = None

    def _flush(self) -> None:
        self._relaying.flush()
        if self._kept_bytes > KEPT_BYTES:  # not in ``_send_up``: ``_lose`` clears what ``flush`` iterates
            self._lose(f"{self._kept_bytes} bytes wait for that connection to be made, and {KEPT_BYTES} may")

    def _send_up(self, message: Message) -> None:
        if self._parent is not None:
            self._parent.send(message)
        else:  # also between two parents: a dropped ``Hello`` would leave its worker waiting for its timeout
            self._kept.append(message)
            self._kept_bytes += len(msgspec.msgpack.encode(message))  # without a limit: ``_flush`` checks it

    def _forget_kept(self) -> None:
        self._kept, self._kept_bytes = [], 0


@final
class RelayedAgentLink(AgentLink):
    """``AgentLink`` with a ``relay``, to which the workers of the host connect. It closes the relay, too."""

    def __init__(
        self, relay: Relay, address: str, keys: JobKeys, host: str, silence_s: float, ports: tuple[int, ...] = ()
    ) -> None:
        super().__init__(address, keys, host, silence_s, ports=ports, relays=tuple(relay.addresses))
        self.worker_address = relay.address
        self._relay, self._is_loss_told = relay, False

    @property
    def fds(self) -> tuple[int, ...]:
        """See ``AgentLink``."""
        return () if self._is_closed else super().fds + self._relay.fds

    @property
    def deadline_s(self) -> float | None:
        """See ``AgentLink``."""
        moments = [] if self._is_closed else [super().deadline_s, self._relay.deadline_s]
        return min((moment for moment in moments if moment is not None), default=None)

    def receive(self) -> Iterator[Any]:
        """See ``AgentLink``."""
        if self._is_closed:
            return
        self._relay.serve()
        if self._relay.lost and not self._is_loss_told:
            self._is_loss_told = True
            self.send(RelayParentLost(self._relay.lost))
        for message in super().receive():
            if isinstance(message, SetRelayParent):
                self._relay.attach(message.addresses or (self._dealer.address,), message.host)
                self._is_loss_told = False  # the loss of the new parent is reported, too
            else:
                yield message

    def close(self, *, deliver: bool = True) -> None:
        """See ``AgentLink``."""
        if not self._is_closed:
            self._relay.close()
        super().close(deliver=deliver)

    def _next(self) -> Any:
        try:
            return super()._next()
        except ControlError as error:
            self._relay.abort(str(error))  # now: workers below wait for orders
            raise
