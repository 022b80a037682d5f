"""Merged output of many processes: whole lines, each with the tag of its source, none torn and none lost.

    pump = Pump()
    sink = Sink.of_descriptor(1)
    source = pump.add(read_end, sink, tag=lambda: b"[0]<stdout>:")
    pump.start()
    ...
    pump.finish()                                    # pump.ended becomes readable when everything is written

A pump is one thread: a slow reader of a sink slows down the writers of all its sources (as a pipe does) and nothing
else. Lines are searched in C, a chunk at a time: 50 MB/s cost a few percent of a core.

A progress bar is a line that is redrawn with carriage returns. A terminal gets a single bar unchanged, because a
terminal can redraw only its last line. Several bars on a terminal, and every bar elsewhere (a file, a pipe, another
host), are written as their latest state every few seconds, as a line of its own, and as their final state; the states
between are dropped, so that a bar takes a few hundred bytes here, however long it is drawn.

Threads. Sinks, sources and ``_sources`` belong to the pump's thread alone, and have no locks. Other threads send it
requests: ``_request`` appends a function to ``_requests``, a deque, and wakes the pump. Requests run in order, so
``finish`` runs after all earlier requests. After the thread has ended no request runs. Other threads read only
``OutputSource.tail``: of a process that has exited, after ``settle``. If a child of that process still writes, a line
that ends at that moment may be in the tail twice.

The pump may sleep in ``os.write`` while the reader of a sink does not read, and with it every thread that waits for the
pump. A thread that must not wait without limit therefore uses the calls that return at once (``queue_lines``,
``finish``), or those with a time limit (``settle``, ``close``).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeAlias, final

from farandole.control.wakeup import Wakeup

Tag: TypeAlias = Callable[[], bytes]
"""Returns the prefix of each line; called once per chunk (the prefix may hold the time), in the pump's thread."""

CHUNK_BYTES = 2**18
PIPE_BYTES = 2**20
LONGEST_LINE_BYTES = 2**25
"""A longer line is written in pieces: memory is finite, and so is the size of messages."""

STDERR = 2
TAIL_LINES = 20
TAIL_BYTES = 2**13
PARTIAL_AFTER_S = 0.1
"""An unfinished line (a progress bar) older than this is shown on a terminal, and treated as complete elsewhere."""

STATE_EVERY_S = 3.0
"""Time between two written states of a progress bar that is not shown live."""


Write: TypeAlias = Callable[[bytes], bool]
"""Writes all of the text, however long that takes; returns false once the reader is lost for good."""


def _to_descriptor(fd: int) -> Write:
    """Writer to a descriptor; it prints failures to standard error, except for a closed reader (EPIPE)."""

    def write(text: bytes) -> bool:
        rest = memoryview(text)
        while rest:
            try:
                rest = rest[os.write(fd, rest) :]
            except BlockingIOError:  # another process made the shared standard output non-blocking
                select.select((), (fd,), ())
            except OSError as error:
                if error.errno != errno.EPIPE and fd != STDERR:  # a failure of stderr cannot be printed to stderr
                    with contextlib.suppress(OSError):
                        os.write(STDERR, f"farandole: the output cannot be written: {error.strerror}\n".encode())
                return False
        return True

    return write


@final
class Sink:
    """A destination of whole lines, written by the pump's thread alone; ``live`` for a terminal."""

    def __init__(self, write: Write, *, live: bool = False) -> None:
        self.broken = False
        self.live = live
        self.bars: set[OutputSource] = set()
        """Sources whose unfinished lines are progress bars."""
        self._to = write
        self._unfinished: OutputSource | None = None

    @classmethod
    def of_descriptor(cls, fd: int) -> Sink:
        """Make a sink that writes to ``fd``; the caller keeps and closes ``fd``."""
        return cls(_to_descriptor(fd), live=os.isatty(fd))

    def lines(self, source: OutputSource | None, tag: bytes, text: bytes) -> None:
        """Write ``text``, which ends with a newline, with ``tag`` before every line."""
        if self.live:
            text = _redrawn(text, tag)
        tagged = text[:-1].replace(b"\n", b"\n" + tag) + b"\n" if tag else text
        self._write(self._lead(source, tag) + tagged)
        self._unfinished = None

    def partial(self, source: OutputSource, tag: bytes, text: bytes) -> None:
        """Write the beginning of a line; a different source that writes before its end starts a new line."""
        self._write(self._lead(source, tag) + _redrawn(text, tag))
        self._unfinished = source

    def waits_for(self, source: OutputSource) -> bool:
        """True if the last line shown is an unfinished line of ``source``."""
        return self._unfinished is source

    def _lead(self, source: OutputSource | None, tag: bytes) -> bytes:
        if self._unfinished is None:
            return tag
        return b"" if self._unfinished is source else b"\n" + tag

    def _write(self, text: bytes) -> None:
        self.broken = self.broken or not self._to(text)


