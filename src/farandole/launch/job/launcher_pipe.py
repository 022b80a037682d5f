"""Pipe between the launcher of an elastic job and its child, the controller, and the messages on that pipe.

    ours, theirs = LauncherPipe.pair()
    ours.send(StartAgent("b", "b/2"))                # in one process
    for message in theirs.receive(): ...            # in the other, when theirs.fd is readable; PipeClosed() is last

The launcher owns what must outlive a controller: the children that start agents, the terminal's signals, the journal.
It never blocks on a controller, which may hang: while the launcher's end ``is_behind``, its loop polls for writability
and calls ``flush``. The controller's end blocks while the pipe is full: it may request a thousand agents at once.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator
from typing import TypeAlias, final

import msgspec

LIMIT_BYTES = 2**17
"""Longest message; the longest ones hold the last lines of failed workers."""


class PipeRequest(msgspec.Struct, frozen=True, tag=True):
    """Base of all messages."""


@final
class Listening(PipeRequest, frozen=True):
    """The controller listens at this ZeroMQ address."""

    address: str


@final
class StartAgent(PipeRequest, frozen=True):
    """Start an agent on a host. The agent identifies itself as ``name``; no other agent ever has that name."""

    host: str
    name: str


@final
class AbandonHost(PipeRequest, frozen=True):
    """End the child that is, or that started, this agent, because its host is lost."""

    name: str


@final
class LentHostGone(PipeRequest, frozen=True):
    """The agent of a leased host has exited, or was given up; the next controller refuses this host, too."""

    host: str


@final
class Decided(PipeRequest, frozen=True):
    """Result of a job that is ending, for the next controller: it did not receive the workers' last output."""

    status: int
    words: str


@final
class Finished(PipeRequest, frozen=True):
    """The job is over: its exit status, and why the status is not 0."""

    status: int
    words: str


@final
class Ping(PipeRequest, frozen=True):
    """Check that the controller's loop still runs; the controller sends the ``Ping`` back."""


@final
class Signal(PipeRequest, frozen=True):
    """Signal that the launcher received: it ends the job, or is to be passed on to the workers.

    The controller sends it back after passing it on; until then the launcher repeats it to the next controller.
    """

    number: int


@final
class AgentSaid(PipeRequest, frozen=True):
    """Last line written by the child that is, or starts, this agent."""

    name: str
    text: str


@final
class AgentEnded(PipeRequest, frozen=True):
    """End of the child that was, or had started, this agent; ``code`` is as in ``AgentProcess``."""

    name: str
    code: int
    why: str


@final
class PipeClosed(PipeRequest, frozen=True):
    """The other end is closed."""


PipeMessage: TypeAlias = (
    Listening
    | StartAgent
    | AbandonHost
    | LentHostGone
    | Decided
    | Finished
    | Ping
    | Signal
    | AgentSaid
    | AgentEnded
    | PipeClosed
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(PipeMessage)


@final
class LauncherPipe:
    """One end of the pipe. Messages are whole and in order. With ``waits``, ``send`` blocks while the pipe is full."""

    def __init__(self, end: socket.socket, *, waits: bool) -> None:
        self._socket = end
        # Per call, not per socket: the end that blocks in ``send`` must not block in ``receive``.
        self._flags = 0 if waits else socket.MSG_DONTWAIT
        self._unsent: deque[bytes] = deque()

    @classmethod
    def pair(cls) -> tuple[LauncherPipe, LauncherPipe]:
        """Both ends: the launcher's and its controller's."""
        # SOCK_SEQPACKET keeps messages whole and, unlike SOCK_DGRAM, reports that the other end is closed.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours, waits=False), cls(theirs, waits=True)

    @property
    def fd(self) -> int:
        """Descriptor that is readable when ``receive`` has a message."""
        return self._socket.fileno()

    def send(self, message: PipeMessage) -> None:
        """Send a message, or queue it; the message is lost if the other end is closed."""
        self._unsent.append(_encoder.encode(message))
        self.flush()

    @property
    def is_behind(self) -> bool:
        """True while messages wait for the other end to read."""
        return bool(self._unsent)

    def flush(self) -> None:
        """Send queued messages until the pipe is full."""
        while self._unsent:
            try:
                self._socket.send(self._unsent[0], self._flags)
            except BlockingIOError:
                return
            except OSError:  # the other end is closed: ``receive`` reports that
                self._unsent.clear()
                return
            self._unsent.popleft()

    def receive(self) -> Iterator[PipeMessage]:
        """Yield the messages that have arrived. Never blocks."""
        while True:
            try:
                frame = self._socket.recv(LIMIT_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ConnectionError:
                frame = b""
            # No message is empty, so an empty frame is the end of the stream.
            yield _decoder.decode(frame) if frame else PipeClosed()
            if not frame:
                return

    def close(self) -> None:
        """Close this end. Idempotent."""
        self._socket.close()
