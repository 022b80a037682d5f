"""The monitor of a job, as its launcher sees it: a child process that records the job and serves its web page.

    with MonitorProcess(config) as monitor:
        monitor.await_ready()                       # raises UsageError if it cannot record or listen
        monitor.contact(addresses, secret)
        ...
        monitor.result = 0, ""

Only the child imports the module of the monitor. The child ignores Ctrl-C, and exits when its standard input closes.
Its page may stay for a while after the job (``MonitorConfig.stay_s``): then the launcher lets it run on once the record
is complete. The child has its own session, and by then none of the launcher's descriptors, so that a process that waits
for the exit of the launcher, or for the end of its output, does not wait for the page.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, final

import msgspec

from farandole.control import process
from farandole.control.monitor_messages import (
    MODULE,
    MonitorCell,
    MonitorConfig,
    MonitorContact,
    MonitorEnd,
    MonitorOutput,
    MonitorReady,
    decode_answer,
    encode_line,
)
from farandole.control.os_text import printed
from farandole.errors import UsageError
from farandole.launch.agents.agents import print_now

if TYPE_CHECKING:
    from typing_extensions import Self

READY_S = 60.0
"""Time for the monitor to start, which takes a third of a second on an idle machine."""

END_S = 10.0
"""Time for the monitor to write the end of the record, and for viewers to receive it."""


def say_where(ready: MonitorReady) -> None:
    """Print where the run is recorded, and, only on a terminal, the link of its page: others may read a log file."""
    lines = f"farandole: the run is recorded in {ready.folder}\n"
    if ready.link and os.isatty(process.STDERR):
        lines = f"farandole: live view at {ready.link}\n" + lines
    elif ready.link:
        lines = f"farandole: the link of the live view is in {ready.folder}/live.link, for you alone\n" + lines
    print_now(printed(lines))


def begin_monitor(config: MonitorConfig | None, held: contextlib.ExitStack, spared: set[int]) -> MonitorProcess | None:
    """Start the monitor of a job; ``None`` without a ``config``, or if an optional monitor cannot start.

    Raises ``UsageError`` if a required monitor cannot start.
    """
    if config is None:
        return None
    try:
        with contextlib.ExitStack() as own:
            monitor = own.enter_context(MonitorProcess(config, spared))
            ready = monitor.await_ready()
            held.push(own.pop_all())
    except UsageError as error:
        if not config.is_optional:
            raise
        print_now(printed(f"farandole: the training has no live view: {error}\n"))
        return None
    if not config.is_quiet:
        say_where(ready)
    return monitor


@final
class MonitorProcess:
    """Monitor of one job; leaving the context ends it. Viewers then see ``result``.

    If the page stays, the child's pid is added to ``spared``; without ``spared`` it never stays, and is reaped here.
    """

    def __init__(self, config: MonitorConfig, spared: set[int] | None = None) -> None:
        if config.live and importlib.util.find_spec("tornado") is None:
            raise UsageError("--live needs tornado, which is not installed here: pip install 'farandole[live]'")
        self.result: tuple[int, str] | None = None
        self._stay_s, self._spared = config.stay_s, spared
        self._contact: MonitorContact | None = None
        reader, self._input = os.pipe()
        self._answer, writer = os.pipe()
        try:
            # The child inherits our standard error for errors that no other process would report.
            self._pid = process.spawn([sys.executable, "-m", MODULE], stdin=reader, stdout=writer)
        except OSError as error:
            os.close(self._input)
            os.close(self._answer)
            raise UsageError(f"the monitor of the job cannot be started: {error.strerror}") from error
        finally:
            os.close(reader)
            os.close(writer)
        self._write(encode_line(config))

    @property
    def pid(self) -> int:
        """Pid of the child."""
        return self._pid

    def await_ready(self) -> MonitorReady:
        """Wait until the monitor records and serves its page; raises ``UsageError`` if it cannot."""
        line, until_s = b"", time.monotonic() + READY_S
        poll = select.poll()
        poll.register(self._answer, select.POLLIN)
        while not line.endswith(b"\n") and poll.poll(max(0.0, until_s - time.monotonic()) * 1000):
            chunk = os.read(self._answer, 2**16)
            if not chunk:
                break
            line += chunk
        try:
            answer = decode_answer(line)
        except msgspec.DecodeError:
            raise UsageError("the monitor of the job has not started; what it printed is above, if anything") from None
        if isinstance(answer, MonitorReady):
            return answer
        raise UsageError(answer.text)

    def contact(self, addresses: Sequence[str], secret: str) -> None:
        """Send the address of the controller to the monitor, unless it is unchanged."""
        contact = MonitorContact(list(addresses), secret)
        if contact != self._contact:
            self._contact = contact
            self._write(encode_line(contact))

    def send_news(self, news: MonitorCell | MonitorOutput) -> bool:
        """Send a line of at most ``select.PIPE_BUF`` bytes; False if the pipe is full now."""
        poll = select.poll()
        poll.register(self._input, select.POLLOUT)
        if not poll.poll(0):
            return False
        self._write(encode_line(news))
        return True

    def _write(self, line: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # the monitor has exited; the job goes on
            os.write(self._input, line)  # shorter than the pipe's buffer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        stay_s = 0.0
        if self.result is not None:
            status, words = self.result
            is_interrupted = status in {process.exit_status(-number) for number in process.INTERRUPTS}
            stay_s = 0.0 if is_interrupted or self._spared is None else self._stay_s
            self._write(encode_line(MonitorEnd(status, words, stay_s)))
        os.close(self._input)
        # The pid is not reused before ``waitpid``, so the kill cannot hit another process.
        ending = os.pidfd_open(self._pid)
        try:
            poll = select.poll()
            poll.register(ending, select.POLLIN)
            if stay_s:
                poll.register(self._answer, 0)  # the child closes it after it has written everything
            over = poll.poll(END_S * 1000)
            if self._spared is not None and stay_s and over and ending not in dict(over):
                self._spared.add(self._pid)
                return
            if not over:
                os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        finally:
            os.close(ending)
            os.close(self._answer)