@final
class OutputSource:
    """One stream of one process. ``tail`` returns its last lines."""

    def __init__(self, fd: int, sink: Sink, tag: Tag) -> None:
        self.fd, self.sink = fd, sink
        self._tag = tag
        self._parts: list[bytes] = []
        self._size = 0
        self._recent = b""
        self._fed_s = 0.0
        self._is_bar = False
        self._state: bytes | None = None
        """State of the progress bar that was written last."""
        self._state_s = -math.inf
        self.due_s: float | None = None
        """Time at which to show the unfinished line; ``None``: not at all."""

    @property
    def _is_live(self) -> bool:
        """True if lines are shown while they grow: on a terminal, except for one of several progress bars."""
        return self.sink.live and (len(self.sink.bars) < 2 or self not in self.sink.bars)

    @property
    def tail(self) -> str:
        """The last lines, at most ``TAIL_LINES``."""
        # ``_parts`` first: a line that ends meanwhile then appears twice; in the other order it would be lost.
        unfinished = b"".join(self._parts)[-TAIL_BYTES:]
        rest = b"" if _visible(unfinished) == self._state else unfinished
        text = (self._recent + rest).decode(errors="replace")
        return "\n".join(text.splitlines()[-TAIL_LINES:])

    def feed(self, chunk: bytes, now: float) -> None:
        """Add a chunk that was read; write its complete lines."""
        head, newline, rest = chunk.rpartition(b"\n")
        if newline:
            self._flush_lines(b"".join((*self._parts, head, newline)))
            self._clear()
            if self.sink.live:
                self.sink.bars.discard(self)
        if rest:
            self._grow(rest, now)

    def show(self, now: float) -> None:
        """Write the unfinished line: on a terminal all of it, elsewhere the state of a progress bar."""
        text = b"".join(self._parts)
        if self._is_live:
            self.sink.partial(self, self._tag(), text)
            self._remember(text)
            self._clear()
            return
        is_whole = now - self._fed_s >= PARTIAL_AFTER_S  # else the rest of the state may still arrive
        state = _visible(text if is_whole else text.rpartition(b"\r")[0])
        again_s = STATE_EVERY_S if state.strip() else PARTIAL_AFTER_S
        self.due_s = None if is_whole else now + again_s
        if state.strip() and state != self._state:
            self._write_state(state + b"\n")
            self._state, self._state_s = state, now

    def end(self) -> None:
        """Finish the last line if it has no newline."""
        if self._parts or self.sink.waits_for(self):
            self.feed(b"\n", 0.0)

    def _grow(self, rest: bytes, now: float) -> None:
        """Add to the unfinished line; of a progress bar, drop the states that are already overwritten."""
        self._parts.append(rest)
        self._size += len(rest)
        self._fed_s = now
        if self.sink.live and b"\r" in rest:
            self.sink.bars.add(self)
        if not self._is_live and b"\r" in rest:
            drawn, _, drawing = b"".join(self._parts).rpartition(b"\r")
            self._parts, self._is_bar = [_visible(drawn) + b"\r" + drawing], True
            self._size = len(self._parts[0])
        if self._size > LONGEST_LINE_BYTES:
            self.end()
        elif self.due_s is None and (self._is_live or self._is_bar):
            state_s = -math.inf if self._is_live else self._state_s + STATE_EVERY_S
            self.due_s = max(now + PARTIAL_AFTER_S, state_s)

    def _flush_lines(self, text: bytes) -> None:
        if self._is_live or b"\r" not in text:
            self._write(text)
            return
        lines = text.split(b"\n")
        written = _visible(lines[0]) == self._state
        text = b"\n".join(_visible(line) if b"\r" in line[:-1] else line for line in lines[written:])
        if text:
            self._write_state(text)

    def _write(self, lines: bytes) -> None:
        self.sink.lines(self, self._tag(), lines)
        self._remember(lines)

    def _write_state(self, state: bytes) -> None:
        """Write the visible part of redrawn lines; on a terminal it overwrites the unfinished line of this source."""
        over = b"\r" if self.sink.waits_for(self) else b""
        self.sink.lines(self, self._tag(), over + state)
        self._remember(state)

    def _remember(self, text: bytes) -> None:
        self._recent = (self._recent + text[-TAIL_BYTES:])[-TAIL_BYTES:]

    def _clear(self) -> None:
        """Start a new line."""
        self._parts, self._size, self._is_bar, self._state, self.due_s = [], 0, False, None, None


