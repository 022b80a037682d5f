"""One engine of IPython Parallel on its host, as a child of a process that ends it when the starter exits.

    python -c "from farandole.notebook.engine_process import main; main()" < lines

Standard input has a line of JSON, ``EngineConfig``, and then a line for each signal for the engine. The end of standard
input, also by the death of its writer, ends the engine. This works in the same way on this host, over ssh and by
``srun``, which pass no signals on. The engine inherits the output of this process, which exits with its exit status.
"""

# One thread, one loop: standard input, and a pidfd of the engine. If this process is killed, the kernel kills the
# engine, too.
# Signals that schedulers send to all processes of a job have a handler that does nothing. They are not ignored: the
# engine would inherit that, and get no interrupt.

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from typing import final

import msgspec

from farandole.control import process
from farandole.control.os_text import pack, unpack

ENGINE = "ipyparallel.engine"

LEAVE_S = 1.0
"""Time for an engine to exit after SIGTERM; an engine that has loaded torch does not react to SIGTERM."""


@final
class EngineConfig(msgspec.Struct, frozen=True):
    """Configuration of an engine: arguments, folder, if it exists here, and variables besides those of this host."""

    arguments: list[str]
    folder: str
    variables: dict[str, str]


@final
class EngineSignal(msgspec.Struct, frozen=True):
    """Signal for the engine."""

    number: int


def encode_line(message: EngineConfig | EngineSignal) -> bytes:
    """A message as a line."""
    return pack(msgspec.json.encode, message, exact=True) + b"\n"


def main() -> None:
    """Run the engine that standard input describes, and exit with its exit status."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):  # schedulers send them; only the end of input counts
        signal.signal(number, _nothing)
    lines = _Lines(0)
    line = lines.next(None)
    if line is None:
        return
    config = unpack(msgspec.json.Decoder(EngineConfig).decode, line)
    pid = process.spawn(
        [sys.executable, "-m", ENGINE, *config.arguments],
        death_signal=signal.SIGKILL,
        environment={**os.environ, **config.variables},
        cwd=config.folder if os.path.isdir(config.folder) else None,
    )
    _serve(pid, lines)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _serve(pid: int, lines: _Lines) -> None:
    """Pass signals on until the engine has exited; end the engine at the end of standard input."""
    held = os.pidfd_open(pid)
    while (line := lines.next(held)) is not None:
        with contextlib.suppress(msgspec.DecodeError, ProcessLookupError):
            signal.pidfd_send_signal(held, msgspec.json.decode(line, type=EngineSignal).number)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(held, number)
        if _is_readable(held, LEAVE_S):
            break
    os.close(held)


@final
class _Lines:
    """Lines of a descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd, self._text = fd, b""

    def next(self, other: int | None) -> bytes | None:
        """The next line; ``None`` at the end, or as soon as ``other`` is readable."""
        while b"\n" not in self._text:
            ready, _, _ = select.select([self._fd, *([] if other is None else [other])], [], [])
            if other in ready:
                return None
            chunk = os.read(self._fd, 2**16)
            if not chunk:
                return None
            self._text += chunk
        line, _, self._text = self._text.partition(b"\n")
        return line


def _nothing(*_: object) -> None:
    pass


def _is_readable(fd: int, timeout_s: float) -> bool:
    return bool(select.select([fd], [], [], timeout_s)[0])


if __name__ == "__main__":
    main()
