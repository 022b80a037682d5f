"""Standard output and standard error of a job, including the output forwarded by agents on many hosts.

    output = JobOutput.own()                        # this process's own streams
    output = JobOutput.remote(link.send)            # in an agent on another host: the launcher's streams
    output.add(STDOUT, read_end, tag=lambda: b"[0]<stdout>:")
    output.start()
    ...
    output.finish()                                 # each of output.ended becomes readable after the last write

Each stream is written by its own thread, so that a blocked reader of one stream delays nothing else. If both streams
are the same file, pipe or terminal, there is one thread: two would split each other's lines.

Other hosts send output in messages of whole lines over the control plane. ssh and ``srun`` carry none of it: they would
mix in their own messages, and ``srun`` splits lines of more than a kilobyte.

The main thread of an agent or launcher calls everything except ``Wire.write`` and ``Receipts._note``, which the pump
threads call. The two sides share the count of a ``Wire``, guarded by its condition, and the deque of ``Receipts``,
whose append and pop are atomic. The main thread never waits for a pump, which may wait for a reader for hours, except
in ``settle`` and ``close``, which have timeouts; an abandoned pump is a daemon, and ends with the process.
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
from farandole.control.wakeup import Wakeup
from farandole.errors import ControlError

STDOUT, STDERR = 0, 1

WINDOW_BYTES = 2**20
"""Most unconfirmed bytes of a stream from a host to the launcher; beyond that the workers there block."""


@final
class JobOutput:
    """Two sinks, by ``STDOUT`` and ``STDERR``, and the threads that write to them."""

    def __init__(self, sinks: Sequence[Sink], wires: Sequence[Wire] = ()) -> None:
        self._sinks = sinks
        self._wires = wires
        # By identity: two streams to the same file share one sink, and so one thread.
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
        """Standard streams of the launcher, reached with ``send``; pass its receipts to ``written``."""
        wires = [Wire(stream, send) for stream in (STDOUT, STDERR)]
        return cls([Sink(wire.write) for wire in wires], wires)

    @property
    def delivered(self) -> bool:
        """True if the launcher has confirmed all output; call it after the pumps have ended."""
        return all(wire.idle for wire in self._wires)

    @property
    def has_ended(self) -> bool:
        """True after ``finish``, when everything is written: ``queue_lines`` prints nothing then."""
        return not any(pump.is_alive() for pump in self._pumps)

    def add(self, stream: int, fd: int, tag: Tag, sink: Sink | None = None) -> OutputSource:
        """Copy lines from ``fd`` to a stream, or to a separate ``sink``."""
        return self._pumps[stream].add(fd, sink or self._sinks[stream], tag)

    def start(self) -> None:
        """Start the pump threads."""
        for pump in dict.fromkeys(self._pumps):
            pump.start()

    def queue_lines(self, stream: int, lines: bytes, then: Callable[[], object] = lambda: None) -> None:
        """Queue whole lines; the writing thread calls ``then`` afterwards. Does not block."""
        self._pumps[stream].queue_lines(self._sinks[stream], lines, then)

    def settle(self, stream: int, source: OutputSource, timeout_s: float) -> None:
        """Wait until the data that a source has ready is read."""
        self._pumps[stream].settle([source], timeout_s)

    def written(self, message: Written) -> None:
        """Handle a receipt of the launcher."""
        self._wires[message.stream].written(message.size)

    def forgive(self) -> None:
        """Stop waiting for receipts of sent output, which were lost with the controller."""
        for wire in self._wires:
            wire.forgive()

    def cut(self) -> None:
        """Make the pumps give up: the launcher is lost."""
        for wire in self._wires:
            wire.cut()

    def finish(self) -> None:
        """Let the pumps write the rest and end. Does not block."""
        for pump in dict.fromkeys(self._pumps):
            pump.finish()

    def close(self, timeout_s: float) -> bool:
        """Finish, wait, and free everything; False if a reader blocks and the rest of the output is abandoned."""
        self.finish()
        closed = [pump.close(timeout_s) for pump in dict.fromkeys(self._pumps)]
        return all(closed)


@final
class Wire:
    """One stream to the launcher. ``write`` blocks while too many bytes are unconfirmed."""

    def __init__(self, stream: int, send: Callable[[Message], object]) -> None:
        self._stream, self._send = stream, send
        self._change = threading.Condition()
        self._under_way = 0
        self._is_cut = False

    @property
    def idle(self) -> bool:
        """True if all bytes are confirmed, or the wire is cut."""
        # Without the lock: after its pump has ended, only the calling thread changes the count.
        return self._under_way == 0 or self._is_cut

    def write(self, text: bytes) -> bool:
        """Send whole lines in one message; False if the launcher is lost."""
        with self._change:
            # No timeout: a reader may pause for hours. ``cut``, or the end of the process, ends this.
            self._change.wait_for(lambda: self._under_way < WINDOW_BYTES or self._is_cut)
            if self._is_cut:
                return False
            # Counted before it is sent: otherwise a fast receipt would be subtracted from 0, and the count would never
            # return to 0. Sent without the lock: the link has its own lock, and the two must not nest.
            self._under_way += len(text)
        try:
            self._send(Output(self._stream, text))
        except ControlError:  # cut meanwhile: the main thread has closed the link
            return False
        return True

    def written(self, size: int) -> None:
        """Record that the launcher has written ``size`` bytes."""
        with self._change:
            # Not below 0: after ``forgive`` the next controller may still confirm queued messages.
            self._under_way = max(0, self._under_way - size)
            self._change.notify()  # only the pump of this stream waits

    def forgive(self) -> None:
        """Count all bytes as written: the controller that had to confirm them has died."""
        with self._change:  # a condition's own lock is reentrant: ``written`` takes it again
            self.written(self._under_way)

    def cut(self) -> None:
        """Make ``write`` give up."""
        with self._change:
            self._is_cut = True
            self._change.notify()


@final
class Receipts:
    """Receipts for ``output`` written by the launcher's pumps, until the main thread sends them to the hosts.

    ``fd`` is readable when there is something to ``collect``.
    """

    def __init__(self, output: JobOutput) -> None:
        self._wakeup = Wakeup()
        self.output = output
        self._done: deque[tuple[str, Written]] = deque()

    @property
    def fd(self) -> int:
        """See the class."""
        return self._wakeup.fd

    @classmethod
    def own(cls) -> Receipts:
        """Receipts for output to the streams of this process, with its pumps started."""
        output = JobOutput.own()
        output.start()
        return cls(output)

    def queue_output(self, host: str, message: Output) -> None:
        """Queue lines of a host, and store a receipt after they are written."""
        receipt = Written(message.stream, len(message.text))
        self.output.queue_lines(message.stream, message.text, partial(self._note, host, receipt))

    def collect(self) -> list[tuple[str, Written]]:
        """Receipts since the last call, each with its host."""
        self._wakeup.clear()  # before the receipts: a later one signals again
        return [self._done.popleft() for _ in range(len(self._done))]

    def close(self, timeout_s: float) -> None:
        """Finish the output, and free everything but what a pump needs that still writes after ``timeout_s``."""
        self.output.close(timeout_s)
        self._wakeup.close()

    def _note(self, host: str, receipt: Written) -> None:
        self._done.append((host, receipt))  # before the signal, after which it is read
        self._wakeup.signal()


def _same_file(one: int, other: int) -> bool:
    try:
        return os.path.sameopenfile(one, other)
    except OSError:  # one of them is closed
        return False
