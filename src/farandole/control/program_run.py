"""One run of a program that does not block an event loop: its streams and its exit are descriptors to poll.

    run = ProgramRun(["squeue", "-h"])
    wait_for(run.fds)
    run.attend()
    run.code, run.said          # None while it runs; the bytes of its standard output and error

The program runs in a session of its own, so that ``end`` also kills its children. No thread, and no signal handler.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import final

from farandole.control import process
from farandole.errors import UsageError


@final
class ProgramRun:
    """One run of a program, with ``stdin`` as its standard input. Raises ``UsageError`` if it cannot be started."""

    def __init__(
        self, command: Sequence[str], *, stdin: bytes = b"", environment: Mapping[str, str] | None = None
    ) -> None:
        self.code: int | None = None
        """Exit status, or minus the signal number, once the program has exited and all its output is read."""
        self._is_reaped = False
        self.said = [b"", b""]
        pipes = [os.pipe(), os.pipe()]
        try:
            with _file_of(stdin) as given:
                self._pid = process.spawn(
                    command, stdin=given, stdout=pipes[0][1], stderr=pipes[1][1], environment=environment
                )
        except OSError as error:
            for reader, _ in pipes:
                os.close(reader)
            raise UsageError(process.refusal(command, error)[1]) from error
        finally:
            for _, writer in pipes:
                os.close(writer)
        self._readers = [reader for reader, _ in pipes]
        self._open = dict(enumerate(self._readers))
        for reader in self._readers:
            os.set_blocking(reader, False)
        self._ending = os.pidfd_open(self._pid)

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors to watch; when one of them is readable, call ``attend``."""
        return (*self._open.values(), self._ending)

    def attend(self) -> None:
        """Read its output and exit status."""
        end = select.poll()
        end.register(self._ending, select.POLLIN)
        has_ended = bool(end.poll(0))  # polled first: after the exit all output is ready to read
        for stream, reader in list(self._open.items()):
            with contextlib.suppress(BlockingIOError):
                while text := os.read(reader, 2**16):
                    self.said[stream] += text
                del self._open[stream]
        if has_ended:
            self.code = self._end()

    def end(self) -> None:
        """Kill the program, unless it has ended, and the rest of its process group. Idempotent."""
        if not self._is_reaped:
            self._end()

    def close(self) -> None:
        """Close the descriptors."""
        for fd in (*self._readers, self._ending):
            os.close(fd)

    def _end(self) -> int:
        # Before it is reaped: afterwards the kernel may reuse its process ID and its group's. ``spawn`` made it the
        # leader of a session, and so of a group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        self._is_reaped = True
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


@contextlib.contextmanager
def _file_of(given: bytes) -> Iterator[int]:
    """Descriptor to read these bytes from: an unnamed file, because a pipe would need a process that fills it."""
    descriptor = os.memfd_create("farandole-stdin")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(given)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)
