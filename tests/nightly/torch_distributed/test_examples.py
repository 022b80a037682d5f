"""The examples on ``torch.distributed``: losses on Farandole's backend are those on Gloo, to the last digit.

Sums of two ranks are the same in any order; of more, Gloo adds in the order of its ring.
Those on other libraries are run where these are installed: ``make versions ONLY=torch-libraries``.
"""

from __future__ import annotations

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.frameworks import LOADED_IF_THERE, lean
from tests.support.launching import Launch, run_to_end
from tests.support.paths import ROOT
from workbench.mpi import LAUNCHERS

FOLDER = ROOT / "examples" / "torch_distributed"
EXAMPLES = [
    ("fsdp2.py", 2, "", ()),
    ("tensor_parallel.py", 4, "", ()),
    ("pipeline.py", 2, "", ()),
    ("fabric.py", 2, "lightning_fabric", ("--strategy", "ddp")),
    ("fabric.py", 2, "lightning_fabric", ("--strategy", "fsdp")),
    ("with_accelerate.py", 2, "accelerate", ()),
    *(("zero.py", 2, "deepspeed", ("--stage", stage)) for stage in "123"),
]
ENVIRONMENT = {**lean("torch", *LOADED_IF_THERE), "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}


def losses(text: str, backend: str) -> str:
    """The numbers that an example has printed."""
    found = re.search(rf"loss ([^(]*) \({backend}, \d ranks\)", text)
    assert found is not None, text
    return found[1]


def skip_without(package: str) -> None:
    """Skip an example whose library is not installed."""
    if package and find_spec(package) is None:
        pytest.skip(f"{package} is not installed: make versions ONLY=torch-libraries")


@pytest.mark.parametrize(("script", "ranks", "package", "arguments"), EXAMPLES)
def test_losses_are_those_of_gloo(
    launch: Launch, script: str, ranks: int, package: str, arguments: tuple[str, ...]
) -> None:
    skip_without(package)
    said = {}
    for backend in ("farandole", "gloo"):
        told = [*arguments, "--backend", backend]
        said[backend] = launch(ranks, FOLDER / script, arguments=told, environment=ENVIRONMENT).ok().stdout
    found, expected = (losses(said[backend], backend) for backend in ("farandole", "gloo"))
    assert found == expected
    first, *_, last = map(float, found.split())
    assert last < first / 2


def test_accelerate_launches_ranks_by_mpi(tmp_path: Path) -> None:
    skip_without("accelerate")
    mpi = LAUNCHERS["mpich"]
    if lack := mpi.lack():
        pytest.skip(lack)
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:2\n")
    command = [str(Path(sys.executable).parent / "accelerate"), "launch", "--cpu", "--num_processes", "2"]
    command += ["--num_machines", "1", "--mpirun_hostfile", str(hosts), str(FOLDER / "with_accelerate.py")]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**ENVIRONMENT, **mpi.environment, "PATH": path}
    said = run_to_end(command, tmp_path, 120, environment).ok().stdout
    assert len(losses(said, "farandole").split()) == 4


def test_heat_prepares_and_the_same_ranks_train(tmp_path: Path, launch: Launch) -> None:
    skip_without("heat")
    mpi = LAUNCHERS["mpich"]
    if lack := mpi.lack():
        pytest.skip(lack)
    script = ROOT / "examples" / "heat_pipeline.py"
    environment = {**ENVIRONMENT, **mpi.environment}
    command = [*mpi.command(2), sys.executable, "-W", "ignore", str(script)]
    in_one = run_to_end(command, tmp_path, 150, environment).ok().stdout
    assert re.search(r"2 ranks: loss 0\.00\d+, (99\.\d|100\.0)% of all rows", in_one), in_one
    run_to_end([*command, "--shards", "shards"], tmp_path, 150, environment).ok()
    apart = launch(2, script, arguments=["--from", str(tmp_path / "shards")], environment=ENVIRONMENT).ok()
    assert in_one.strip() in apart.lines()


@pytest.mark.parametrize("backend", ["farandole", "gloo"])
def test_ranks_of_mpi_meet_by_the_job(tmp_path: Path, backend: str) -> None:
    """There is no RANK, and no MASTER_ADDR."""
    mpi = LAUNCHERS["mpich"]
    if lack := mpi.lack():
        pytest.skip(lack)
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch, torch.distributed as dist\n"
        "for _ in range(2):\n"
        '    dist.init_process_group(sys.argv[1], init_method="farandole://")\n'
        "    x = torch.full((2,), dist.get_rank() + 1.0)\n"
        "    dist.all_reduce(x)\n"
        "    assert x.tolist() == [6.0, 6.0], x\n"
        "    dist.destroy_process_group()\n"
        'print("met")\n'
    )
    command = [*mpi.command(3), sys.executable, str(script), backend]
    said = run_to_end(command, tmp_path, 60, {**ENVIRONMENT, **mpi.environment}).ok().stdout
    assert said.count("met") == 3
