"""Submission of a batch script: it goes to ``sbatch`` by its standard input.

    submitted(script, ["--parsable"], os.environ)       # "812"

Variables of the job in which this runs, if it does, stay behind: ``sbatch`` would take them for options of the new one.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence

from farandole.errors import FarandoleError, UsageError
from farandole.launch.sbatch.environment import environment

ANSWERS_S = 120.0
"""Time after which ``sbatch`` is given up: it asks again for so long while the controller of Slurm is away."""


def submitted(script: str, options: Sequence[str], variables: Mapping[str, str]) -> str:
    """Submit a script; returns what ``sbatch`` says. Raises ``UsageError`` without it, and when it refuses."""
    program = shutil.which("sbatch", path=variables.get("PATH"))
    if program is None:
        raise UsageError("sbatch is not found here: submit where Slurm's commands are, or see the script with --print")
    try:
        done = subprocess.run(
            [program, *options],
            input=script,
            env=environment(variables),
            capture_output=True,
            text=True,
            timeout=ANSWERS_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise FarandoleError(
            f"sbatch has not answered for {ANSWERS_S:.0f} s, and the job may be submitted or not: look with squeue --me"
        ) from error
    said = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    if done.returncode:
        raise UsageError("Slurm refuses this job: " + " ".join(line.removeprefix("sbatch: error: ") for line in said))
    return "\n".join(line.removeprefix("sbatch: ") for line in said)
