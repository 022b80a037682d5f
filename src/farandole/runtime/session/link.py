"""A worker's connections to its controller, for one generation.

    link = Link(assignment, timeout_s=30.0)
    welcome = link.join(hello)
    link.up.send(Leave(welcome.generation))
    link.close()

Three sockets, each with its own reader: ``up`` only sends (any thread), ``control`` belongs to the control thread, and
``orders`` to the thread that leads the negotiated lane.

Cancellation of a wait to join a job, by a signal handler of the waiting process.

    withdrawal = CancelledJoin()
    link = Link(..., withdrawal=withdrawal)      # in the main thread, where it waits for the other ranks
    withdrawal.end_wait()                        # in a handler on top of it: the wait raises ``StartError``

Threads. Everything runs in one thread: the handler runs on top of the wait, between any two lines. An exception raised
by the handler could leave sockets open and locks held. So it interrupts the wait and returns.
"""

from __future__ import annotations

import time
import uuid
from typing import Any, Protocol, final

import msgspec

from farandole.cluster.contact import is_loopback
from farandole.cluster.environment import CONTROLLER
from farandole.control.channel import Dealer
from farandole.control.keys import JobKeys
from farandole.control.messages import ControllerLost, Hello, Notice, Refuse, Welcome, Withdraw
from farandole.control.sockets import Context
from farandole.errors import ControlError, FarandoleError, StartError
from farandole.events import logger
from farandole.runtime.session.control_thread import show


class Wait(Protocol):
    """Wait that can be interrupted."""

    def interrupt(self) -> None:
        """End the wait at once, or prevent it. A signal handler calls this, on top of any line."""


@final
class CancelledJoin:
    """Cancellation of joining a job. ``end_wait`` is called once, before the wait begins or during it."""

    def __init__(self, given: bool = False) -> None:
        self.given = given
        self._wait: Wait | None = None

    def end_wait(self) -> None:
        """End the wait, now and later."""
        self.given = True
        if self._wait is not None:
            self._wait.interrupt()

    def applies_to(self, wait: Wait | None) -> None:
        """Set the wait to interrupt, at once if ``end_wait`` was called; ``None``: the wait is over."""
        self._wait = wait
        if self.given and wait is not None:  # after the assignment: a handler that ran before it found no wait
            wait.interrupt()


CONTROLLER_GRACE_S = 5.0
"""Extra time that a worker waits after its controller's deadline: the controller's error names the missing ranks."""


@final
class ControllerLostError(FarandoleError):
    """The controller is lost, and another one will replace it.

    ``refused``: the controller may have died in the handshake, or the key is wrong; both look the same.
    """

    def __init__(self, text: str, *, refused: bool) -> None:
        super().__init__(text)
        self.refused = refused


@final
class Assignment(msgspec.Struct, frozen=True):
    """Assignment of this process: worker id and job size (0: elastic), its host, the controller's address and key.

    ``is_interactive``: it runs notebook cells, and a user waits for each.
    """

    worker_id: int
    expected: int
    host: str
    controller: str
    key: str
    is_interactive: bool = False


