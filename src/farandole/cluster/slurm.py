"""Environment of tasks started by Slurm: ``srun python train.py``, with or without ``sbatch`` or ``salloc``.

>>> Slurm.recognises({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"})      # a batch script
False
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from farandole.cluster.contact import Contact, Meeting
from farandole.cluster.environment import Environment, Vocabulary
from farandole.cluster.shared_file import SharedFile

VOCABULARY = Vocabulary(
    rank="SLURM_PROCID",
    size="SLURM_STEP_NUM_TASKS",  # SLURM_NTASKS may be the number of the allocation
    local_rank="SLURM_LOCALID",
    job="SLURM_JOB_ID",
)
STEP, RESTARTS, HOSTS = "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "SLURM_STEP_NUM_NODES"

FIRST_SPECIAL_STEP = 0xFFFFFFF0
"""First number of Slurm's special steps: the batch script, the shell of ``salloc``, and others."""


@final
class Slurm(Environment):
    """Environment of a task of a job step. A process in an allocation without ``srun`` does not count as a task."""

    name = "srun"
    remedy = "Slurm sets it for every task: start the job with: srun python train.py"
    vocabulary = VOCABULARY
    marks = (STEP, RESTARTS)

    @classmethod
    def recognises(cls, variables: Mapping[str, str]) -> bool:
        """True for the tasks of a step that ``srun`` created."""
        step = variables.get(STEP, "")
        return VOCABULARY.rank in variables and step.isdecimal() and int(step) < FIRST_SPECIAL_STEP

    @property
    def spans_hosts(self) -> bool:
        """False if the step has one node."""
        return self._variables.get(HOSTS) != "1"

    def file(self, meeting: Meeting) -> SharedFile:
        """File named by job, step and restart, so that the file of an earlier step or restart is never used."""
        job, restarts = self._number(VOCABULARY.job), self._variables.get(RESTARTS, "0")
        return SharedFile(meeting.folder, f"slurm-{job}.{self._number(STEP)}.{restarts}{meeting.suffix}")

    def share(self, contact: Contact | None, meeting: Meeting) -> Contact:
        """Share by a file."""
        return self.file(meeting).share(contact, meeting.timeout_s)
