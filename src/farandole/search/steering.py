"""Live page of a search, and the end of the search in its record.

with recorded(record, folder / "run.json", study), shown_live(monitor_config(folder, live=True), addresses, secret):
    ...
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from signal import SIGINT

from farandole.control.monitor_messages import LOOPBACK, MonitorConfig
from farandole.control.process import exit_status
from farandole.errors import UsageError
from farandole.launch.command.watch_options import stays_s
from farandole.launch.job.monitor_process import MonitorProcess, say_where
from farandole.search.run_record import RunRecord
from farandole.search.study import Study

LINK = "live.link"


def monitor_config(
    folder: Path, *, live: bool, listen: str = "", certificate: str = "", stay_s: float = 0.0
) -> MonitorConfig | None:
    """Configuration of the requested page, if any; it stays for ``stay_s`` unless ``stays_s`` forbids it."""
    if not live:
        if listen or certificate:
            raise UsageError("live_listen and live_certificate are of a page: add live=True (--live)")
        return None
    where = str(folder.resolve())
    return MonitorConfig(
        where,
        list(sys.argv),
        live=True,
        listen=listen or LOOPBACK,
        certificate=os.path.abspath(certificate) if certificate else "",
        link_file=os.path.join(where, LINK),
        search=True,
        stay_s=stays_s(stay_s, listen, os.environ),
    )


@contextlib.contextmanager
def shown_live(config: MonitorConfig, addresses: Sequence[str], secret: str) -> Iterator[MonitorProcess]:
    """Context that serves the page, which may stay afterwards. The monitor watches the search like a job."""
    with MonitorProcess(config, set() if config.stay_s else None) as monitor:
        say_where(monitor.await_ready())
        monitor.contact(addresses, secret)
        try:
            yield monitor
        except BaseException as error:
            # Without a result the page would report a lost search; after an interrupt no page stays.
            monitor.result = exit_status(-SIGINT) if isinstance(error, KeyboardInterrupt) else 1, _words(error)
            raise


@contextlib.contextmanager
def recorded(record: RunRecord, path: Path, study: Study) -> Iterator[None]:
    """Record that the search runs and, at exit of the context, how it has ended."""
    record.write(path, status=None, ended_s=0.0, words="")
    try:
        yield
    except BaseException as error:
        record.write(path, status=1, ended_s=time.time(), words=_words(error))
        raise
    record.write(path, status=0, ended_s=time.time(), words=end_of(study))


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")


def end_of(study: Study) -> str:
    """Text on the end of a search that is not over; "" if it is over."""
    return "" if study.is_over else "It is not over: the same call goes on."
