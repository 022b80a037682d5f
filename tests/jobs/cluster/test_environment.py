"""Who a process is, from its variables alone: one contract for everything that starts processes, and who wins."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

import pytest

from farandole.cluster.contact import Meeting
from farandole.cluster.detect import ENVIRONMENTS, detect
from farandole.cluster.environment import (
    CONTROLLER,
    HOROVOD,
    KEY,
    LAUNCHED,
    OWN,
    Environment,
    Launched,
    Plain,
    Single,
    Vocabulary,
    variables_for,
)
from farandole.cluster.mpi import DIALECTS, Mpi
from farandole.cluster.slurm import VOCABULARY as SLURM
from farandole.cluster.slurm import Slurm
from farandole.cluster.torchrun import VOCABULARY as TORCHRUN
from farandole.cluster.torchrun import Torchrun
from farandole.errors import SettingsError
from farandole.topology import Topology
from tests.support.patience import PATIENCE_S

TOPOLOGY = Topology.of(2, ("a", "a", "b"), generation=1)
TOLD = variables_for(TOPOLOGY, "tcp://a:7000,tcp://[fd77::1]:7000", "secret")


@final
@dataclass(frozen=True)
class Starter:
    """What one starter sets for rank 2 of 3, which is alone on the second of two hosts."""

    kind: type[Environment]
    vocabulary: Vocabulary
    variables: Mapping[str, str]


def starter(kind: type[Environment], vocabulary: Vocabulary, **more: str) -> Starter:
    values = {vocabulary.rank: "2", vocabulary.size: "3", vocabulary.local_rank: "0", vocabulary.local_size: "1"}
    return Starter(kind, vocabulary, {name: value for name, value in {**values, **more}.items() if name})


# As recorded from Slurm 22.05: rank 2 of `srun -N2 -n3`; then a batch script of 4 tasks, and a program run by salloc.
TASK = {
    "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "3", "SLURM_NODEID": "1", "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_TASKS_PER_NODE": "2,1", "SLURMD_NODENAME": "node2",
}  # fmt: skip
BATCH = {
    "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "4", "SLURM_NODEID": "0", "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0", "SLURM_TASKS_PER_NODE": "2(x2)", "SLURMD_NODENAME": "node1",
}  # fmt: skip
SALLOC = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_NNODES": "2", "SLURM_TASKS_PER_NODE": "2(x2)"}

STARTERS = {
    "farandole run": Starter(Launched, OWN, TOLD),
    "plain variables": starter(Plain, OWN, **{CONTROLLER: "tcp://a:7000", KEY: "secret"}),
    "srun": starter(Slurm, SLURM, **TASK),
    "torchrun": starter(Torchrun, TORCHRUN, **{TORCHRUN.job: "none", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}),
    **{dialect.name: starter(Mpi, dialect.vocabulary) for dialect in DIALECTS},
}
HYDRA = STARTERS["the mpiexec of MPICH or Intel MPI"].variables
OPEN_MPI = STARTERS["Open MPI's mpirun"].variables
by_starter = pytest.mark.parametrize("name", STARTERS)


@by_starter
def test_each_starter_is_recognised_by_its_own_class_and_no_other(name: str) -> None:
    told = STARTERS[name]
    assert type(detect(told.variables)) is told.kind
    claims = [kind for kind in ENVIRONMENTS if kind is not Single and kind.recognises(told.variables)]
    assert set(claims) - {Plain} <= {told.kind}  # a launcher sets what plain variables are, too


@by_starter
def test_each_says_the_place_and_the_size_and_that_there_are_more_hosts(name: str) -> None:
    environment = detect(STARTERS[name].variables)
    assert (environment.worker_id, environment.local_worker_id, environment.size) == (2, 0, 3)
    assert environment.spans_hosts


@by_starter
def test_each_knows_its_place_on_the_host(name: str) -> None:
    told = STARTERS[name]
    assert detect({**told.variables, told.vocabulary.local_rank: "1"}).local_worker_id == 1


@by_starter
def test_each_lets_the_user_name_the_host(name: str) -> None:
    assert detect({**STARTERS[name].variables, OWN.hostname: "me"}).host == "me"


@by_starter
@pytest.mark.parametrize("found", ["", "x", "-1", "1.5"])
def test_a_size_that_is_no_number_is_named_with_what_to_type(name: str, found: str) -> None:
    told = STARTERS[name]
    with pytest.raises(SettingsError, match=rf"{told.vocabulary.size} must be a whole number, found '{found}'\. \w+"):
        print(detect({**told.variables, told.vocabulary.size: found}).size)


@by_starter
def test_a_size_of_none_and_a_rank_beyond_it_are_refused(name: str) -> None:
    told = STARTERS[name]
    with pytest.raises(SettingsError, match=f"{told.vocabulary.size} must be at least 1, found 0"):
        print(detect({**told.variables, told.vocabulary.size: "0"}).size)
    with pytest.raises(SettingsError, match=f"{told.vocabulary.rank}=3 is no rank of a job with .*from 0 to 2"):
        print(detect({**told.variables, told.vocabulary.rank: "3"}).worker_id)


@by_starter
def test_one_process_needs_nothing(name: str) -> None:
    told = STARTERS[name]
    alone = {told.vocabulary.rank: "0", told.vocabulary.size: "1", told.vocabulary.local_size: "1"}
    environment = detect({**told.variables, **{name: value for name, value in alone.items() if name}})
    assert (environment.worker_id, environment.size) == (0, 1)


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        (TOLD, Launched),  # farandole run in an allocation, or a worker's own child
        ({OWN.rank: "2", OWN.size: "3"}, Plain),
        (STARTERS["torchrun"].variables, Torchrun),  # srun torchrun
        (OPEN_MPI, Mpi),  # mpirun starts its daemons by srun, and ranks inherit from these
        (HYDRA, Mpi),
        ({"PMI_RANK": "2", "PMI_SIZE": "3", "PMI_FD": "9", "PMI_JOBID": "7.0"}, Slurm),  # srun --mpi=pmi2
        ({"PMIX_RANK": "2", "PMIX_NAMESPACE": "slurm.pmix.7.0"}, Slurm),  # srun --mpi=pmix
        ({"RANK": "2", "WORLD_SIZE": "3", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}, Slurm),  # set by the script
    ],
)
def test_what_stands_nearest_to_the_process_wins_over_slurm(more: dict[str, str], kind: type[Environment]) -> None:
    environment = detect({**STARTERS["srun"].variables, SLURM.rank: "1", SLURM.size: "2", **more})
    assert type(environment) is kind
    assert environment.size == (2 if kind is Slurm else 3)


@pytest.mark.parametrize("more", [{"SLURM_JOB_ID": "7"}, {"FARANDOLE_RENDEZVOUS_DIR": "/shared"}])
def test_torchrun_on_several_hosts_meets_in_a_folder_that_they_see(more: dict[str, str]) -> None:
    """It wanted a secret of the user's, though tasks of ``srun`` meet there without one."""
    file = detect({**STARTERS["torchrun"].variables, **more}).file(Meeting("/shared", 1.0))
    assert file is not None
    assert file.path.parent == Path("/shared")
    with pytest.raises(
        SettingsError, match=r"several hosts, and FARANDOLE_KEY is not set.*export FARANDOLE_RENDEZVOUS"
    ):
        detect(STARTERS["torchrun"].variables).file(Meeting("/shared", 1.0))


