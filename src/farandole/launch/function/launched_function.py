"""Job of a function that runs in the background on N workers: the return value of ``farandole.launch``.

    job = LaunchedFunction(request, task, np=2)    # returns at once
    job.resize(4)                                  # for functions of ``hvd.elastic.run``
    job.result()                                   # waits; returns the result of ``farandole.run``

``farandole.monitor.launching`` defines ``launch`` itself: lower floors know nothing of the live view.
"""

# Threads. The job's thread is in ``run_elastic`` from beginning to end; it owns ``_outcome`` and ``_failure`` until it
# has ended (``_thread.join``). Any thread may call ``stop`` and ``resize``: ``stop`` signals the launcher's process
# under ``_lock``, under which the job's thread also clears it, so that no process with a reused pid is signalled;
# ``resize`` replaces a file, which the launcher reads every second.

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast, final

import msgspec

from farandole.errors import ControlError, UnsupportedError, UsageError
from farandole.launch.function.elastic_function import JobRequest, run_elastic
from farandole.launch.function.job_record import folder_of_sockets, monitor_config, own_folder

logger = logging.getLogger("farandole.launch")


class WaitingView(Protocol):
    """Live view of a job."""

    def wait(self, until: Callable[[], bool]) -> None:
        """Serve the view's buttons until ``until()`` is true, or return at once if it has no viewers."""


class ViewPlan(NamedTuple):
    """Plan of the record and the view of a job's metrics.

    ``view`` makes the live view; ``None``: only a record. ``record``: its folder, or "" for a temporary one that is
    deleted with the job. ``name``: title. ``is_optional``: the job starts even if view or record cannot be made.
    """

    view: Callable[[LaunchedFunction], WaitingView] | None
    record: str
    name: str
    is_optional: bool = False


@final
class LaunchedFunction:
    """Function that runs on workers of this host. It is stopped at the interpreter's exit."""

    def __init__(self, request: JobRequest, task: bytes, np: int, watch: ViewPlan | None = None) -> None:
        folder = own_folder(self)
        is_shown = watch is not None and watch.view is not None
        self.link_file = (folder_of_sockets(self, folder) if is_shown else folder) / "live.link"
        """File with the link of the job's live view while that exists."""
        self.record = Path(watch.record or folder / "run") if watch is not None else None
        self._view, self._widget = watch.view if watch is not None else None, cast("WaitingView | None", None)
        if watch is not None and self.record is not None:
            config = monitor_config(watch.name, self.record, self.link_file if is_shown else None, watch.is_optional)
            request = msgspec.structs.replace(request, job=msgspec.structs.replace(request.job, monitor=config))
        self._file = folder / "hosts"
        self._np = np
        self._write(np)
        self._request, self._task = msgspec.structs.replace(request, hostfile=str(self._file)), task
        self._lock = threading.Lock()
        self._calls: list[Callable[[], None]] | None = []
        """Calls to make when the job has ended; ``None`` afterwards."""
        self._launcher = -1  # pidfd of the launcher's process, -1 without one
        self._is_stopped = False
        self._outcome: list[Any] = []
        self._failure: BaseException | None = None
        # A daemon: the interpreter would wait for it before ``atexit``. The kernel kills its child processes.
        self._thread = threading.Thread(target=self._run_job, name="farandole-launch", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        """State of the job, for the notebook."""
        if self._thread.is_alive():
            return f"a job of {self._np} workers, running: .result() waits, .stop() ends it"
        told = "stopped" if self._is_stopped else "ended" if self._failure is None else f"failed: {self._failure}"
        return f"a job of {self._np} workers, {told}"

    @property
    def status(self) -> int:
        """Exit status: 0 while it runs or after success, 1 if it failed or was stopped."""
        return int(self._is_stopped or self._failure is not None)

    @property
    def done(self) -> bool:
        """True when all workers have exited."""
        return not self._thread.is_alive()

    def result(self, timeout_s: float | None = None) -> list[Any]:
        """Wait, and return the function's return values by rank; raises as ``farandole.run``.

        The buttons of the live view work meanwhile. Raises ``TimeoutError`` after ``timeout_s``; the job then goes on.
        A ``KeyboardInterrupt`` ends the wait and not the job.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        if self._widget is not None:
            self._widget.wait(lambda: self.done or (until_s is not None and time.monotonic() >= until_s))
        self._thread.join(None if until_s is None else max(0.0, until_s - time.monotonic()))
        if self._thread.is_alive():
            raise TimeoutError(f"the job has not ended within {timeout_s:g} s, and goes on: .result() waits again")
        if self._is_stopped:
            raise ControlError("the job was stopped, and has no result")
        if self._failure is not None:
            raise self._failure
        return self._outcome

    def stop(self) -> None:
        """End the workers, as SIGTERM does, and return when they have exited. Does nothing if the job has ended."""
        with self._lock:
            self._is_stopped = self._is_stopped or self._thread.is_alive()
            if self._launcher >= 0:
                _terminate(self._launcher)
        self._thread.join()

    def resize(self, np: int) -> None:
        """Continue with ``np`` workers: they join or leave at the next commit of the function's elastic state.

        A function without ``hvd.elastic.run`` cannot change its workers: the job then ends with an error.
        """
        if np < 1:
            raise UsageError(f"resize({np}) asks for no worker: .stop() ends the job")
        if self.done:
            raise UsageError("the job has ended: farandole.launch(...) begins another one")
        self._np = np
        self._write(np)

    @property
    def widget(self) -> Any:
        """Live view of the job, for the notebook; raises ``UnsupportedError`` if there is none."""
        if self._view is None:
            raise UnsupportedError(
                "this job has no live view, as it was launched outside of a notebook or by live=False: launch it by "
                "farandole.launch(..., live=True), or train by farandole run --live, which has a page"
            )
        if self._widget is None:
            self._widget = self._view(self)
        return self._widget

    def when_over(self, call: Callable[[], None]) -> None:
        """Call ``call`` in another thread after the workers exit, before ``result`` returns; at once if they have."""
        with self._lock:
            if self._calls is not None:
                self._calls.append(call)
                return
        call()

    def _write(self, np: int) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(f"{socket.gethostname()} slots={np}\n")
        new.replace(self._file)

    def _run_job(self) -> None:
        try:
            self._outcome = run_elastic(self._request, self._task, self._begun)
        except BaseException as error:  # ``result`` raises it
            self._failure = error
        with self._lock:
            calls, self._calls = self._calls, None
        for call in calls or ():
            try:
                call()
            except Exception:  # it must not lose the job's result
                logger.warning("the end of a job could not be shown", exc_info=True)

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
    """Send SIGTERM to a process, but not to another one that reuses its pid."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
