"""The monitor of a job: a child of its launcher that records the job and serves its page.

    python -m farandole.monitor.process < lines         (see farandole.control.monitor_messages)

It connects to the controller as a watcher, and to the next controller of an elastic job when one has died. It ends when
the launcher orders it, or exits. If the page is to outlive the run, the monitor first closes the record and its pipes
to the launcher; then it serves the page until its deadline, or a signal.

One thread, an event loop: standard input, the sockets of the controller, viewers, and a timer that sends changes to the
viewers.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, final

from farandole.control.channel import Dealer
from farandole.control.dial import first_answering
from farandole.control.keys import JobKeys
from farandole.control.messages import encode
from farandole.control.monitor_messages import (
    UNIX,
    MonitorCell,
    MonitorConfig,
    MonitorContact,
    MonitorEnd,
    MonitorOutput,
    MonitorReady,
    MonitorRefusal,
    decode_line,
    encode_line,
)
from farandole.control.private_file import write_private
from farandole.control.process import INTERRUPTS, STDERR, name_this
from farandole.control.watch_messages import OF_TRIALS, WATCHER, OrderNews, Printed, Seen, WatchJob, WatchOrder
from farandole.errors import ControlError, FarandoleError
from farandole.launch.job.exit_wording import ABOVE
from farandole.monitor.access import PageKeys, listening
from farandole.monitor.describe import describe
from farandole.monitor.exports import CSV, TENSORBOARD, CsvExport, Export, TensorBoardExport
from farandole.monitor.folder import RunWriter, read_info, read_records
from farandole.monitor.hub import BETWEEN_CELLS, STARTING, Hub
from farandole.monitor.recording import Recording

logger = logging.getLogger("farandole.monitor")

EVERY_S = 0.2
"""Interval in seconds of metrics, and of messages to viewers."""

WINDOW_BYTES = 2**24
ANSWERS_S = 30.0
LAST_S = 0.5
"""Time for viewers to receive the last messages."""

DRAIN_S = 2.0
"""Longest time to receive the controller's last messages; it goes on sending if the ranks outlive the launcher."""


