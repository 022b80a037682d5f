"""Jobs through the real launcher, and commands, run to their end.

Finished: ``launch(2, "import farandole.numpy as hvd; ...").ok().lines()``, where ``launch`` is the fixture.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import pytest

from tests.support.frameworks import with_numpy_alone, without_compiler
from tests.support.patience import factor
from tests.support.tiers import Tier


@final
@dataclass(frozen=True)
class Finished:
    """A job that ended by itself."""

    code: int
    stdout: str
    stderr: str
    seconds: float

    def ok(self) -> Finished:
        """Itself, or a failure that shows what the job printed."""
        assert self.code == 0, f"the job exited with {self.code}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"
        return self

    def lines(self) -> list[str]:
        """Standard output in sorted lines, without the ``[rank]<stream>:`` prefixes of workers."""
        return sorted(line.partition(">:")[2].strip() if ">:" in line else line for line in self.stdout.splitlines())


@final
@dataclass(frozen=True)
class Launch:
    """The type of the fixture ``launch``; scripts run in ``folder``. In ``tests/jobs`` they find no framework."""

    folder: Path
    tier: Tier

    def __call__(
        self,
        np: int,
        script: str | Path,
        *,
        options: Sequence[str] = (),
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        deadline_s: float = 150.0,
        python: str = sys.executable,
    ) -> Finished:
        """Run a script (its text, or its path) on ``np`` ranks through ``farandole run`` and wait for the end.

        ``python``: the interpreter of another environment that has Farandole.
        """
        if isinstance(script, str):
            text, script = script, self.folder / "script.py"
            script.write_text(textwrap.dedent(text))
        command = [python, "-m", "farandole", "run", "-np", str(np), *options]
        command += [python, str(script), *arguments]
        found = with_numpy_alone() if self.tier is Tier.JOBS else without_compiler()
        return run_to_end(command, self.folder, deadline_s, {**found, **(environment or {})})


def run_to_end(
    command: Sequence[str], cwd: Path, deadline_s: float, environment: Mapping[str, str] | None = None
) -> Finished:
    """Run ``command`` in a session of its own; at the deadline end it and fail with what it had printed.

    ``deadline_s``: of an idle machine.
    """
    begin, deadline_s = time.monotonic(), deadline_s * factor()
    with (cwd / "stdout.txt").open("w+") as out, (cwd / "stderr.txt").open("w+") as err:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = None
        out.seek(0)
        err.seek(0)
        stdout, stderr = out.read(), err.read()
    if code is None:
        pytest.fail(f"not done after {deadline_s} s: {' '.join(command)}\n{stdout}\n{stderr}")
    return Finished(code, stdout, stderr, time.monotonic() - begin)
