"""Submission of a batch script through the standard input of ``sbatch``.

    submitted(script, ["--parsable"], os.environ)       # "812"

Variables of a surrounding job are removed: ``sbatch`` would take them as options of the new job.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence

from farandole.errors import FarandoleError, UsageError
from farandole.launch.leases.slurm_words import is_unreachable, remedy
from farandole.launch.sbatch.environment import environment

ANSWERS_S = 120.0
"""Timeout of ``sbatch``, which retries for this long without slurmctld."""


def submitted(script: str, options: Sequence[str], variables: Mapping[str, str]) -> str:
    """Submit a script; return the output of ``sbatch``.

    Raises ``UsageError`` if there is no ``sbatch`` or it refuses; ``FarandoleError`` without Slurm or an answer.
    """
    if shutil.which("sbatch", path=variables.get("PATH")) is None:
        raise UsageError("sbatch is not found here: submit where Slurm's commands are, or see the script with --print")
    try:
        done = _run_command(["sbatch", *options], variables, script)
    except subprocess.TimeoutExpired as error:
        raise FarandoleError(
            f"sbatch has not answered for {ANSWERS_S:.0f} s, and the job may be submitted or not: look with squeue --me"
        ) from error
    said = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    if done.returncode:
        words = " ".join(line.removeprefix("sbatch: error: ") for line in said)
        if is_unreachable(words):
            raise FarandoleError(f"Slurm cannot be reached from here: {words} -- submit where sinfo answers")
        raise UsageError(f"Slurm refuses this job: {words}{remedy(words)}")
    return "\n".join(line.removeprefix("sbatch: ") for line in said)


def asked(command: Sequence[str], variables: Mapping[str, str]) -> str:
    """Run an optional Slurm command of a submission; return why it failed, or ""."""
    return said(command, variables)[1]


def said(command: Sequence[str], variables: Mapping[str, str]) -> tuple[str, str]:
    """Output of a Slurm command and ""; or "" and why it failed."""
    try:
        done = _run_command(command, variables)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", str(error)
    return ("", " ".join((done.stderr or done.stdout).split())) if done.returncode else (done.stdout, "")


def _run_command(
    command: Sequence[str], variables: Mapping[str, str], text: str = ""
) -> subprocess.CompletedProcess[str]:
    program = shutil.which(command[0], path=variables.get("PATH")) or command[0]
    return subprocess.run(
        [program, *command[1:]],
        input=text,
        env=environment(variables),
        capture_output=True,
        text=True,
        timeout=ANSWERS_S,
        check=False,
    )
