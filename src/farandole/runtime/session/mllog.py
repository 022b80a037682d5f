"""Log of a training in MLPerf format: configuration, intervals of the training, and quality reached.

    begin("result_0.txt")                                   # the launcher, once
    log = MLLog("result_0.txt")                             # rank 0 of every generation
    log.write("epoch_start", None, {"epoch_num": 1})
    complete("result_0.txt", status=0)                      # the launcher, when the job has ended

A line is ``:::MLLOG`` and a JSON object with ``namespace``, ``time_ms``, ``event_type``, ``key``, ``value`` and
``metadata``. A key that ends in ``_start`` or ``_stop`` begins or ends an interval; any other key is a point in time.

One file for the whole training: each line is one ``write`` at the end of the file, so the lines of a killed rank stay.
A new rank 0 reads the file and continues it: keys that belong in the log once are not repeated; an epoch that begins
again because its rank was lost continues the open interval; an epoch from which training has gone back is ended as
``interrupted``.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import msgspec

from farandole import events
from farandole.errors import UsageError

PREFIX = b":::MLLOG "
START, STOP = "_start", "_stop"
IN_RUN = ("epoch_start", "block_start", "eval_start")
"""Keys inside of a run: the first of them starts the run."""


@final
class MLLog:
    """Writer of the log; any thread may use it. A failed write ends the log with a warning, not the training."""

    def __init__(self, path: str) -> None:
        self._lock = threading.RLock()  # a signal handler may write on top of a write
        self._cancel: Callable[[], None] = _nothing
        self._keys: set[str] = set()
        self._open: dict[str, Mapping[str, Any]] = {}
        self._left: set[str] = set()
        self._later: set[str] = set()
        self._last_ms, self._is_written = 0, True
        try:
            for line in lines_of(Path(path).read_bytes()) if os.path.exists(path) else ():
                self._note(line)
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            self._fd, self._is_written = -1, False
            events.logger.warning("the log of MLPerf cannot be written to %s: %s", path, error.strerror)
        self._left = set(self._open)
        """Names of intervals that a previous writer began and did not end."""
        self._said = self._keys - self._later
        """Keys that previous writers wrote, except those that recur, such as epochs."""

    def introduce(self, hosts: Sequence[str]) -> None:
        """Write the first lines for these hosts, unless an earlier generation has; subscribe to recoveries."""
        self._cancel = events.listen(self._heard)
        if "init_start" not in self._keys:
            self.write("init_start", time_ms=_process_began_ms())
            self.write("number_of_nodes", len(set(hosts)))
            self.write("number_of_ranks", len(hosts))

    def _heard(self, event: events.Event) -> None:
        """Log that the ranks train again, after a fault or a change of their number."""
        if isinstance(event, events.Recovery):
            told = {"generation": event.generation, "step": event.step, "because": event.because}
            self.write("farandole_recovery", event.size, {**told, "seconds": event.total_s})

    def write(self, key: str, value: Any = None, metadata: Mapping[str, Any] | None = None, time_ms: int = 0) -> None:
        """Write one line. A key inside of a run first starts the run if the script has not."""
        with self._lock:
            if key in IN_RUN or key == "run_start":
                self._write("init_stop", None, {}, 0) if "init_stop" not in self._keys else None
                self._write("run_start", None, {}, 0) if "run_start" not in self._keys and key in IN_RUN else None
            if not (key in self._said and not metadata) and not self._goes_on(key, metadata or {}):
                self._write(key, value, metadata or {}, time_ms)

    def _goes_on(self, key: str, metadata: Mapping[str, Any]) -> bool:
        """True for the start of an interval that an earlier generation started and did not end."""
        name = key.removesuffix(START)
        if name == key or name not in self._left:
            return False
        self._left.discard(name)
        before = self._open[name]
        if _number(before) == _number(metadata):
            return True
        self._write(name + STOP, None, {**before, "interrupted": True}, 0)  # training went back to another interval
        return False

    def _write(self, key: str, value: Any, metadata: Mapping[str, Any], time_ms: int) -> None:
        time_ms = max(time_ms or int(time.time() * 1000), self._last_ms)  # clocks may differ, or be set back
        line = {
            "namespace": "",
            "time_ms": time_ms,
            "event_type": event_type(key),
            "key": key,
            "value": _plain(value),
            "metadata": {name: _plain(each) for name, each in metadata.items()},
        }
        self._note(line)
        if self._is_written:
            try:
                os.write(self._fd, PREFIX + msgspec.json.encode(line) + b"\n")  # one write: others may append, too
            except OSError as error:
                self._is_written = False
                events.logger.warning("the log of MLPerf ends here: %s", error.strerror)

    def _note(self, line: Mapping[str, Any]) -> None:
        key = str(line["key"])
        self._keys.add(key)
        if line["metadata"] or event_type(key) != "POINT_IN_TIME":
            self._later.add(key)
        self._last_ms = max(self._last_ms, int(line["time_ms"]))
        if key.endswith(START):
            self._open[key.removesuffix(START)] = line["metadata"]
        elif key.endswith(STOP):
            self._open.pop(key.removesuffix(STOP), None)
            self._left.discard(key.removesuffix(STOP))

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._cancel()
        with self._lock:
            fd, self._fd, self._is_written = self._fd, -1, False
            if fd >= 0:
                os.close(fd)


def event_type(key: str) -> str:
    """Type of event of a key.

    >>> event_type("epoch_start"), event_type("run_stop"), event_type("seed")
    ('INTERVAL_START', 'INTERVAL_END', 'POINT_IN_TIME')
    """
    return "INTERVAL_START" if key.endswith(START) else "INTERVAL_END" if key.endswith(STOP) else "POINT_IN_TIME"


def begin(path: str) -> None:
    """Create the log of a job before its start; raises ``UsageError`` if the file exists or cannot be created."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError as error:
        raise UsageError(
            f"--mllog {path}: there is a file already, and a log is of one run: give a new name"
        ) from error
    except OSError as error:
        raise UsageError(f"--mllog {path} cannot be written: {error.strerror}") from error


