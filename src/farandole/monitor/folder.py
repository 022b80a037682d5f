r"""Folder of a recorded run: everything that the live view shows, on disk, in one place.

    with RunWriter.create("runs/a", describe(["python", "train.py"])) as writer:
        writer.append(PointRecord(0, 1, [MetricPoint(time.time(), 7, 0, {"loss": 0.5})]))
    for record in read_records("runs/a"): ...
    read_info("runs/a").command

    runs/a/                     mode 0700; every file 0600
      run.json                  a RunInfo in JSON: versions, git, command, seeds, when it began, how it ended
      metrics                   the log below; of a search the states and values of its trials
      output/stdout, stderr     lines of workers as the launcher got them, each with its tag "[rank]<stream>:"
      tensorboard/, metrics.csv where they were asked for (farandole.monitor.exports)
      trials.log, checkpoints/  of a search, and of its trials: written by farandole.search, not by this module

The log ``metrics`` begins with the eight bytes ``FARANDO1``. Records follow, each as

    length of the payload     4 bytes, little-endian
    CRC-32 of the payload     4 bytes, little-endian
    payload                   one of ``Record`` in msgpack, an array whose first element is the class name

Records are only appended, each by one ``write``. A run that was killed leaves at most one torn record at the end: a
writer that opens the log cuts it off after the last whole record, a reader stops there. A reader that follows a running
run keeps its offset. Every number has two times: ``time_s`` in seconds since 1970, and a step.

One writer: ``RunWriter`` holds a ``WriterLock`` on ``metrics``, and a second writer is refused. It does no ``fsync``: a
crash of the machine may cost seconds, a crash of the process nothing. Keys are in none of these files. A field may be
added at the end of a record, with a default: older readers skip it, and skip classes that they do not know.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, final

import msgspec

from farandole.control.watch_messages import MetricPoint
from farandole.control.writer_lock import WriterLock
from farandole.errors import UsageError
from farandole.version import __version__

if TYPE_CHECKING:
    from typing_extensions import Self

MAGIC = b"FARANDO1"
HEAD = struct.Struct("<II")
LONGEST_BYTES = 2**26
"""Longest valid payload: a greater length means that the file is torn, or no log of a run."""

INFO, METRICS, OUTPUT = "run.json", "metrics", "output"
STREAMS = ("stdout", "stderr")


@final
class RunInfo(msgspec.Struct, omit_defaults=True):
    """Description of a run. ``status``: exit status of a run that has ended. ``words``: why the status is not 0.

    ``versions``: of Python, Farandole and the installed frameworks. ``git``: commit of the folder in which it was
    started, with ``+`` if files were changed. ``seeds``: seeds in command and environment. ``search``, for a search:
    number of trials, number of epochs, and whether small values are good. ``asked``, for a search: its arguments, such
    as hyper-parameters and rungs. ``stopped``: a user ended it from its live view.
    """

    began_s: float
    command: list[str]
    folder: str = ""
    host: str = ""
    user: str = ""
    git: str = ""
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    seeds: dict[str, str] = msgspec.field(default_factory=dict)
    farandole: str = __version__
    ended_s: float = 0.0
    status: int | None = None
    words: str = ""
    search: dict[str, int | bool] = msgspec.field(default_factory=dict)
    stopped: bool = False
    asked: dict[str, Any] = msgspec.field(default_factory=dict)


# -- records ----------------------------------------------------------------------------------------------------------


class _Record(msgspec.Struct, frozen=True, tag=True, array_like=True):
    pass


@final
class PointRecord(_Record, frozen=True):
    """Numbers of one rank of a generation; ``dropped`` numbers were too many."""

    rank: int
    generation: int
    points: list[MetricPoint]
    dropped: int = 0


@final
class MemberRecord(_Record, frozen=True):
    """A generation is formed: the host of each rank."""

    time_s: float
    generation: int
    hosts: list[str]


@final
class MarkRecord(_Record, frozen=True):
    """Event of a run: a ``fault``, ``recovery``, ``order`` that was carried out, or ``note``; step -1: unknown."""

    time_s: float
    kind: str
    text: str
    step: int = -1


@final
class TrialRecord(_Record, frozen=True):
    """State of one trial of a search: its row in the table of trials. The last record of each ``trial`` counts.

    ``points``: values after epochs that no earlier record has; ``metrics``: the same for metrics, by name.
    """

    time_s: float
    trial: int
    state: str
    params: dict[str, float | int | str | bool | None]
    values: dict[str, float] = msgspec.field(default_factory=dict)
    step: int = -1
    workers: int = 0
    note: str = ""
    points: list[tuple[int, float]] = msgspec.field(default_factory=list)
    metrics: dict[str, list[tuple[int, float]]] = msgspec.field(default_factory=dict)


Record: TypeAlias = PointRecord | MemberRecord | MarkRecord | TrialRecord

_encoder, _decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Record)


@final
class RunWriter:
    """The only writer of a run's folder."""

    def __init__(self, path: Path, info: RunInfo, fd: int, lock: WriterLock) -> None:
        self.path, self.info = path, info
        self._fd, self._lock = fd, lock
        self._outputs: dict[int, int] = {}

    @classmethod
    def create(cls, path: str | os.PathLike[str], info: RunInfo) -> Self:
        """Create the folder, or use an empty one; raises ``UsageError`` if it has a run already."""
        folder = Path(path).absolute()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if (folder / INFO).exists() or (folder / METRICS).exists():
                raise UsageError(f"{folder} has the record of another run: give a folder that is new, or empty")
            writer = cls(folder, info, *_locked(folder, os.O_CREAT | os.O_EXCL))
            with writer._kept():
                writer._begin()
        except OSError as error:
            raise UsageError(f"the run cannot be recorded in {folder}: {error.strerror}") from error
        return writer

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Go on with an existing run; cuts off a torn record at the end of its log, and creates a missing log."""
        folder = Path(path).absolute()
        info = read_info(folder)
        try:
            writer = cls(folder, info, *_locked(folder, os.O_CREAT))
            with writer._kept():
                writer._go_on()
        except OSError as error:
            raise UsageError(f"the run in {folder} cannot be continued: {error.strerror}") from error
        return writer

    def _go_on(self) -> None:
        """Cut the log off at its last whole record."""
        with open(self._fd, "rb", closefd=False) as file:
            text = file.read()
        if not text.startswith(MAGIC) and not MAGIC.startswith(text):
            raise UsageError(f"{self.path / METRICS} is no log of a run")
        os.ftruncate(self._fd, whole := LogReader(text).whole)
        if not whole:
            self._write(MAGIC)

    def _begin(self) -> None:
        """Write the first files of a run; if this fails, remove them, or the next writer would be refused."""
        try:
            self.describe()
            self._write(MAGIC)
        except BaseException:
            for name in (INFO, METRICS):
                (self.path / name).unlink(missing_ok=True)
            raise

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        """Close everything if the block raises: else no other process could write before this process exits."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def append(self, record: Record) -> None:
        """Write one record; raises ``OSError`` if writing fails."""
        payload = _encoder.encode(record)
        self._write(HEAD.pack(len(payload), zlib.crc32(payload)) + payload)

    def _write(self, text: bytes) -> None:
        left = memoryview(text)
        while left:  # one call, except on a disk that is almost full
            left = left[os.write(self._fd, left) :]

    def output(self, stream: int, text: bytes) -> None:
        """Append lines to ``output/stdout`` (0) or ``output/stderr`` (1)."""
        if stream not in self._outputs:
            (self.path / OUTPUT).mkdir(mode=0o700, exist_ok=True)
            self._outputs[stream] = _opened(self.path / OUTPUT / STREAMS[stream], os.O_CREAT)
        left = memoryview(text)
        while left:
            left = left[os.write(self._outputs[stream], left) :]

    def describe(self) -> None:
        """Write the current ``info`` to ``run.json``."""
        new = self.path / f"{INFO}.new"
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(self.info), indent=1) + b"\n")
        new.rename(self.path / INFO)  # atomic: other processes read the file meanwhile

    def close(self) -> None:
        """Close the descriptors, and release the lock. Idempotent."""
        fds, self._outputs = [self._fd, *self._outputs.values()], {}
        self._fd = -1
        self._lock.close()
        for fd in fds:
            if fd >= 0:
                os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@final
