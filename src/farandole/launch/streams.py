"""Where the output of each worker goes, and what is put before its lines.

On the launcher's own streams a line reads ``[3]<stderr>:text``, the form that Horovod's launcher gave it. In files
there is one folder per rank, ``rank.<padded>/stdout`` and ``stderr``, and the lines are bare.

Standard output and standard error are written by threads of their own, so that a reader of one that does not read
holds up nothing else. Where both are the same file, pipe or terminal, there is one: two would tear each other's lines.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

from farandole.control.agent_messages import StartWorkers
from farandole.control.output import Pump, Sink, Source, Tag

STREAMS = ("stdout", "stderr")
COLOURS = (36, 33, 35, 32, 34, 31)


@final
class Streams:
    """Opens the two streams of each worker and remembers the last lines of its standard error.

    ``open`` for all workers, ``start``, then ``finish``; ``ended`` are the descriptors that become readable when all is
    written.
    """

    def __init__(self, start: StartWorkers) -> None:
        self._start = start
        self._sources: dict[int, Source] = {}
        out = (Sink(1), Pump())
        self._screens = (out, out if _same_file(1, 2) else (Sink(2), Pump()))
        self._pumps = list(dict.fromkeys(pump for _, pump in self._screens))
        self.ended = frozenset(pump.ended for pump in self._pumps)

    def start(self) -> None:
        """Begin to write."""
        for pump in self._pumps:
            pump.start()

    def say(self, text: bytes) -> None:
        """Write lines that are no worker's on standard error. Does not wait."""
        sink, pump = self._screens[1]
        pump.say(sink, text)

    def finish(self) -> None:
        """Write what is left and end. Does not wait."""
        for pump in self._pumps:
            pump.finish()

    @contextmanager
    def open(self, place: int) -> Iterator[tuple[int, int]]:
        """The descriptors to start the worker with; ours are closed at the end of the block. Raises ``OSError``."""
        ends: list[int] = []
        try:
            for name, (screen, pump) in zip(STREAMS, self._screens, strict=True):
                sink = self._file(place, name) if self._start.output_dir else screen
                reader, writer = os.pipe()
                ends.append(writer)
                self._sources[place] = pump.add(reader, sink, self._tag(place, name))
            yield ends[0], ends[1]
        finally:
            for end in ends:
                os.close(end)

    def tail(self, place: int, timeout_s: float) -> str:
        """The last lines of the worker's standard error; waits for those that are on their way."""
        source = self._sources[place]
        self._screens[1][1].settle([source], timeout_s)
        return source.tail

    def _file(self, place: int, name: str) -> Sink:
        padded = str(place).zfill(len(str(self._start.size - 1)))
        folder = os.path.join(self._start.output_dir, f"rank.{padded}")
        os.makedirs(folder, exist_ok=True)
        return Sink(os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644))

    def _tag(self, place: int, name: str) -> Tag:
        fixed = b"" if self._start.output_dir else f"[{place}]<{name}>:".encode()
        if self._start.colour and fixed:
            fixed = b"\x1b[%dm%s\x1b[0m" % (COLOURS[place % len(COLOURS)], fixed)
        return (lambda: _now() + fixed) if self._start.timestamps else (lambda: fixed)


def _now() -> bytes:
    now = time.time()
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(now))}.{int(now % 1 * 1000):03d} ".encode()


def _same_file(one: int, other: int) -> bool:
    try:
        return os.path.sameopenfile(one, other)
    except OSError:  # one of them is closed
        return False