def complete(path: str, status: int) -> None:
    """End the log of a job with exit ``status``, unless its script has: with ``success`` or ``aborted``.

    An empty log is removed.
    """
    with contextlib.suppress(OSError):  # rank 0 may run on a host without this file system
        keys = {str(line["key"]) for line in lines_of(Path(path).read_bytes())}
        if not keys:
            os.unlink(path)
        elif "run_start" in keys and "run_stop" not in keys:
            log = MLLog(path)
            log.write("run_stop", None, {"status": "aborted" if status else "success"})
            log.close()


def lines_of(text: bytes) -> Iterator[dict[str, Any]]:
    """Parsed lines of a log; invalid lines, such as an incomplete last one, are skipped."""
    for line in text.splitlines():
        if line.startswith(PREFIX):
            with contextlib.suppress(msgspec.DecodeError, KeyError, TypeError, ValueError):
                found = msgspec.json.decode(line.removeprefix(PREFIX), type=dict[str, Any])
                if {"key", "time_ms", "metadata"} <= found.keys():
                    yield found


def _nothing() -> None:
    pass


def _number(metadata: Mapping[str, Any]) -> str:
    """Number that distinguishes intervals of the same name."""
    return str(
        next((metadata[name] for name in ("epoch_num", "first_epoch_num", "samples_count") if name in metadata), "")
    )


def _plain(value: Any) -> Any:
    """Value for JSON: tensors and NumPy scalars as numbers, values that JSON cannot represent as text."""
    value = value.item() if hasattr(value, "item") and getattr(value, "size", 1) in (1, ()) else value
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return {str(k): _plain(v) for k, v in value.items()} if isinstance(value, Mapping) else str(value)


def _process_began_ms() -> int:
    """Start time of this process: imports are part of the initialization."""
    ticks = int(Path("/proc/self/stat").read_bytes().rpartition(b") ")[2].split()[19])
    ago_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return int((time.time() - max(ago_s, 0.0)) * 1000)