def test_torchrun_wins_over_the_mpi_that_started_it() -> None:
    assert isinstance(detect({**OPEN_MPI, **STARTERS["torchrun"].variables}), Torchrun)


@pytest.mark.parametrize(
    "variables",
    [
        BATCH,
        SALLOC,
        {**BATCH, "SLURM_STEP_ID": "4294967291"},  # newer versions give the batch script a step of its own,
        {**SALLOC, "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"},  # and salloc
    ],
)
def test_a_program_in_an_allocation_that_srun_did_not_start_is_alone(variables: dict[str, str]) -> None:
    assert isinstance(detect(variables), Single)


def test_a_batch_script_sent_from_the_shell_of_a_step_is_alone_too() -> None:
    environment = detect({**BATCH, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NUM_NODES": "1"})
    assert environment.size == 1


def test_a_job_known_to_be_on_one_host_need_not_be_reached_from_others() -> None:
    for name in ("torchrun", *(dialect.name for dialect in DIALECTS)):
        told = STARTERS[name]
        assert not detect({**told.variables, told.vocabulary.local_size: "3"}).spans_hosts
    assert not detect({**STARTERS["srun"].variables, "SLURM_STEP_NUM_NODES": "1"}).spans_hosts
    assert not detect({**STARTERS["plain variables"].variables, CONTROLLER: "tcp://127.0.0.1:7000"}).spans_hosts


def test_a_launched_worker_reads_what_the_launcher_said() -> None:
    environment = detect(TOLD)
    assert (environment.worker_id, environment.size, environment.host, environment.launched) == (2, 3, "b", True)
    assert (environment.controller, environment.key) == ("tcp://a:7000,tcp://[fd77::1]:7000", "secret")


def test_horovods_names_are_set_too_but_not_the_key() -> None:
    assert TOLD[HOROVOD.local_rank] == TOLD[OWN.local_rank] == "0"
    assert TOLD[HOROVOD.cross_size] == "2"
    assert [name for name, value in TOLD.items() if value == "secret"] == [KEY]


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({OWN.rank: "0"}, f"{OWN.size} must be a whole number, found ''.*farandole run"),
        ({OWN.rank: "0", OWN.size: "2"}, f"{CONTROLLER} is not set. Set it: .*tcp://HOST:PORT"),
        ({OWN.rank: "0", OWN.size: "2", CONTROLLER: "tcp://a:1"}, f"{KEY} is not set. Set it: .*token_hex"),
        ({OWN.rank: "0", OWN.size: "2", LAUNCHED: "0", CONTROLLER: "tcp://a:1"}, f"{KEY} is not set"),
    ],
)
def test_what_is_missing_is_named_with_what_to_type(variables: dict[str, str], says: str) -> None:
    environment = detect(variables)
    with pytest.raises(SettingsError, match=says):
        print(environment.worker_id, environment.size, environment.controller, environment.key)


def test_looking_around_loads_no_framework_and_no_mpi() -> None:
    code = "from farandole.cluster.detect import detect; detect(); import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert not {"torch", "mpi4py", "numpy"} & set(done.stdout.split())
