"""The agent of this host: a child of the launcher, told what to do over its standard input and the control plane.

with LocalAgent() as agent:
    agent.charge(Charge(...))
    ...                          # agent.fd is readable when it has ended
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from typing import final

import msgspec

from farandole.control import process
from farandole.launch.charge import MODULE, Charge
from farandole.launch.plan import entry_command

STDERR = 2
END_S = 5.0
"""How long an agent that is no longer wanted may take to kill its workers."""


@final
class LocalAgent:
    """Starts with its construction, while the launcher still loads; gone, with its workers, when the block is left."""

    def __init__(self) -> None:
        self.up = False
        """True once it has said hello, and so has read its charge; the launcher sets it."""
        self.code: int | None = None
        """How it ended, as ``waitpid`` gives it; ``None`` before."""
        reader, self._input = os.pipe()
        try:
            self._pid = process.spawn(entry_command(MODULE), stdin=reader)
        finally:
            os.close(reader)
        self.fd = os.pidfd_open(self._pid)

    def charge(self, charge: Charge) -> None:
        """Tell it what to do; for one that has died already this does nothing, ``fd`` tells."""
        with contextlib.suppress(BrokenPipeError), open(self._input, "wb", closefd=False) as file:
            file.write(msgspec.json.encode(charge) + b"\n")
        os.set_blocking(self._input, False)

    def say(self, text: str) -> None:
        """Print on standard error; while the agent lives it does that, so that no line of a worker is torn."""
        rest = f"farandole: {text}\n".encode()
        if self.up and self.code is None:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                rest = rest[os.write(self._input, rest) :]
        _print(rest)

    def reap(self) -> int:
        """Wait for its end, which is immediate once ``fd`` is readable; returns ``code``."""
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return self.code

    def kill(self) -> None:
        """End it by force; the kernel kills its workers then."""
        if self.code is None:
            os.kill(self._pid, signal.SIGKILL)

    def __enter__(self) -> LocalAgent:
        return self

    def __exit__(self, *_: object) -> None:
        unheard = os.open(f"/proc/self/fd/{self._input}", os.O_RDONLY | os.O_NONBLOCK)
        os.close(self._input)
        end = select.poll()  # unlike select(), it takes descriptors of any number
        end.register(self.fd, select.POLLIN)
        if self.code is None and not end.poll(END_S * 1000):
            self.kill()
        self.reap()
        os.close(self.fd)
        with open(unheard, "rb") as file:
            if self.up:  # else it is the charge, with the job's secret, that is unheard
                _print(file.read() or b"")


def _print(text: bytes) -> None:
    with contextlib.suppress(OSError):  # nobody is left to tell
        while text:
            text = text[os.write(STDERR, text) :]
