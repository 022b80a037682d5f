"""Output of many processes in one place: whole lines, each with the tag of its source, none torn and none lost.

    pump = Pump()
    screen = Sink.of_descriptor(1)
    tail = pump.add(read_end, screen, tag=lambda: b"[0]<stdout>:")
    pump.start()
    ...
    pump.finish()                                    # and pump.ended becomes readable when all is written

A pump is one thread: a slow reader of a sink slows down the producers of all its sources (as a pipe does) and nothing
else. Lines are looked for in C, a chunk at a time: 50 MB/s cost a few percent of a core.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeAlias, final

Tag: TypeAlias = Callable[[], bytes]
"""Makes what is put before each line; called once per chunk (it may hold the time)."""

CHUNK_BYTES = 2**18
PIPE_BYTES = 2**20
LONGEST_LINE_BYTES = 2**25
"""A line that grows beyond this is written in pieces: memory is finite, and so are messages."""

STDERR = 2
TAIL_LINES = 20
TAIL_BYTES = 2**13
PARTIAL_AFTER_S = 0.1
"""An unfinished line (a progress bar) older than this is shown on a terminal."""


Write: TypeAlias = Callable[[bytes], bool]
"""Writes all of it, however long that takes; false once nobody will ever read it."""


def _to_descriptor(fd: int) -> Write:
    """Write to a descriptor; why that fails is said on standard error, but for a reader that has gone."""

    def write(text: bytes) -> bool:
        rest = memoryview(text)
        while rest:
            try:
                rest = rest[os.write(fd, rest) :]
            except BlockingIOError:  # somebody else made our standard output non-blocking
                select.select((), (fd,), ())
            except OSError as error:
                if error.errno != errno.EPIPE and fd != STDERR:
                    with contextlib.suppress(OSError):
                        os.write(STDERR, f"farandole: the output cannot be written: {error.strerror}\n".encode())
                return False
        return True

    return write


@final
class Sink:
    """Where lines go, whole lines at a time, from the pump's thread alone; ``live`` if somebody watches them grow."""

    def __init__(self, write: Write, *, live: bool = False) -> None:
        self.broken = False
        self.live = live
        self._to = write
        self._unfinished: Source | None = None

    @classmethod
    def of_descriptor(cls, fd: int) -> Sink:
        """A sink that writes to ``fd``, which stays the caller's."""
        return cls(_to_descriptor(fd), live=os.isatty(fd))

    def lines(self, source: Source | None, tag: bytes, text: bytes) -> None:
        """Write ``text``, which ends with a newline, with ``tag`` before every line."""
        if self.live:
            text = _redrawn(text, tag)
        tagged = text[:-1].replace(b"\n", b"\n" + tag) + b"\n" if tag else text
        self._write(self._lead(source, tag) + tagged)
        self._unfinished = None

    def partial(self, source: Source, tag: bytes, text: bytes) -> None:
        """Write the beginning of a line; whoever writes next while it is unfinished starts on a line of its own."""
        self._write(self._lead(source, tag) + _redrawn(text, tag))
        self._unfinished = source

    def waits_for(self, source: Source) -> bool:
        """True if the line on display is an unfinished one of ``source``."""
        return self._unfinished is source

    def _lead(self, source: Source | None, tag: bytes) -> bytes:
        if self._unfinished is None:
            return tag
        return b"" if self._unfinished is source else b"\n" + tag

    def _write(self, text: bytes) -> None:
        self.broken = self.broken or not self._to(text)


@final
class Source:
    """One stream of one process. ``tail`` gives the last lines that came through it."""

    def __init__(self, fd: int, sink: Sink, tag: Tag) -> None:
        self.fd, self.sink = fd, sink
        self._tag = tag
        self._parts: list[bytes] = []
        self._size = 0
        self._recent = b""
        self.partial_since: float | None = None

    @property
    def tail(self) -> str:
        """The last lines, at most ``TAIL_LINES``."""
        text = (self._recent + b"".join(self._parts)[-TAIL_BYTES:]).decode(errors="replace")
        return "\n".join(text.splitlines()[-TAIL_LINES:])

    def feed(self, chunk: bytes, now: float) -> None:
        """Take in what was read; write the lines that are whole."""
        head, newline, rest = chunk.rpartition(b"\n")
        if newline:
            self._flush_lines(b"".join((*self._parts, head, newline)))
            self._parts, self._size, self.partial_since = [], 0, None
        if rest:
            self._parts.append(rest)
            self._size += len(rest)
            if self._size > LONGEST_LINE_BYTES:
                self.end()
            elif self.sink.live and self.partial_since is None:
                self.partial_since = now

    def show_partial(self) -> None:
        """Write the unfinished line as far as it came."""
        text = b"".join(self._parts)
        self.sink.partial(self, self._tag(), text)
        self._recent = (self._recent + text)[-TAIL_BYTES:]
        self._parts, self._size, self.partial_since = [], 0, None

    def end(self) -> None:
        """Finish the last line, if it has no newline of its own."""
        if self._parts or self.sink.waits_for(self):
            self.feed(b"\n", 0.0)

    def _flush_lines(self, text: bytes) -> None:
        self.sink.lines(self, self._tag(), text)
        self._recent = (self._recent + text[-TAIL_BYTES:])[-TAIL_BYTES:]


