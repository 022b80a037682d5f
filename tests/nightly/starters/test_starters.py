"""Jobs of one host that MPI's launchers and torchrun start: who is who, one collective, and again."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from farandole.control.addresses import free_port
from farandole.control.keys import new_secret
from tests.support.cluster.ranks import FACTS, column, told
from tests.support.launching import Finished, run_to_end
from tests.support.patience import PATIENCE_S
from workbench.mpi import LAUNCHERS, MpiLauncher

DEADLINE_S = 2 * PATIENCE_S

WORLDS = (
    FACTS
    + """
join("first")
join("again")
if place in (0, 2):
    join("some", comm=[2, 0])
from mpi4py import MPI
join("communicator", comm=MPI.COMM_WORLD)
half = MPI.COMM_WORLD.Split(place % 2, -place)
join("odd" if place % 2 else "even", comm=half)
"""
)


def launcher(name: str) -> MpiLauncher:
    found = LAUNCHERS[name]
    if lack := found.lack():
        pytest.skip(lack)
    return found


def run(command: list[str], script: str, folder: Path, environment: dict[str, str] | None = None) -> Finished:
    (folder / "rank.py").write_text(script)
    return run_to_end([*command, sys.executable, "rank.py"], folder, DEADLINE_S, environment)


@pytest.mark.parametrize("name", LAUNCHERS)
def test_mpi_places_its_ranks_and_any_part_of_them(name: str, tmp_path: Path) -> None:
    mpi = launcher(name)
    key = {"FARANDOLE_KEY": new_secret()} if name == "mpich" else {}  # whose jobs have no name
    done = run(mpi.command(3), WORLDS, tmp_path, {**mpi.environment, **key}).ok()
    for when in ("first", "again", "communicator"):
        facts = told(done.stdout, when)
        assert column(facts, "rank") == column(facts, "place") == [0, 1, 2], (when, done.stdout)
        assert column(facts, "local") == [[0, 3], [1, 3], [2, 3]]
        assert column(facts, "sum") == [7.0] * 3
    assert column(told(done.stdout, "some"), "place") == [2, 0]
    assert column(told(done.stdout, "even"), "place") == [2, 0]
    assert column(told(done.stdout, "odd"), "sum") == [1.0]
    assert list(tmp_path.glob(".farandole*")) == []


@pytest.mark.parametrize(("name", "other"), [("openmpi", "mpich"), ("mpich", "openmpi")])
def test_where_mpi4py_loads_another_mpi_it_is_said_once_and_ranks_meet_by_a_file(
    name: str, other: str, tmp_path: Path
) -> None:
    mpi, wrong = launcher(name), launcher(other).environment
    done = run(mpi.command(2), FACTS + 'join("first")', tmp_path, {**wrong, "FARANDOLE_KEY": new_secret()}).ok()
    assert column(told(done.stdout, "first"), "sum") == [3.0] * 2
    assert done.stderr.count("mpi4py loads another MPI than that of the launcher") == 1
    assert list(tmp_path.glob(".farandole*")) == []


def test_ranks_that_have_no_way_to_meet_are_told_how_to_get_one(tmp_path: Path) -> None:
    mpi, wrong = launcher("mpich"), launcher("openmpi").environment
    done = run(mpi.command(2), FACTS + 'join("first")', tmp_path, wrong)
    assert done.code != 0
    assert "Give them one secret: export FARANDOLE_KEY=" in done.stderr


@pytest.mark.parametrize("by", ["broadcast", "file"])
def test_rank_0_that_never_comes_is_missed_in_time(by: str, tmp_path: Path) -> None:
    mpi = launcher("openmpi")
    library = mpi if by == "broadcast" else launcher("mpich")
    script = FACTS + 'import time\njoin("first") if place else time.sleep(60)'
    done = run(mpi.command(2), script, tmp_path, {**library.environment, "FARANDOLE_START_TIMEOUT_S": "1"})
    assert done.code != 0
    ended = r"Timeout \(0:00:0(1|0\.9).*in initialise|StartError: rank 1 waited 1 s in MPI's broadcast"
    missed = r"StartError: rank 0 has not written .* within 1 s\..*--start-timeout"
    assert re.search(ended if by == "broadcast" else missed, done.stderr, re.DOTALL), done.stderr


def test_torchrun_places_its_ranks_on_one_node_and_on_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--no-python"]
    done = run([*torchrun, "--nproc-per-node", "2"], FACTS + 'join("first")\njoin("again")', tmp_path).ok()
    for when in ("first", "again"):
        assert column(told(done.stdout, when), "local") == [[0, 2], [1, 2]]
        assert column(told(done.stdout, when), "sum") == [3.0] * 2
    monkeypatch.setenv("FARANDOLE_KEY", new_secret())  # for all nodes
    nodes = [*torchrun, "--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port"]
    nodes += [str(free_port()), "--node-rank"]
    (tmp_path / "rank.py").write_text(FACTS + 'join("first")')
    second = subprocess.Popen(
        [*nodes, "1", sys.executable, "rank.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with second:
        try:
            done = run([*nodes, "0"], FACTS + 'join("first")', tmp_path).ok()
            stdout, stderr = second.communicate(timeout=DEADLINE_S)
        finally:
            second.kill()
    assert column(told(done.stdout + stdout, "first"), "sum") == [3.0] * 2, stderr


def test_what_torchruns_store_tells_is_no_secret(tmp_path: Path) -> None:
    script = (
        FACTS
        + """
from farandole.cluster.torchrun import _store
store = _store(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), False, 30.0)
init()
session = current()
tell(when="said", rank=place, store=store.get("farandole/0").decode(), key=session._link._assignment.key)
session.barrier()
shutdown()
"""
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", "2"]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    done = run(torchrun, script, tmp_path, {"TMPDIR": str(temporary)}).ok()
    facts = told(done.stdout, "said")
    assert len(set(column(facts, "key"))) == 1
    assert len(facts[0]["key"]) == 64
    assert not any("key" in each["store"] or each["key"] in each["store"] for each in facts)
    assert list(temporary.glob(".farandole*")) == []


def test_torchrun_on_several_hosts_needs_a_secret_and_says_what_to_type(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nnodes", "1", "--nproc-per-node", "1"]
    done = run(torchrun, "import os\nos.environ['WORLD_SIZE'] = '2'\n" + FACTS + 'join("first")', tmp_path)
    assert done.code != 0
    assert "SettingsError: torchrun started this job on several hosts, and FARANDOLE_KEY is not set" in done.stderr
    assert "export FARANDOLE_RENDEZVOUS_DIR=/shared/folder; or" in done.stderr
    assert "export FARANDOLE_KEY=" in done.stderr
