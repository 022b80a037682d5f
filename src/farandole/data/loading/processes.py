"""Processes that decode samples, for libraries that hold a lock: each is a fresh interpreter, never a fork.

    processes = DecodeProcesses(SampleLoader(dataset), 4)
    processes.loads[0](epoch, 17)              # a sample, decoded there; valid until the next call
    processes.close()

The arrays of a sample lie in anonymous memory that both processes map, so nothing is left behind if one is killed;
everything else of a sample is sent over a socket. A process exits when its socket closes.
"""

# Threads. Each thread of a pool has a process of its own, so one thread at a time asks a process. The lock is for the
# case that a pool was abandoned in the middle of a read, and another one follows. ``close`` may run meanwhile: it kills
# the process, and the reader sees the end of the socket.
#
# The mapping only grows. The decode process extends the file (with ``posix_fallocate``, so that a full memory is an
# error there and no SIGBUS here); its answer has the new length.

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, final

import cloudpickle

from farandole.data.loading.corrupt import CorruptSampleError, described
from farandole.data.storage.waits import during, mine
from farandole.errors import DataError, UsageError

_PROGRAM = f"import sys; sys.path[:] = filter(None, sys.path); from {__name__} import serve; serve()"
_ALIGNMENT = 64
END_S = 10.0


@final
class RemoteSampleError(Exception):
    """Traceback of an error in a decode process, as the cause of the error here."""


@final
class DecodeProcess:
    """One decode process, on the parent's side: call it with an epoch and a sample's number."""

    def __init__(self, program: bytes, number: int, of: int, dataset: Any) -> None:
        self.dataset = dataset
        self._name, self._lock = f"process {number + 1} of {of}", threading.Lock()
        self._arena = os.memfd_create("farandole-samples", os.MFD_CLOEXEC)
        self._mapping: mmap.mmap | None = None
        ours, theirs = socket.socketpair()
        with theirs:
            paths = os.pathsep.join(filter(None, sys.path))
            variables = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": paths}
            fds = (theirs.fileno(), self._arena)
            command = [sys.executable, "-c", _PROGRAM, *map(str, fds)]
            self._process = subprocess.Popen(command, pass_fds=fds, env=variables, stdin=subprocess.DEVNULL)
        self._connection = Connection(ours.detach())
        with contextlib.suppress(OSError):  # it has exited already, which the first call reports
            self._connection.send_bytes(program)

    @property
    def is_alive(self) -> bool:
        """True while the process runs."""
        return self._process.poll() is None

    def __call__(self, epoch: int, index: int) -> Any:
        with self._lock, during("decode", self._name):
            try:
                self._connection.send((epoch, index))
                content, places, nbytes, spent, cpu_s = self._connection.recv()
            except (EOFError, OSError) as error:
                raise DataError(f"{self._name} that decode has ended ({self._end()})") from error
            mine().add(spent, cpu_s)
            if places is None:
                kind, text, remote = content
                failure = CorruptSampleError(text) if kind == "CorruptSampleError" else DataError(text)
                raise failure from RemoteSampleError(f"in {self._name}\n{remote}".rstrip())
            if self._mapping is None or len(self._mapping) < nbytes:
                self._mapping = mmap.mmap(self._arena, nbytes)
            view = memoryview(self._mapping)
            buffers = [view[begin : begin + length] for begin, length in places]
            return pickle.loads(content, buffers=buffers)  # noqa: S301 (from a process of ours)

    def close(self) -> None:
        """Kill the process, even in the middle of a sample; later calls do nothing."""
        with contextlib.suppress(OSError):
            self._connection.close()
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # in an uninterruptible read
            self._process.wait(END_S)
        if self._arena >= 0:
            os.close(self._arena)
            self._arena, self._mapping = -1, None

    def _end(self) -> str:
        """Describe how the process ended."""
        try:
            code = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            return f"pid {self._process.pid} closed its socket"
        if code >= 0:
            return f"pid {self._process.pid}, exit status {code}: what it wrote to standard error says why"
        often = "; the kernel does so for want of memory: take fewer processes" if code == -signal.SIGKILL else ""
        return f"pid {self._process.pid}, by {signal.Signals(-code).name}{often}"


@final
class DecodeProcesses:
    """``number`` processes with a copy of ``load``; they end with this object, or earlier by ``close``."""

    def __init__(self, load: Any, number: int) -> None:
        dataset = getattr(load, "dataset", None)
        try:
            program = cloudpickle.dumps(load)
        except Exception as error:  # any class of the user's data set may raise it
            raise UsageError(
                f"processes={number}: {type(dataset).__name__} and augment= must be picklable for other processes "
                f"({type(error).__name__}: {error}); threads={number} takes them as they are"
            ) from error
        self.loads: list[DecodeProcess] = []
        self._finalize = weakref.finalize(self, _close, self.loads)
        for place in range(number):
            self.loads.append(DecodeProcess(program, place, number, dataset))

    @property
    def are_alive(self) -> bool:
        """True while all processes run."""
        return self._finalize.alive and all(each.is_alive for each in self.loads)

    def close(self) -> None:
        """End all processes."""
        self._finalize()


def _close(processes: list[DecodeProcess]) -> None:
    for each in processes:
        each.close()


class _Arena:
    """Shared memory, on the writer's side."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._mapping: mmap.mmap | None = None

    def put(self, sample: Any) -> tuple[bytes, list[tuple[int, int]], int]:
        """Pickle a sample; returns the pickle, the places of its arrays, and the length of the memory."""
        buffers: list[pickle.PickleBuffer] = []
        content = pickle.dumps(sample, protocol=5, buffer_callback=buffers.append)
        places, end = [], 0
        views = [buffer.raw() for buffer in buffers]
        for view in views:
            places.append((end, view.nbytes))
            end += -(-view.nbytes // _ALIGNMENT) * _ALIGNMENT
        if self._mapping is None or len(self._mapping) < end:
            size = -(-max(end, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
            os.posix_fallocate(self._descriptor, 0, size)
            self._mapping = mmap.mmap(self._descriptor, size)
        for view, (begin, length) in zip(views, places, strict=True):
            self._mapping[begin : begin + length] = view
        return content, places, len(self._mapping)


def serve() -> None:
    """Decode the samples that the parent requests, until its socket closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent decides
    parent = os.getppid()
    # Schedulers send SIGTERM to all processes as a notice, and the parent runs on until its next commit.
    signal.signal(signal.SIGTERM, lambda *_: None if os.getppid() == parent else os._exit(0))
    connection, arena = Connection(int(sys.argv[1])), _Arena(int(sys.argv[2]))
    with contextlib.suppress(EOFError, OSError):
        load: Callable[[int, int], Any] | None = None
        program = connection.recv_bytes()
        while True:
            epoch, index = connection.recv()
            begin_s = time.process_time()
            try:
                load = load or pickle.loads(program)  # noqa: S301 (from the parent)
                answer: tuple[Any, ...] = arena.put(load(epoch, index))
            except BaseException as error:  # the parent raises it
                trace = traceback.format_exc()
                if isinstance(error, DataError):  # its text says all, and the library's error is a line
                    trace = described(error.__cause__) if error.__cause__ else ""
                answer = (type(error).__name__, described(error), trace), None, 0
            connection.send((*answer, mine().pop_times(), time.process_time() - begin_s))
