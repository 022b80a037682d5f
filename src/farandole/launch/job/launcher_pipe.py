"""Messages between the launcher of an elastic job and its controller, a child of it, and the pipe that carries them.

    ours, theirs = LauncherPipe.pair()
    ours.send(StartAgent("b", "b/2"))                # in one process
    for message in theirs.receive(): ...            # in the other, when theirs.fd is readable; PipeClosed() comes last

The launcher has what must outlive a controller: the children that start agents, the terminal's signals, the journal.
It never waits for a controller, which may hang; so ``flush`` its end where that ``is_behind`` and can be written to. A
controller does wait, if it says much at once: it may send for a thousand agents.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator
from typing import TypeAlias, final

import msgspec

LIMIT_BYTES = 2**17
"""Longest message; the longest there is holds the last words of some workers."""


class PipeRequest(msgspec.Struct, frozen=True, tag=True):
    """Base of all messages."""


@final
class Listening(PipeRequest, frozen=True):
    """The controller listens, at this address in ZeroMQ's words."""

    address: str


@final
class StartAgent(PipeRequest, frozen=True):
    """Start an agent on a host; it is to call itself ``name``, and no other ever does."""

    host: str
    name: str


@final
class AbandonHost(PipeRequest, frozen=True):
    """End the child that is, or has started, this agent: its host is lost."""

    name: str


@final
class LentHostGone(PipeRequest, frozen=True):
    """The agent of a host that was lent has ended, or was given up: the next controller refuses it, too."""

    host: str


@final
class Decided(PipeRequest, frozen=True):
    """Result of the job once its workers have ended: for the next controller, which has not heard their last words."""

    status: int
    words: str


@final
class Finished(PipeRequest, frozen=True):
    """The job is over: its exit status, and why that is not 0."""

    status: int
    words: str


@final
class Ping(PipeRequest, frozen=True):
    """Question whether the controller's loop still turns; it sends the same back."""


@final
class Signal(PipeRequest, frozen=True):
    """Signal to the launcher: the user wants an end, or wants it passed on to the workers.

    Once it is passed on, the controller sends the same back; until then the next one is told, too.
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
    """One end of the pipe. Messages are whole, and arrive in order. An end that ``waits`` does so while it is full."""

    def __init__(self, end: socket.socket, *, waits: bool) -> None:
        self._socket = end
        # By call and not by socket: the end that waits when it sends must not wait when it receives.
        self._flags = 0 if waits else socket.MSG_DONTWAIT
        self._unsent: deque[bytes] = deque()

    @classmethod
    def pair(cls) -> tuple[LauncherPipe, LauncherPipe]:
        """Both ends, that of the launcher and that of its controller."""
        # Packets keep messages whole, and unlike datagrams they tell when the other end is closed.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours, waits=False), cls(theirs, waits=True)

    @property
    def fd(self) -> int:
        """Readable when ``receive`` has something."""
        return self._socket.fileno()

    def send(self, message: PipeMessage) -> None:
        """Send a message, or queue it; it is lost if nobody is there any more."""
        self._unsent.append(_encoder.encode(message))
        self.flush()

    @property
    def is_behind(self) -> bool:
        """True while messages wait for the other end to read."""
        return bool(self._unsent)

    def flush(self) -> None:
        """Send what is queued, as far as the pipe takes it."""
        while self._unsent:
            try:
                self._socket.send(self._unsent[0], self._flags)
            except BlockingIOError:
                return
            except OSError:  # nobody is there; the news of that comes by ``receive``
                self._unsent.clear()
                return
            self._unsent.popleft()

    def receive(self) -> Iterator[PipeMessage]:
        """All messages that are there. Never blocks."""
        while True:
            try:
                frame = self._socket.recv(LIMIT_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ConnectionError:
                frame = b""
            # No message is empty, so that an empty one is the end.
            yield _decoder.decode(frame) if frame else PipeClosed()
            if not frame:
                return

    def close(self) -> None:
        """Close this end. Idempotent."""
        self._socket.close()
