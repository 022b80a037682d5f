"""The mpi engine under every MPI that is here: the contract, and how processes end."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

import pytest

from farandole.errors import EngineError
from farandole.testing.engine_contract import CASES, run_contract
from farandole.testing.harness import run_ranks
from farandole.testing.rank import RankContext
from tests.support.launching import run_to_end
from tests.support.patience import PATIENCE_S
from workbench.mpi import LAUNCHERS

SIZES = {"mpich": (2, 3, 4), "openmpi": (2, 3, 4), "debian": (3,)}

LOSES_A_PEER = """
import os, signal, sys, threading
if sys.argv[1] == "by the script":
    from mpi4py import MPI
from farandole.collective import DType, ReduceOp, Reduction
from farandole.engines.engine import Group
from farandole.engines.mpi import MpiEngine
from farandole.errors import AbortError

def exchange(payload):
    from mpi4py import MPI
    return MPI.COMM_WORLD.allgather(payload) if MPI.Is_initialized() else [payload] * 2

def notice():
    group.broken.set()
    engine.abort("rank 1 hangs")

rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
group = Group(rank, (0, 1), ("localhost",) * 2, 1, "test")
engine = MpiEngine(group, exchange)
array = engine.allocate(4096).array(DType.FLOAT32)
engine.allreduce(array, Reduction(ReduceOp.SUM))
if rank == 1:
    signal.pause()
threading.Timer(0.2, notice).start()
try:
    engine.allreduce(array, Reduction(ReduceOp.SUM))
except AbortError as error:
    print("told that", error, flush=True)
engine.close()
"""


def _need(launcher: str) -> None:
    if lack := LAUNCHERS[launcher].lack():
        pytest.skip(lack)


@functools.cache
def _launch(launcher: str, size: int) -> list[dict[str, str]]:
    return run_ranks(_contract, size, timeout_s=4 * PATIENCE_S, start=LAUNCHERS[launcher].start)


def _contract(member: RankContext) -> dict[str, str]:
    from farandole.engines.mpi import MpiEngine

    return run_contract(member, MpiEngine)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("launcher", "size"), [(name, size) for name, sizes in SIZES.items() for size in sizes])
def test_engine(launcher: str, size: int, case: str) -> None:
    _need(launcher)
    found = {f"rank {rank}": wrong[case] for rank, wrong in enumerate(_launch(launcher, size)) if wrong[case]}
    assert not found, "\n".join(f"{rank}:\n{text}" for rank, text in found.items())


@pytest.mark.parametrize("initialised", ["by the engine", "by the script"])
@pytest.mark.parametrize("name", ["mpich", "openmpi"])
def test_a_process_that_lost_a_peer_ends(name: str, initialised: str, tmp_path: Path) -> None:
    """``MPI_Finalize`` would wait for the peer, here one that hangs, for ever."""
    _need(name)
    launcher = LAUNCHERS[name]
    script = tmp_path / "script.py"
    script.write_text(LOSES_A_PEER)
    command = [*launcher.command(2), sys.executable, str(script), initialised]
    done = run_to_end(command, tmp_path, 60.0, launcher.environment)
    assert "told that rank 1 hangs\n" in done.stdout


def test_processes_that_no_mpi_has_started_are_told_how_to_be_started() -> None:
    _need("mpich")

    def program(member: RankContext) -> str:
        from farandole.engines.mpi import MpiEngine

        with pytest.raises(EngineError) as caught:
            MpiEngine(member.group(), member.exchange)
        return str(caught.value)

    said = run_ranks(program, 2, environment=LAUNCHERS["mpich"].environment)
    assert said[0] == said[1]
    assert "MPI started 1 processes and the group has 2: start all of the job by one mpirun or srun" in said[0]


def test_every_member_hears_that_one_has_no_mpi_library() -> None:
    _need("mpich")

    def program(member: RankContext) -> str:

        from farandole.engines.mpi import MpiEngine

        if member.rank == 1:
            os.environ["MPI4PY_LIBMPI"] = "/nowhere/libmpi.so"
        with pytest.raises(EngineError) as caught:
            MpiEngine(member.group(), member.exchange)
        return str(caught.value)

    for text in run_ranks(program, 2, start=LAUNCHERS["mpich"].start):
        assert "rank 1 on localhost: mpi4py cannot load an MPI library" in text
