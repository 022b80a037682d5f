"""Jobs through the real launcher, watched while they run: ``job([...options], "bash text")``."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import final

import pytest

from tests.support.frameworks import without_compiler
from tests.support.patience import PATIENCE_S
from workbench.controllers import FAILED, fail_controller

DEADLINE_S = 2 * PATIENCE_S
MARKER = "LAUNCH_TEST_MARKER"


@final
class RunningJob:
    """A launcher in a session of its own; every process of the job carries a variable that only this job has."""

    def __init__(
        self,
        folder: Path,
        options: Sequence[str],
        command: Sequence[str],
        environment: Mapping[str, str],
        before: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.marker = uuid.uuid4().hex
        self.guests: list[subprocess.Popen[str]] = []  # agents of lent hosts, which are no children of the launcher
        self._out, self._err = folder / "out.txt", folder / "err.txt"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [*before, sys.executable, "-m", "workbench.controllers", "run", *options, *command],
                cwd=folder,
                env={**os.environ, **without_compiler(), **environment, MARKER: self.marker},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def stdout(self) -> str:
        return self._out.read_text()

    @property
    def stderr(self) -> str:
        return self._err.read_text()

    def until(self, condition: Callable[[], bool], what: str = "") -> None:
        """Wait for ``condition``; fail with the job's output at the deadline."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(
                    f"waited in vain {what}\n--- stdout\n{self.stdout[-2000:]}\n--- stderr\n{self.stderr[-2000:]}"
                )
            time.sleep(0.005)  # nothing announces what /proc and a file show

    def prints(self, text: str, times: int = 1) -> None:
        """Wait until ``text`` has been printed so often."""
        self.until(lambda: self.stdout.count(text) >= times, f"for {text!r}")

    def end(self) -> int:
        """Wait for the end: exit status as a shell has it. Nothing of the job may be left then."""
        self.until(lambda: self.process.poll() is not None, "for the end")
        code = self.process.returncode
        self.until(lambda: all(guest.poll() is not None for guest in self.guests), "for the end of what was lent")
        assert not self.left()
        return code if code >= 0 else 128 - code

    def left(self) -> list[int]:
        """The living processes of this job, launcher included."""
        needle = f"{MARKER}={self.marker}".encode()
        return [pid for pid in _processes() if needle in _read(pid, "environ") and b") Z " not in _read(pid, "stat")]

    def agent(self) -> int:
        """The process number of the agent."""
        (pid,) = [pid for pid in self.left() if b"farandole.launch.agents.agent" in _read(pid, "cmdline")]
        return pid

    def fail_controller(self) -> None:
        """Let the controller of an elastic job fail, and wait until another one takes over."""
        failures = self.stderr.count(FAILED)
        fail_controller(self.process.pid)
        self.until(lambda: self.stderr.count(FAILED) > failures, "for another controller")

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """Stop the launcher, and let its controller fail before it reads what happens in the block."""
        failures = self.stderr.count(FAILED)
        os.kill(self.process.pid, signal.SIGSTOP)
        yield
        fail_controller(self.process.pid)
        os.kill(self.process.pid, signal.SIGCONT)
        self.until(lambda: self.stderr.count(FAILED) > failures, "for another controller")

    def close(self) -> None:
        """End whatever a failed test has left."""
        for pid in self.left():
            os.kill(pid, signal.SIGKILL)
        self.process.wait(DEADLINE_S)


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _read(pid: int, what: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes()
    except OSError:
        return b""


StartJob = Callable[..., RunningJob]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[StartJob]:
    """Starts a job: ``job("-np", "2", bash="echo hello")`` or ``job("-np", "2", command=["./train.sh"])``.

    ``before`` comes before it on the command line, and is to become the launcher by ``exec``.
    """
    jobs: list[RunningJob] = []

    def start(
        *options: str,
        bash: str = "",
        python: str = "",
        command: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
    ) -> RunningJob:
        if bash:
            command = ["bash", "-c", bash]
        elif python:
            (tmp_path / "worker.py").write_text(python)
            command = [sys.executable, "worker.py"]
        jobs.append(RunningJob(tmp_path, options, command, environment or {}, before))
        return jobs[-1]

    yield start
    for one in jobs:
        one.close()
