"""Which hosts a job gets, and who starts the agents there."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from farandole.cluster.allocation import Allocation, allocation
from farandole.errors import UsageError
from farandole.launch.agents.local import Local
from farandole.launch.agents.srun import Srun
from farandole.launch.agents.ssh import Ssh
from farandole.launch.hosts.elastic_job import elastic_job
from farandole.launch.hosts.placement import Where, where
from farandole.launch.hosts.plan import Job, parse_hosts
from farandole.launch.hosts.starters import LauncherName, Means
from farandole.settings import Settings

SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "2,1"}
NONE: Mapping[str, str] = {}


def asked(
    np: int | None,
    hosts: str = "",
    launcher: LauncherName = "auto",
    variables: Mapping[str, str] = NONE,
    here: str = "n1",
) -> Where:
    """What becomes of it, where no name is ours but our own."""
    return where(np, parse_hosts(hosts) if hosts else (), Means(launcher), variables, here, is_own=lambda _: False)


@pytest.mark.parametrize(
    ("np", "hosts", "placed"),
    [
        (2, "", ("n1", "n1")),
        (None, "localhost:2", ("n1", "n1")),
        (1, "n1:4", ("n1",)),
        (3, "n1,localhost:2", ("n1",) * 3),
    ],
)
def test_this_host_needs_no_starter(np: int | None, hosts: str, placed: tuple[str, ...]) -> None:
    assert asked(np, hosts) == (placed, None)
    assert asked(np, hosts, "local") == (placed, None)


def test_other_hosts_are_reached_by_ssh() -> None:
    assert asked(3, "n1:2,n2:2") == (("n1", "n1", "n2"), Ssh())
    assert asked(None, "n2") == (("n2",), Ssh())


def test_an_allocation_gives_hosts_and_slots() -> None:
    assert allocation(SLURM) == Allocation("7", {"n1": 2, "n2": 1})
    hosts, starter = asked(None, variables=SLURM, here="login")
    assert hosts == ("n1", "n1", "n2")
    assert isinstance(starter, Srun)
    assert isinstance(asked(1, variables=SLURM, here="login").starter, Srun)
    assert isinstance(asked(None, "n2:8", variables=SLURM).starter, Srun)
    assert asked(None, variables=SLURM, launcher="ssh") == (("n1", "n1", "n2"), Ssh())
    assert asked(5, variables=SLURM, launcher="local") == (("n1",) * 5, None)


def test_each_host_is_reached_by_what_can() -> None:
    """In an allocation all went by ssh as soon as one did, or as none was known before."""
    starter = asked(None, "n1,n2,login2,login", variables=SLURM, here="login").starter
    assert isinstance(starter, Srun)
    found = starter.groups(["n1", "login", "n2", "login2"], "login")
    assert [(type(group.starter), group.hosts) for group in found] == [
        (Srun, ("n1", "n2")),
        (Local, ("login",)),
        (Ssh, ("login2",)),
    ]


def test_on_the_only_host_of_an_allocation_nobody_is_needed() -> None:
    assert asked(2, variables=SLURM, here="n1") == (("n1", "n1"), None)
    assert asked(2, variables={**SLURM, "SLURMD_NODENAME": "n1"}, here="n1.cluster") == (("n1", "n1"), None)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"SLURM_JOB_ID": "7"}, None),
        ({"SLURM_JOB_NODELIST": "n1"}, None),
        ({**SLURM, "SLURM_TASKS_PER_NODE": "1", "SLURM_JOB_CPUS_PER_NODE": "4(x2)"}, {"n1": 4, "n2": 4}),
        ({**SLURM, "SLURM_TASKS_PER_NODE": ""}, {"n1": 1, "n2": 1}),
    ],
    ids=["no list", "no job", "in a step", "nothing said"],
)
def test_what_variables_say_of_an_allocation(variables: Mapping[str, str], expected: dict[str, int] | None) -> None:
    found = allocation(variables)
    assert (None if found is None else found.tasks) == expected


@pytest.mark.parametrize(
    ("np", "hosts", "launcher", "variables", "words"),
    [
        (None, "", "auto", NONE, "-np N"),
        (2, "", "srun", NONE, "type salloc first"),
        (4, "", "auto", SLURM, r"3: n1:2,n2:1\): ask for more \(salloc -n 4 ...\), or say .* -H n1:4"),
        (1, "other", "srun", SLURM, "other is not in the Slurm allocation"),
        (1, "other", "local", NONE, r"other is not this host \(n1\): leave --launcher out, or say -H localhost:1"),
        (3, "n1:2", "auto", NONE, r"more workers than the hosts have slots \(2\)"),
    ],
)
def test_what_cannot_be_is_answered_with_what_to_type(
    np: int | None, hosts: str, launcher: LauncherName, variables: Mapping[str, str], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        asked(np, hosts, launcher, variables)


SRUN = {**SLURM, "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2"}
MPI = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"}


@pytest.mark.parametrize(
    ("variables", "starter"), [(SRUN, "srun"), ({**SRUN, "SLURM_PTY_PORT": "4711"}, "srun"), (MPI, "mpirun")]
)
def test_one_of_many_launchers_refuses_to_train(variables: Mapping[str, str], starter: str) -> None:
    """Each trained on all hosts, and they overwrote each other's files."""
    told = f"{starter} has started this launcher . times, .*: leave {starter} away, .* --launcher local"
    with pytest.raises(UsageError, match=told):
        asked(2, variables=variables)
    with pytest.raises(UsageError, match=told):
        elastic_job(Job(["train"], (), Settings(min_np=1)), None, "", "", Means(), variables, "n1")
    assert asked(2, variables=variables, launcher="local").hosts == ("n1", "n1")


@pytest.mark.parametrize(
    "variables",
    [
        {**SRUN, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
        {**SRUN, "SLURM_PROCID": "0", "SLURM_PTY_PORT": "4711"},
        {**SRUN, "SLURM_STEP_ID": str(0xFFFFFFFA)},
    ],
    ids=["one task", "the only shell with a terminal", "the shell of salloc"],
)
def test_the_only_launcher_of_a_step_has_the_allocation(variables: Mapping[str, str]) -> None:
    assert asked(None, variables=variables).hosts == ("n1", "n1", "n2")
