"""``farandole run --stage SRC=DST``: copy folders to the hosts of a job before its workers start.

    status, job = stage_first(job, ["/lustre/set=/local/set"])

A job with one worker per host makes the copies, each byte read from SRC by one of them; then the requested job runs. A
host that joins an elastic job later, or is named by a script or a file, makes its copies when its first worker starts.
"""

from __future__ import annotations

import secrets
import sys

import msgspec

from farandole.control.entry import entry_command
from farandole.errors import UsageError
from farandole.launch.hosts.discovery import Fixed
from farandole.launch.hosts.elastic_job import ElasticJob
from farandole.launch.hosts.plan import Job
from farandole.launch.job.launcher import Launcher
from farandole.settings import Settings


def stage_first(job: Job | ElasticJob, stages: list[str]) -> tuple[int, Job | ElasticJob]:
    """Make the copies; return their exit status, and the job to run afterwards."""
    from farandole.data.tools.copy import MODULE, command_after  # the data extra

    asked = job.job if isinstance(job, ElasticJob) else job
    status, run = 0, secrets.token_hex(8)
    if hosts := _hosts(job):
        is_here = isinstance(job, ElasticJob) and not job.reaches_out
        copying = Job(
            [*entry_command(MODULE), "all", run, *stages],
            hosts,
            _static(asked.settings),
            starter=None if is_here else job.starter,
            python_path=asked.python_path,
            environment=asked.environment,
        )
        result = Launcher(copying, owns_process=True).run()
        if result.words:
            print(f"farandole: staging: {result.words}", file=sys.stderr)
        status = result.status
    wrapped = msgspec.structs.replace(asked, command=command_after(run, stages, asked.command))
    return status, msgspec.structs.replace(job, job=wrapped) if isinstance(job, ElasticJob) else wrapped


def _hosts(job: Job | ElasticJob) -> tuple[str, ...]:
    """Hosts known before the job begins."""
    if isinstance(job, Job):
        return tuple(dict.fromkeys(job.hosts))
    return tuple(host.name for host in job.discovery.hosts) if isinstance(job.discovery, Fixed) else ()


def _static(settings: Settings) -> Settings:
    """The same settings, for a job of fixed size."""
    return msgspec.structs.replace(settings, min_np=0, max_np=0, host_discovery_script="")


def require_pairs(stages: list[str]) -> None:
    """Check the values of ``--stage``. Raises ``UsageError``."""
    for each in stages:
        source, _, target = each.rpartition("=")
        if not (source and target):
            raise UsageError(f"--stage {each}: write SRC=DST, as in --stage /lustre/set=$TMPDIR/set")
