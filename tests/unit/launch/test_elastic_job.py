"""What the options of an elastic job ask for: how many workers, from which hosts, and who starts agents there."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import cast

import pytest

from farandole.errors import UsageError
from farandole.launch.agents.agents import AgentStarter
from farandole.launch.agents.local import Local
from farandole.launch.agents.output import Receipts
from farandole.launch.agents.srun import Srun
from farandole.launch.agents.ssh import Ssh
from farandole.launch.hosts.discovery import Discovery, Fixed, Script, SlurmNodes, Watched
from farandole.launch.hosts.elastic_job import ElasticJob, elastic_job, limits
from farandole.launch.hosts.plan import Host, Job
from farandole.launch.hosts.starters import LauncherName, Means
from farandole.launch.job.elastic_loop import Handover
from farandole.launch.job.loop import JobResult
from farandole.settings import Settings

SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "4,2", "SLURMD_NODENAME": "n1"}


@pytest.mark.parametrize(
    ("np", "told", "meant"),
    [
        (None, {"min_np": 2}, (2, 0)),
        (4, {"min_np": 2}, (2, 4)),
        (4, {"min_np": 2, "max_np": 8}, (2, 8)),
        (4, {"max_np": 8}, (1, 8)),
        (2, {"host_discovery_script": "x"}, (2, 2)),
        (None, {"host_discovery_script": "x"}, (1, 0)),
    ],
)
def test_how_many_are_meant(np: int | None, told: dict[str, int], meant: tuple[int, int]) -> None:
    settings = limits(Settings.resolve(told, environment={}), np)
    assert (settings.min_np, settings.max_np) == meant
    assert settings.is_elastic


@pytest.mark.parametrize(
    ("np", "told"), [(1, {"min_np": 2}), (9, {"min_np": 2, "max_np": 8}), (None, {"min_np": 3, "max_np": 2})]
)
def test_numbers_that_cannot_be_are_refused(np: int | None, told: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=r"--m(ax|in)-np"):
        limits(Settings.resolve(told, environment={}), np)


def asked(
    hosts: str = "", hostfile: str = "", launcher: LauncherName = "auto", script: str = "", slurm: bool = False
) -> ElasticJob:
    """The job that these options ask for, on a host called ``box``."""
    settings = Settings(min_np=1, max_np=3, host_discovery_script=script, slots_per_host=0)
    job = Job(["true"], (), settings)
    return elastic_job(job, None, hosts, hostfile, Means(launcher), SLURM if slurm else {}, "box")


@pytest.mark.parametrize(
    ("options", "discovery", "starter"),
    [
        ({}, Fixed, Local),
        ({"hosts": "a,b:2"}, Fixed, Ssh),
        ({"hostfile": "hosts"}, Watched, Ssh),
        ({"script": "true"}, Script, Ssh),
        ({"script": "true", "launcher": "local"}, Script, Local),
        ({"slurm": True}, SlurmNodes, Srun),
        ({"slurm": True, "launcher": "ssh"}, SlurmNodes, Ssh),
        ({"slurm": True, "launcher": "local"}, Fixed, Local),
        ({"slurm": True, "hosts": "a,b"}, Fixed, Srun),
        ({"slurm": True, "script": "true"}, Script, Srun),
        ({"slurm": True, "script": "true", "launcher": "srun"}, Script, Srun),
    ],
)
def test_where_hosts_come_from(
    options: dict[str, str], discovery: type[Discovery], starter: type[AgentStarter]
) -> None:
    found = asked(**options)  # type: ignore[arg-type]
    assert (type(found.discovery), type(found.starter)) == (discovery, starter)
    assert found.reaches_out == (starter is not Local)


def test_without_hosts_there_are_as_many_slots_here_as_workers_at_most() -> None:
    assert asked().discovery.look(0.0) == (Host("box", 3),)


def test_in_an_allocation_the_hosts_are_slurms() -> None:
    found = asked(slurm=True)
    assert found.discovery.look(0.0) == (Host("n1", 4), Host("n2", 2))
    assert found.here == "n1"


def test_hosts_that_come_later_are_reached_by_what_can() -> None:
    """Slurm's own nodes were called by ssh, which had no key of theirs, until the elastic time-out."""
    found = asked(script="true", slurm=True)
    groups = [group for host in ("n2", "x") for group in found.starter.groups([host], found.here)]
    assert [(type(group.starter), group.hosts) for group in groups] == [(Srun, ("n2",)), (Ssh, ("x",))]
    groups = [found.starter.groups([host], found.here)[0] for host in ("n2", "x")]
    assert [group.starter.passes_environment for group in groups] == [True, False]


def test_srun_needs_an_allocation(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="type salloc first"):
        asked(hostfile=str(tmp_path), launcher="srun")


@pytest.mark.parametrize(
    ("signals", "is_stopped", "status"), [([], False, 0), ([signal.SIGTERM], False, 143), ([signal.SIGTERM], True, 0)]
)
def test_what_one_controller_has_decided_is_the_result_of_the_next(
    signals: list[int], is_stopped: bool, status: int
) -> None:
    handover = Handover(cast("Receipts", None), JobResult(0, ""), is_stopped=is_stopped, signals=signals)
    assert handover.result is not None
    assert handover.result.status == status