@final
class Link:
    """Connections to the controller; raises ``StartError`` unless they are made within ``timeout_s``.

    A controller on another host that is silent for ``silence_s`` (0: no limit) counts as lost. If lost controllers are
    ``replaced``, ``ControllerLostError`` is raised and the caller may try again. Until ``join`` has returned,
    ``withdrawal`` ends its waits.
    """

    def __init__(
        self,
        assignment: Assignment,
        timeout_s: float,
        silence_s: float = 0.0,
        *,
        replaced: bool = False,
        withdrawal: CancelledJoin | None = None,
    ) -> None:
        self.worker = uuid.uuid4().hex
        self._withdrawal = withdrawal or CancelledJoin()
        self._assignment, self._timeout_s, self._begin_s = assignment, timeout_s, time.monotonic()
        self._replaced = replaced
        self._silence_s = 0.0 if is_loopback(assignment.controller) else silence_s
        self._context = Context()
        self._dealers: list[Dealer] = []
        try:
            keys = self.keys = JobKeys.from_secret(assignment.key)
            self.up, self.control, self.orders = (self._dial(keys, suffix) for suffix in (b"u", b"c", b"o"))
            self._withdrawal.applies_to(self)
            self._connect()
        except BaseException:
            self.close(deliver=self._withdrawal.given)
            raise

    @property
    def worker_id(self) -> int:
        """Id of this worker in the job; in a static job, its rank."""
        return self._assignment.worker_id

    @property
    def controller(self) -> str:
        """Address of the controller."""
        return self._assignment.controller

    @property
    def is_interactive(self) -> bool:
        """True if this worker runs notebook cells, and a user waits for each."""
        return self._assignment.is_interactive

    def join(self, hello: Hello, patience_s: float = 0.0) -> Welcome:
        """Send ``Hello`` and wait for the other ranks; raises ``StartError`` if the job does not form in time.

        The limit is the larger of ``timeout_s`` and ``patience_s``. If an elastic job no longer needs this process, it
        exits with status 0.
        """
        self.up.send(hello)
        waited_s = max(self._timeout_s, patience_s, 0.0) + CONTROLLER_GRACE_S
        answer: Any = None
        until_s = time.monotonic() + waited_s
        try:
            while isinstance(answer := self.control.recv(max(0.0, until_s - time.monotonic())), Notice):
                if self.is_interactive:
                    show(answer.text)
        except ControlError as error:
            text = f"rank {hello.worker_id} on {hello.host} waited for the other ranks: {error}"
            raise self._failure(text) from error
        self._withdrawal.applies_to(None)
        self._require_stay()
        if isinstance(answer, Welcome):
            return answer
        if isinstance(answer, Refuse):
            if answer.orderly:
                logger.info("%s: this process ends", answer.reason)
                raise SystemExit(0)
            raise StartError(answer.reason)
        raise StartError(
            f"rank {hello.worker_id} on {hello.host} called init() and waited {waited_s:g} s for the other ranks "
            f"of {hello.expected}: the controller at {self._assignment.controller} ({CONTROLLER}) did not answer"
            + (f", it said {type(answer).__name__}" if answer is not None else "")
        )

    def _connect(self) -> None:
        self._require_stay()
        try:
            for dealer in self._dealers:  # their handshakes run in parallel
                dealer.flush(max(0.1, self._timeout_s - (time.monotonic() - self._begin_s)))
        except ControlError as error:
            self._require_stay()
            own = self._assignment
            raise self._failure(
                f"rank {own.worker_id} on {own.host} cannot join the job at {own.controller}: {error}"
            ) from error

    def _require_stay(self) -> None:
        """If this process withdraws, tell the controller and raise ``StartError``; no rank then waits for its exit."""
        if self._withdrawal.given:
            worker_id, host = self._assignment.worker_id, self._assignment.host
            self.up.send(Withdraw(worker_id))
            raise StartError(f"rank {worker_id} on {host} was told to end (SIGTERM) before the job was formed")

    def stay(self, generation: int, *, wait: bool = False) -> ControllerLost | None:
        """Message for a controller that replaces this one during ``generation``; ``None`` if none will."""
        return ControllerLost(generation, self._assignment.worker_id, wait) if self._replaced else None

    def close(self, *, deliver: bool = True) -> None:
        """Disconnect; first ``deliver`` queued messages if the controller still exists. Idempotent."""
        self._withdrawal.applies_to(None)
        for dealer in self._dealers:  # waits for the socket's reader
            dealer.close(deliver=deliver)
        self._context.destroy(0)  # ``term`` would wait forever for a socket left open by an exception

    def interrupt(self) -> None:
        """Make the constructor and ``join`` raise ``StartError`` instead of waiting."""
        for dealer in self._dealers:
            dealer.interrupt()

    def _failure(self, text: str) -> FarandoleError:
        """The error to raise: ``ControllerLostError`` if the lost controller will be replaced, or ``StartError``."""
        if self._replaced and any(dealer.lost for dealer in self._dealers):
            return ControllerLostError(text, refused=any(dealer.peer.refused for dealer in self._dealers))
        return StartError(text)

    def _dial(self, keys: JobKeys, suffix: bytes) -> Dealer:
        identity = self.worker.encode() + suffix
        dealer = Dealer(self._assignment.controller, identity, keys, None, self._context, self._silence_s)
        self._dealers.append(dealer)
        return dealer