@final
class Pump(threading.Thread):
    """The thread that moves output: ``add`` sources, ``start``, ``finish``, wait for ``ended``, ``close``."""

    def __init__(self) -> None:
        super().__init__(name="farandole-output", daemon=True)
        self._sources: dict[int, Source] = {}
        self._epoll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._bell, select.EPOLLIN)
        self.ended = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._requests: deque[Callable[[], object]] = deque()
        self._finishing = False

    def add(self, fd: int, sink: Sink, tag: Tag) -> Source:
        """Read ``fd`` until its end, and close it then."""
        os.set_blocking(fd, False)
        with contextlib.suppress(OSError):  # a smaller pipe is slower, no more
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        source = Source(fd, sink, tag)
        self._request(lambda: self._register(source))
        return source

    def say(self, sink: Sink, text: bytes, then: Callable[[], object] = lambda: None) -> None:
        """Write lines, which end with a newline, between those of the sources, and call ``then`` in the pump's thread.

        Any thread may call it; it does not wait.
        """

        def write() -> None:
            sink.lines(None, b"", text)
            then()

        self._request(write)

    def settle(self, sources: Iterable[Source], timeout_s: float) -> None:
        """Wait until what these sources have ready is read, at most ``timeout_s``."""
        done = threading.Event()

        def drain() -> None:
            for source in sources:
                for _ in range(PIPE_BYTES // CHUNK_BYTES):  # a child of the process may go on writing for ever
                    if source.fd not in self._sources or not self._read(source):
                        break
            done.set()

        self._request(drain)
        done.wait(timeout_s)

    def finish(self) -> None:
        """Read what is ready, write all of it and end the thread. Does not wait for that: ``ended`` tells."""
        self._request(self._begin_finish)

    def close(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the thread and free its descriptors; false if it does not end in time."""
        self.join(timeout_s)
        if self.is_alive():
            return False
        self._epoll.close()
        os.close(self._bell)
        os.close(self.ended)
        return True

    def run(self) -> None:
        """Move output until ``finish``."""
        while not self._finishing:
            for fd, _ in self._epoll.poll(self._patience_s()):
                if fd == self._bell:
                    os.eventfd_read(self._bell)
                    while self._requests:
                        self._requests.popleft()()
                elif source := self._sources.get(fd):
                    self._read(source)
            self._show_partials()
        for source in tuple(self._sources.values()):
            while self._read(source):
                pass
            self._close(source)
        os.eventfd_write(self.ended, 1)

    def _request(self, action: Callable[[], object]) -> None:
        self._requests.append(action)
        os.eventfd_write(self._bell, 1)

    def _register(self, source: Source) -> None:
        self._sources[source.fd] = source
        self._epoll.register(source.fd, select.EPOLLIN)

    def _begin_finish(self) -> None:
        self._finishing = True

    def _read(self, source: Source) -> bool:
        """Take one chunk from a source; false if there was none."""
        try:
            chunk = b"" if source.sink.broken else os.read(source.fd, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if chunk:
            source.feed(chunk, time.monotonic())
        else:
            self._close(source)
        return bool(chunk)

    def _close(self, source: Source) -> None:
        """At its end, or when nobody takes our output: then the writer gets a SIGPIPE, as it would without us."""
        if self._sources.pop(source.fd, None):
            source.end()
            self._epoll.unregister(source.fd)
            os.close(source.fd)

    def _patience_s(self) -> float | None:
        waiting = [s.partial_since for s in self._sources.values() if s.partial_since is not None]
        return max(0.0, min(waiting) + PARTIAL_AFTER_S - time.monotonic()) if waiting else None

    def _show_partials(self) -> None:
        now = time.monotonic()
        for source in self._sources.values():
            if source.partial_since is not None and now - source.partial_since >= PARTIAL_AFTER_S:
                source.show_partial()


def _redrawn(text: bytes, tag: bytes) -> bytes:
    """A progress bar goes back to the start of its line; the tag is written there again."""
    if b"\r" not in text:
        return text
    return text.replace(b"\r\n", b"\n").replace(b"\r", b"\r" + tag)
