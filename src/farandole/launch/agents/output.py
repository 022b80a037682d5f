"""Standard output and standard error of a job, and how what agents on many hosts write gets there.

    output = JobOutput.own()                        # this process's own streams
    output = JobOutput.remote(link.send)            # in an agent on another host: the launcher's
    output.add(STDOUT, read_end, tag=lambda: b"[0]<stdout>:")
    output.start()
    ...
    output.finish()                                 # and each of output.ended becomes readable when all is written

Each stream is written by a thread of its own, so that a reader of one that does not read holds up nothing else. Where
both are the same file, pipe or terminal, there is one thread: two would tear each other's lines.

From other hosts output comes in messages of whole lines over the connections of the control plane. ssh and ``srun``
carry none of it: they would mix in what they say themselves, and ``srun`` tears lines of more than a kilobyte.

The main thread, an agent's or the launcher's, calls everything here but ``Wire.write`` and ``Receipts._note``, which
the pumps call. The two sides share the count of a ``Wire``, which its condition guards, and the deque of ``Receipts``,
whose ends are atomic. The main thread never waits for a pump, as that may wait for a reader for hours, but in
``settle`` and ``close``, which have time-outs; a pump that is given up is a daemon, and ends with the process.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import final

from farandole.control.agent_messages import Output, Written
from farandole.control.message import Message
from farandole.control.output import OutputSource, Pump, Sink, Tag
from farandole.errors import ControlError

STDOUT, STDERR = 0, 1

WINDOW_BYTES = 2**20
"""Length of what may be on its way of a stream from a host to the launcher; beyond it the workers there wait."""


@final
class JobOutput:
    """Two sinks, by ``STDOUT`` and ``STDERR``, and the threads that write to them."""

    def __init__(self, sinks: Sequence[Sink], wires: Sequence[Wire] = ()) -> None:
        self._sinks = sinks
        self._wires = wires
        # By identity: two streams that are one file have one sink, and so one thread.
        pumps = {key: Pump() for key in {id(sink) for sink in sinks}}
        self._pumps = [pumps[id(sink)] for sink in sinks]
        self.ended = frozenset(pump.ended for pump in self._pumps)

    @classmethod
    def own(cls) -> JobOutput:
        """Standard output and standard error of this process."""
        out = Sink.of_descriptor(1)
        return cls((out, out if _same_file(1, 2) else Sink.of_descriptor(2)))

    @classmethod
    def remote(cls, send: Callable[[Message], object]) -> JobOutput:
        """Standard streams of the launcher, which gets messages by ``send``; its answers are for ``written``."""
        wires = [Wire(stream, send) for stream in (STDOUT, STDERR)]
        return cls([Sink(wire.write) for wire in wires], wires)

    @property
    def delivered(self) -> bool:
        """True if nothing is on its way to the launcher any more; to be asked when the pumps have ended."""
        return all(wire.idle for wire in self._wires)

    def add(self, stream: int, fd: int, tag: Tag, sink: Sink | None = None) -> OutputSource:
        """Move what comes from ``fd`` to a stream, or to a ``sink`` of its own."""
        return self._pumps[stream].add(fd, sink or self._sinks[stream], tag)

    def start(self) -> None:
        """Begin to write."""
        for pump in dict.fromkeys(self._pumps):
            pump.start()

    def say(self, stream: int, lines: bytes, then: Callable[[], object] = lambda: None) -> None:
        """Write whole lines, and call ``then`` in the thread that did. Does not wait."""
        self._pumps[stream].say(self._sinks[stream], lines, then)

    def settle(self, stream: int, source: OutputSource, timeout_s: float) -> None:
        """Wait until what a source has ready is read."""
        self._pumps[stream].settle([source], timeout_s)

    def written(self, message: Written) -> None:
        """Take in a receipt of the launcher."""
        self._wires[message.stream].written(message.size)

    def forgive(self) -> None:
        """Wait for no receipt of what was sent: it is lost, or will not be confirmed."""
        for wire in self._wires:
            wire.forgive()

    def cut(self) -> None:
        """Let the pumps give up: nobody is left to write for."""
        for wire in self._wires:
            wire.cut()

    def finish(self) -> None:
        """Write what is left and end. Does not wait."""
        for pump in dict.fromkeys(self._pumps):
            pump.finish()

    def close(self, timeout_s: float) -> bool:
        """Finish, wait for that, and free everything; false if a reader does not read, and the rest is abandoned."""
        self.finish()
        closed = [pump.close(timeout_s) for pump in dict.fromkeys(self._pumps)]
        return all(closed)


@final
class Wire:
    """One stream on its way to the launcher. ``write`` waits while too much of it has not been written there."""

    def __init__(self, stream: int, send: Callable[[Message], object]) -> None:
        self._stream, self._send = stream, send
        self._change = threading.Condition()
        self._under_way = 0
        self._is_cut = False

    @property
    def idle(self) -> bool:
        """True if all has been written, or never will be."""
        # Without the lock: with its pump gone, the count changes in the thread that asks, and in no other.
        return self._under_way == 0 or self._is_cut

    def write(self, text: bytes) -> bool:
        """Send whole lines, in one message; false if there is nobody to send them to."""
        with self._change:
            # No time-out: a reader may pause for hours. ``cut`` ends this, or the end of the process.
            self._change.wait_for(lambda: self._under_way < WINDOW_BYTES or self._is_cut)
            if self._is_cut:
                return False
            # Counted before it is sent: a receipt that overtook this would be taken off nothing, and the count would
            # never come down to 0 again. Sent without the lock: the link has its own, and neither waits in the other.
            self._under_way += len(text)
        try:
            self._send(Output(self._stream, text))
        except ControlError:  # cut since: the link has been closed by the main thread
            return False
        return True

    def written(self, size: int) -> None:
        """Take in that ``size`` bytes of it have been written."""
        with self._change:
            # Not below 0: after ``forgive`` the next controller may still confirm what it got of the queue.
            self._under_way = max(0, self._under_way - size)
            self._change.notify()  # one: nobody but the pump of this stream waits

    def forgive(self) -> None:
        """Take all of it for written: the controller that was to confirm it has died."""
        with self._change:  # a condition's own lock is reentrant: ``written`` takes it again
            self.written(self._under_way)

    def cut(self) -> None:
        """Let ``write`` give up."""
        with self._change:
            self._is_cut = True
            self._change.notify()


@final
class Receipts:
    """Receipts of what the launcher's pumps have written, until the main thread sends them to the hosts it came from.

    ``fd`` is readable when there is something to ``collect``.
    """

    def __init__(self, output: JobOutput) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._output = output
        self._done: deque[tuple[str, Written]] = deque()

    def take(self, host: str, message: Output) -> None:
        """Have lines of a host written, and a receipt noted then."""
        receipt = Written(message.stream, len(message.text))
        self._output.say(message.stream, message.text, partial(self._note, host, receipt))

    def collect(self) -> list[tuple[str, Written]]:
        """Receipts since the last call, each with its host."""
        os.eventfd_read(self.fd)  # before the receipts: one that a pump adds from here on rings again
        return [self._done.popleft() for _ in range(len(self._done))]

    def close(self) -> None:
        """Free the descriptor; the pumps must have ended."""
        os.close(self.fd)

    def _note(self, host: str, receipt: Written) -> None:
        self._done.append((host, receipt))  # before the bell, at which it is fetched
        os.eventfd_write(self.fd, 1)


def _same_file(one: int, other: int) -> bool:
    try:
        return os.path.sameopenfile(one, other)
    except OSError:  # one of them is closed
        return False