@final
class JobMonitor:
    """Monitor of one job. ``_server`` is ``None`` if there is no page."""

    def __init__(self, config: MonitorConfig) -> None:
        info = read_info(config.folder) if config.search else describe(config.command)
        writer = None if config.search else RunWriter.create(config.folder, info)
        self._hub = Hub(info, BETWEEN_CELLS if config.in_cells else STARTING, str(Path(config.folder).absolute()))
        for record in read_records(config.folder) if config.search else ():
            self._hub.add_record(record)
        self._recording = Recording(writer, self._hub, list(_exports(config, Path(config.folder))))
        self._config = config
        self._server: Any = None
        self._dealer: Dealer | None = None
        self._numbers = itertools.count(1)
        self._unseen_bytes = 0
        self._over = asyncio.Event()

    def serve(self) -> str:
        """Open the page, if one is configured; returns its link, or ""."""
        if not self._config.live:
            return ""
        from farandole.monitor.server import PageServer

        keys = PageKeys.new()
        listen = self._config.listen
        self._server = PageServer(self._hub, keys, self._order, is_reachable=not listen.startswith(UNIX))
        if listen.startswith(UNIX):
            self._server.listen_unix(listen.removeprefix(UNIX))
            link = keys.link(listen)
        else:
            host, port, tls = listening(listen, self._config.certificate)
            port = self._server.listen(host, port, tls)
            shown = f"[{host}]" if ":" in host else host
            link = keys.link(f"{'https' if tls else 'http'}://{shown}:{port}")
        if self._config.link_file:
            write_private(Path(self._config.link_file), link.encode() + b"\n")
        return link

    async def watch_job(self) -> None:
        """Watch until the launcher has sent how the job ended, or has exited."""
        lines = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin.buffer)
        pushing = asyncio.create_task(self._push())
        try:
            while line := await lines.readline():
                message = decode_line(line)
                if isinstance(message, MonitorContact):
                    await self._connect(message)
                elif isinstance(message, MonitorCell):
                    self._recording.cell(message.text, time.time())
                elif isinstance(message, MonitorOutput):
                    self._recording.record_message(Printed(time.time(), message.stream, message.text.encode()))
                elif isinstance(message, MonitorEnd):
                    self._end(message)
                    await self._stay(message.stay_s)
                    return
            self._end(MonitorEnd(1, "the launcher is gone"))
        finally:
            pushing.cancel()
            if self._server is not None:
                await self._server.close()
                await asyncio.sleep(LAST_S if self._server.viewers else 0.0)
            if self._config.link_file:
                with contextlib.suppress(OSError):
                    os.unlink(self._config.link_file)

    async def _stay(self, stay_s: float) -> None:
        """Go on showing a run that is over, without any pipe for whose end another process may wait."""
        if self._server is None or not stay_s:
            return
        self._server.on_order = None
        over = asyncio.Event()
        for number in INTERRUPTS:
            asyncio.get_running_loop().add_signal_handler(number, over.set)
        _let_go(1, STDERR)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(over.wait(), stay_s)

    # -- the controller -----------------------------------------------------------------------------------------------

    async def _connect(self, contact: MonitorContact) -> None:
        self._disconnect()
        keys = JobKeys.from_secret(contact.secret)
        loop = asyncio.get_running_loop()
        try:
            if len(contact.addresses) == 1:
                address = contact.addresses[0]
            else:
                address = await loop.run_in_executor(None, first_answering, contact.addresses, keys, ANSWERS_S)
            self._dealer = Dealer(address, WATCHER + os.urandom(8).hex().encode(), keys, None)
        except ControlError as error:
            logger.warning("the live view cannot reach the job: %s", error)
            return
        for fd in self._dealer.fds:
            loop.add_reader(fd, self._receive)
        self._watch()

    def _watch(self) -> None:
        assert self._dealer is not None
        self._unseen_bytes = 0
        self._dealer.send(WatchJob(EVERY_S, WINDOW_BYTES))

    def _receive(self) -> None:
        dealer = self._dealer
        if dealer is None:
            return
        is_answer = False
        try:
            while (message := dealer.recv(0.0)) is not None:
                self._unseen_bytes += len(encode(message))
                self._recording.record_message(message)
                is_answer |= isinstance(message, OrderNews)
            if self._unseen_bytes > WINDOW_BYTES // 8:
                dealer.send(Seen(self._unseen_bytes))
                self._unseen_bytes = 0
        except ControlError:  # in elastic jobs another controller may follow: it does not know this watcher
            self._hub.interrupted()
            dealer.renew()
            self._watch()
        if is_answer and self._server is not None:
            self._server.push()  # at once: a user waits, and the end of the job may block this thread

    def _disconnect(self) -> None:
        dealer, self._dealer = self._dealer, None
        if dealer is not None:
            loop = asyncio.get_running_loop()
            for fd in dealer.fds:
                loop.remove_reader(fd)
            dealer.close(deliver=False)

    def _order(self, verb: str, argument: int) -> int:
        number = next(self._numbers)
        if self._dealer is None:
            text = "the live view has lost the job's controller"
            self._recording.record_message(OrderNews(number, verb, "refused", text, -1, time.time()))
        else:
            of_trial = {"trial": argument} if verb in OF_TRIALS else {"workers": argument}
            self._dealer.send(WatchOrder(number, verb, **of_trial))
        return number

    # -- viewers ------------------------------------------------------------------------------------------------------

    async def _push(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            if self._server is not None:
                self._server.push()
            else:
                self._hub.changes()  # without viewers; else the hub would keep all changes

    def _end(self, end: MonitorEnd) -> None:
        if self._dealer is not None:  # the controller has exited by now, but its last messages may be unread
            until_s = time.monotonic() + DRAIN_S
            with contextlib.suppress(ControlError):
                while (left_s := until_s - time.monotonic()) > 0:
                    message = self._dealer.recv(min(LAST_S, left_s))
                    if message is None:
                        break
                    self._recording.record_message(message)
                    if isinstance(message, OrderNews) and self._server is not None:
                        self._server.push()  # here, too: the end of the job is a later message
        self._disconnect()
        now = time.time()
        self._recording.end(end.status, end.words.replace(ABOVE, "its traceback is in the output"), now)
        self._hub.stays_until_s = now + end.stay_s if end.stay_s else 0.0


def _exports(config: MonitorConfig, folder: Path) -> list[Export]:
    exports: list[Export] = []
    if config.csv:
        exports.append(CsvExport(folder / CSV))
    if config.tensorboard:
        exports.append(TensorBoardExport(folder / TENSORBOARD))
    return exports


async def _main(line: bytes) -> None:
    config = decode_line(line)
    assert isinstance(config, MonitorConfig)
    try:
        monitor = JobMonitor(config)
        link = monitor.serve()
    except (FarandoleError, OSError) as error:
        _answer(encode_line(MonitorRefusal(str(error))))
        return
    _answer(encode_line(MonitorReady(str(Path(config.folder).absolute()), link)))
    await monitor.watch_job()


def _answer(line: bytes) -> None:
    """Answer the launcher, which waits until this pipe is closed when the job is over."""
    with contextlib.suppress(BrokenPipeError):
        os.write(1, line)


def _let_go(*fds: int) -> None:
    """Close descriptors, but keep their numbers taken, because other code may write to them."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in fds:
        os.dup2(null, fd)
    os.close(null)


def main() -> int:
    """Run the monitor that standard input describes."""
    name_this("farandole-live")
    # A Ctrl-C, or the end of a batch job, is for the launcher, which then ends this process.
    for number in INTERRUPTS:
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(format="farandole: %(message)s", level=logging.WARNING)
    line = _first_line()
    if line:
        asyncio.run(_main(line))
    return 0


def _first_line() -> bytes:
    """The first line, the configuration; read byte by byte, because the event loop reads the rest."""
    line = b""
    while (byte := os.read(0, 1)) and not line.endswith(b"\n"):
        line += byte
        if byte == b"\n":
            break
    return line


if __name__ == "__main__":
    sys.exit(main())
