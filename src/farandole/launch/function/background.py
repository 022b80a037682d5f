"""``farandole.launch``: a function on N workers while the notebook, or the program, goes on.

job = farandole.launch(train, np=2)        # returns at once
job.resize(4)                              # for functions of ``hvd.elastic.run``
job.result()                               # waits; what ``farandole.run`` would have returned
"""

# Threads. One, of the job, is in ``run_elastic`` from its beginning to its end; ``_outcome`` and ``_failure`` are its
# until it has ended, which ``_thread.join`` tells. ``stop`` and ``resize`` come from any thread: the one signals the
# launcher's process under ``_lock``, in which the job's thread also takes it away, so that no other process that got
# its number is signalled; the other replaces a file, which the launcher reads every second.

from __future__ import annotations

import contextlib
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import msgspec

from farandole.errors import ControlError, UnsupportedError, UsageError
from farandole.launch.agents.ssh import Ssh
from farandole.launch.function.elastic_function import JobRequest, run_elastic
from farandole.launch.function.function import function_job, packed


@final
class LaunchedFunction:
    """A function that runs on workers of this host. At the interpreter's end it is stopped."""

    def __init__(self, request: JobRequest, task: bytes, np: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="farandole-")
        self._file = Path(self._folder.name, "hosts")
        self._np = np
        self._write(np)
        self._request, self._task = msgspec.structs.replace(request, hostfile=str(self._file)), task
        self._lock = threading.Lock()
        self._launcher = -1  # descriptor of its process, while there is one
        self._is_stopped = False
        self._outcome: list[Any] = []
        self._failure: BaseException | None = None
        # A daemon: the interpreter would wait for it before ``atexit``. The kernel kills what it has started.
        self._thread = threading.Thread(target=self._run, name="farandole-launch", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        """State of the job, for the notebook."""
        if self._thread.is_alive():
            return f"a job of {self._np} workers, running: .result() waits, .stop() ends it"
        told = "stopped" if self._is_stopped else "ended" if self._failure is None else f"failed: {self._failure}"
        return f"a job of {self._np} workers, {told}"

    @property
    def done(self) -> bool:
        """True when all workers have ended."""
        return not self._thread.is_alive()

    def result(self, timeout_s: float | None = None) -> list[Any]:
        """Wait, and return what the function returned, by rank; see ``farandole.run`` for what is raised.

        Raises ``TimeoutError`` if the job runs longer than ``timeout_s``, and goes on. A ``KeyboardInterrupt`` ends the
        wait and not the job.
        """
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"the job has not ended within {timeout_s:g} s, and goes on: .result() waits again")
        if self._is_stopped:
            raise ControlError("the job was stopped, and has no result")
        if self._failure is not None:
            raise self._failure
        return self._outcome

    def stop(self) -> None:
        """End the workers, as SIGTERM does, and return when they have ended. Nothing to do for a job that has."""
        with self._lock:
            self._is_stopped = self._is_stopped or self._thread.is_alive()
            if self._launcher >= 0:
                _terminate(self._launcher)
        self._thread.join()

    def resize(self, np: int) -> None:
        """Go on with ``np`` workers: they come, or go, at the next commit of the function's elastic state.

        A function without ``hvd.elastic.run`` cannot go on with others: then the job ends with an error.
        """
        if np < 1:
            raise UsageError(f"resize({np}) asks for no worker: .stop() ends the job")
        if self.done:
            raise UsageError("the job has ended: farandole.launch(...) begins another one")
        self._np = np
        self._write(np)

    @property
    def widget(self) -> Any:
        """Live view of the job; ``UnsupportedError`` where there is none."""
        raise UnsupportedError("this version has no live view: look at the job itself, and call .result() or .stop()")

    def _write(self, np: int) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(f"{socket.gethostname()} slots={np}\n")
        new.replace(self._file)

    def _run(self) -> None:
        with self._folder:
            try:
                self._outcome = run_elastic(self._request, self._task, self._begun)
            except BaseException as error:  # ``result`` raises it
                self._failure = error

    @contextlib.contextmanager
    def _begun(self, pid: int) -> Iterator[None]:
        with self._lock:
            self._launcher = os.pidfd_open(pid)
            if self._is_stopped:
                _terminate(self._launcher)
        try:
            yield
        finally:
            with self._lock:
                os.close(self._launcher)
                self._launcher = -1


def _terminate(pidfd: int) -> None:
    """Send SIGTERM to a process, and to no other that has its number by now."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)


def launch(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int = 1,
    *,
    env: Mapping[str, str] | None = None,
    python_path: Sequence[str] = (),
    **knobs: Any,
) -> LaunchedFunction:
    """Call ``func(*args, **kwargs)`` on ``np`` new workers of this host, and return at once.

        job = farandole.launch(train, kwargs={"lr": 0.1}, np=2)
        job.result()

    Arguments are those of ``farandole.run``. The job is elastic: ``resize`` changes its workers where ``func`` trains
    by ``hvd.elastic.run``. What workers print comes to this process's output.
    """
    if np < 1:
        raise UsageError(f"np={np} asks for no worker; it must be at least 1")
    job = function_job(env, python_path, {"min_np": 1, **knobs})
    task = packed(func, args, kwargs)
    return LaunchedFunction(JobRequest(job, None, "", "", Ssh(), is_local=True), task, np)