@final
class Pump(threading.Thread):
    """The thread that moves output: ``add`` sources, ``start``, ``finish``, wait for ``ended``, ``close``."""

    def __init__(self) -> None:
        # A daemon: a reader that does not read this output must not keep the process from exiting.
        super().__init__(name="farandole-output", daemon=True)
        self._sources: dict[int, OutputSource] = {}
        self._epoll = select.epoll()
        self._wakeup = Wakeup()
        self._epoll.register(self._wakeup.fd, select.EPOLLIN)
        self.ended = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._requests: deque[Callable[[], object]] = deque()
        self._finishing = False

    def add(self, fd: int, sink: Sink, tag: Tag) -> OutputSource:
        """Read ``fd`` until its end, then close it."""
        os.set_blocking(fd, False)
        with contextlib.suppress(OSError):  # a smaller pipe is slower, but works
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        source = OutputSource(fd, sink, tag)
        self._request(lambda: self._register(source))
        return source

    def queue_lines(self, sink: Sink, text: bytes, then: Callable[[], object] = lambda: None) -> None:
        """Write lines, which end with a newline, between those of the sources, and call ``then`` in the pump's thread.

        Any thread may call it; it does not wait.
        """

        def write() -> None:
            sink.lines(None, b"", text)
            then()

        self._request(write)

    def settle(self, sources: Iterable[OutputSource], timeout_s: float) -> None:
        """Wait until the data ready in these sources is read, at most ``timeout_s``."""
        done = threading.Event()

        def drain() -> None:
            for source in sources:
                for _ in range(PIPE_BYTES // CHUNK_BYTES):  # bounded: a child of the process may write forever
                    if source.fd not in self._sources or not self._read(source):
                        break
            done.set()

        self._request(drain)
        done.wait(timeout_s)  # with a limit: the pump may wait for a reader, or have ended

    def finish(self) -> None:
        """Read the data that is ready, write it and end the thread. Returns at once; ``ended`` signals the end."""
        self._request(self._begin_finish)

    def close(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the thread and free its descriptors; false if it does not end in time."""
        self.join(timeout_s)
        if self.is_alive():  # the thread may still use the descriptors; they stay open until the process exits
            return False
        self._epoll.close()
        self._wakeup.close()
        os.close(self.ended)
        return True

    def run(self) -> None:
        """Move output until ``finish``."""
        while not self._finishing:
            for fd, _ in self._epoll.poll(self._patience_s()):
                if fd == self._wakeup.fd:
                    self._wakeup.clear()  # before the deque is emptied: a later request signals again
                    while self._requests:
                        self._requests.popleft()()
                elif source := self._sources.get(fd):  # None if a request of this turn has closed the source
                    self._read(source)
            self._show_due()
        for source in tuple(self._sources.values()):  # a copy: `_close` removes them
            while self._read(source):  # only data that is ready: another process may hold the other end open forever
                pass
            self._close(source)
        os.eventfd_write(self.ended, 1)  # last: waiting threads assume that everything is written

    def _request(self, action: Callable[[], object]) -> None:
        self._requests.append(action)  # first: the pump empties the deque after it wakes
        self._wakeup.signal()

    def _register(self, source: OutputSource) -> None:
        self._sources[source.fd] = source
        self._epoll.register(source.fd, select.EPOLLIN)

    def _begin_finish(self) -> None:
        self._finishing = True

    def _read(self, source: OutputSource) -> bool:
        """Read one chunk from a source; false if there was none."""
        try:
            # For a broken sink pretend end of file, so that the pipe is closed and its writer gets an error.
            chunk = b"" if source.sink.broken else os.read(source.fd, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if chunk:
            source.feed(chunk, time.monotonic())
        else:
            self._close(source)
        return bool(chunk)

    def _close(self, source: OutputSource) -> None:
        """Close a source at its end, or when its sink is broken: its writer then gets SIGPIPE, as without a pump."""
        if self._sources.pop(source.fd, None):
            source.end()
            self._epoll.unregister(source.fd)
            os.close(source.fd)

    def _patience_s(self) -> float | None:
        due = [source.due_s for source in self._sources.values() if source.due_s is not None]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _show_due(self) -> None:
        now = time.monotonic()
        for source in self._sources.values():
            if source.due_s is not None and source.due_s <= now:
                source.show(now)


def _visible(text: bytes) -> bytes:
    r"""Visible part of a line that was redrawn with carriage returns.

    >>> _visible(b"  0%\r 50%\r"), _visible(b"\r100%")
    (b' 50%', b'100%')
    """
    return text.rstrip(b"\r").rpartition(b"\r")[2]


def _redrawn(text: bytes, tag: bytes) -> bytes:
    """Insert the tag again wherever a progress bar returns to the start of its line."""
    if b"\r" not in text:
        return text
    return text.replace(b"\r\n", b"\n").replace(b"\r", b"\r" + tag)
