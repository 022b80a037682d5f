"""Environment of Slurm's commands, which ``sbatch`` passes on to the job. Pure.

    >>> environment({"A": "1", "SLURM_NTASKS": "4", "SLURM_CONF": "/etc/slurm.conf"})
    {'A': '1', 'SLURM_CONF': '/etc/slurm.conf'}
    >>> lease_environment({"A": "1", "HF_TOKEN": "hf_1", "SBATCH_TIMELIMIT": "5", "SBATCH_ACCOUNT": "project42"})
    {'A': '1', 'SBATCH_ACCOUNT': 'project42'}

Variables that describe the current Slurm job are left out: ``sbatch`` would take them as options, and a job submitted
inside another one would get its number of tasks and its memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from farandole.cluster.environment import CONTROLLER, HOROVOD, KEY, LAUNCHED, OWN, WATCHED, WORKER_ID

KEPT = ("SLURM_CONF",)
OF_A_JOB = {
    name
    for name in (
        KEY,
        CONTROLLER,
        LAUNCHED,
        WATCHED,
        WORKER_ID,
        *msgspec.structs.astuple(OWN),
        *msgspec.structs.astuple(HOROVOD),
    )
    if name
}
"""Variables of the Farandole job in which this runs. Slurm would store its key, where others can read it."""

SITE = (
    "SBATCH_ACCOUNT",
    "SBATCH_CLUSTERS",
    "SBATCH_CONSTRAINT",
    "SBATCH_PARTITION",
    "SBATCH_QOS",
    "SBATCH_RESERVATION",
)
"""Defaults of a user that leases keep; others, such as ``SBATCH_WAIT``, would override the options in their script."""

_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|(API|ACCESS|PRIVATE|_)_?KEY")
"""Names of secrets. Slurm stores the variables of a job; workers of a lease get secrets from the training itself."""

_OPTIONS = re.compile(r"(SBATCH|SQUEUE|SINFO|SCANCEL|SCONTROL)_")


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables for ``sbatch`` and for the job."""
    return {
        name: value
        for name, value in variables.items()
        if name in KEPT or (not name.startswith("SLURM") and name not in OF_A_JOB)
    }


def lease_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The same for leases, which a program submits: without secrets, and without hidden options."""
    return {
        name: value
        for name, value in environment(variables).items()
        if name in SITE or not (_OPTIONS.match(name) or is_secret(name))
    }


def is_secret(name: str) -> bool:
    """True for a variable whose name suggests a secret."""
    return _SECRET.search(name.upper()) is not None


def client_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables for commands whose output is parsed: times in seconds since 1970, texts in English."""
    kept = {name: value for name, value in environment(variables).items() if not _OPTIONS.match(name)}
    return {**kept, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}
