"""Wait for a Slurm job: print its output meanwhile, and return its exit status.

    follow("812", os.environ, sys.stdout.buffer)        # 0

The wait includes requeued runs of the job. Slurm does not report the end or the output, so both are polled. An
interrupt ends the wait, and the job goes on.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple, final

from farandole.errors import FarandoleError
from farandole.launch.batch.submission import said
from farandole.launch.leases.slurm_words import has_ended

LOOK_S, LONGEST_LOOK_S = 1.0, 15.0
"""Interval of job queries, at first and at most: each costs slurmctld a call."""

READ_S = 0.2
"""Interval of reads of the output."""

UNANSWERED_S = 600.0
"""Time without an answer of Slurm after which ``follow`` gives up."""


@final
class SlurmJob(NamedTuple):
    """State of a job in Slurm's terms, its exit status, and its output file."""

    words: str
    status: int
    output: str

    @classmethod
    def read(cls, text: str) -> SlurmJob:
        r"""Parse the output of ``scontrol show job``.

        >>> SlurmJob.read("JobState=FAILED Reason=NonZeroExitCode\n ExitCode=3:0\n   StdOut=/home/me/a b.out\n")
        SlurmJob(words='FAILED', status=3, output='/home/me/a b.out')
        """
        state, output = re.search(r"\bJobState=(\w+)", text), re.search(r"^\s*StdOut=(.*)$", text, re.MULTILINE)
        codes = re.search(r"\bExitCode=(\d+):(\d+)", text)
        code, signal = map(int, codes.groups()) if codes else (0, 0)
        words = state[1] if state else ""
        status = code or (128 + signal if signal else int(words != "COMPLETED"))
        return cls(words, status, output[1] if output else "")


@final
class _Tail:
    """Output of a job, from the beginning on; a truncated file is read from the beginning again."""

    def __init__(self, to: BinaryIO) -> None:
        self._to, self._read_bytes = to, 0

    def copy(self, path: str) -> None:
        """Print new output."""
        with contextlib.suppress(OSError), open(path, "rb") as file:
            if Path(path).stat().st_size < self._read_bytes:
                self._read_bytes = 0
            file.seek(self._read_bytes)
            while block := file.read(2**16):
                self._read_bytes += len(block)
                self._to.write(block)
        self._to.flush()


def follow(number: str, variables: Mapping[str, str], to: BinaryIO) -> SlurmJob:
    """Wait for the end of a job; raises ``FarandoleError`` if its state is unknown."""
    tail, output, pause_s, answered_s = _Tail(to), "", LOOK_S, time.monotonic()
    while True:
        text, why = said(["scontrol", "show", "job", number], variables)
        if text:
            state, answered_s = SlurmJob.read(text), time.monotonic()
            output = state.output or output
            tail.copy(output)
            if has_ended(state.words):
                return state
        elif time.monotonic() - answered_s > UNANSWERED_S or "Invalid job id" in why:
            raise FarandoleError(f"the end of job {number} is not known: {why}; see: sacct -j {number}; {output}")
        until_s = time.monotonic() + pause_s
        while time.monotonic() < until_s:
            time.sleep(READ_S)
            tail.copy(output)
        pause_s = min(2 * pause_s, LONGEST_LOOK_S)
