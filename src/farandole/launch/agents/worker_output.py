"""Output of workers: the two streams of each worker, and the tag before its lines.

On the launcher's own streams a line reads ``[3]<stderr>:text``, the form that Horovod's launcher gave it. If these
streams belong to a worker of an outer job, the stream is named once: ``[0]<stderr>:[3]:text``. In files there is one
folder per rank, ``rank.<padded>/stdout`` and ``stderr``, and lines have no tag; the agent of its host writes them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import final

from farandole.cluster.environment import OUTPUT
from farandole.control.agent_messages import StartWorkers
from farandole.control.output import OutputSource, Sink, Tag
from farandole.errors import UsageError
from farandole.launch.agents.output import STDERR, JobOutput

STREAMS = ("stdout", "stderr")
COLOURS = (36, 33, 35, 32, 34, 31)


def pipes(stdout: int, stderr: int) -> str:
    """Value of the variable ``OUTPUT`` for a process with these descriptors."""
    return f"{os.fstat(stdout).st_ino} {os.fstat(stderr).st_ino}"


def is_nested(variables: Mapping[str, str]) -> bool:
    """True if our standard streams are those that a launcher gave to a worker: this process or an ancestor."""
    try:
        return variables.get(OUTPUT) == pipes(1, 2)
    except OSError:  # one of them is closed
        return False


@final
class WorkerOutput:
    """Streams of each worker, and the last lines of its standard error."""

    def __init__(self, start: StartWorkers, output: JobOutput) -> None:
        self._start = start
        self._output = output
        self._sources: dict[int, OutputSource] = {}

    @contextmanager
    def open(self, worker_id: int) -> Iterator[tuple[int, int]]:
        """Descriptors to start the worker with; our copies are closed at the end of the block.

        Raises ``OSError``, and ``UsageError`` for an invalid output folder.
        """
        ends: list[int] = []
        try:
            for stream, name in enumerate(STREAMS):
                file = self._file(worker_id, name) if self._start.output_dir else None
                reader, writer = os.pipe()
                ends.append(writer)
                self._sources[worker_id] = self._output.add(stream, reader, self._tag(worker_id, name), file)
            yield ends[0], ends[1]
        finally:  # a writer left open here would keep the pump from ever seeing the end of the stream
            for end in ends:
                os.close(end)

    def tail(self, worker_id: int, timeout_s: float) -> str:
        """Last lines of the worker's standard error; waits for lines that are still in the pipe."""
        source = self._sources[worker_id]
        self._output.settle(STDERR, source, timeout_s)
        return source.tail

    def forget(self, worker_id: int) -> None:
        """Drop the stream of an exited worker; ``tail`` must not be called afterwards."""
        self._sources.pop(worker_id, None)

    def _file(self, worker_id: int, name: str) -> Sink:
        padded = str(worker_id).zfill(len(str(self._start.size - 1)))
        folder = os.path.join(self._start.output_dir, f"rank.{padded}")
        try:
            os.makedirs(folder, exist_ok=True)
            return Sink.of_descriptor(os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644))
        except OSError as error:
            raise UsageError(
                f"--output-filename {self._start.output_dir}: {error.filename}: {error.strerror}; "
                "give a folder that can be written to"
            ) from error

    def _tag(self, worker_id: int, name: str) -> Tag:
        tag = f"[{worker_id}]:" if self._start.nested else f"[{worker_id}]<{name}>:"
        fixed = b"" if self._start.output_dir else tag.encode()
        if self._start.colour and fixed:
            fixed = b"\x1b[%dm%s\x1b[0m" % (COLOURS[worker_id % len(COLOURS)], fixed)
        return (lambda: _now() + fixed) if self._start.timestamps else (lambda: fixed)


def _now() -> bytes:
    now = time.time()
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(now))}.{int(now % 1 * 1000):03d} ".encode()