class LogReader:
    """Records in the bytes of a log; ``whole``: number of bytes up to the end of the last whole record."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._records = list(self._read())

    def _read(self) -> Iterator[Record]:
        at = self.whole = len(MAGIC) if self._text.startswith(MAGIC) else 0
        while self.whole:
            if len(self._text) < at + HEAD.size:
                return
            length, crc = HEAD.unpack_from(self._text, at)
            payload = self._text[at + HEAD.size : at + HEAD.size + length]
            if length > LONGEST_BYTES or len(payload) < length or zlib.crc32(payload) != crc:
                return
            self.whole = at = at + HEAD.size + length
            with contextlib.suppress(msgspec.DecodeError):  # of a later version
                yield _decoder.decode(payload)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)


def read_info(path: str | os.PathLike[str]) -> RunInfo:
    """Description of the run in a folder; raises ``UsageError`` if there is none."""
    file = Path(path) / INFO
    try:
        return msgspec.json.decode(file.read_bytes(), type=RunInfo)
    except OSError as error:
        raise UsageError(f"there is no record of a run in {path}: {file.name}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise UsageError(f"{file} is not what a recorded run has: {error}") from error


def read_records(path: str | os.PathLike[str]) -> Iterator[Record]:
    """Records of a run so far, without a torn last record."""
    try:
        text = (Path(path) / METRICS).read_bytes()
    except OSError as error:
        raise UsageError(f"there is no log of a run in {path}: {error.strerror}") from error
    return iter(LogReader(text))


def _opened(path: Path, how: int) -> int:
    return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | how, 0o600)


def _locked(folder: Path, how: int) -> tuple[int, WriterLock]:
    """The log, open and locked; raises ``UsageError`` if another process writes to it."""
    fd = _opened(folder / METRICS, how)
    try:
        return fd, WriterLock(fd, folder / METRICS)
    except BlockingIOError as error:
        os.close(fd)
        text = f"the run in {folder} goes on: it has a writer already ({error.strerror})"
        raise UsageError(text) from error
    except BaseException:
        os.close(fd)
        raise
