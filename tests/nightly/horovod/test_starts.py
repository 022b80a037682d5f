"""A script that imports ``horovod``, started in every way that a site may start it, where the package is installed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from farandole.control.keys import new_secret
from tests.support.compat.environment import Env
from workbench.cluster import SlurmCluster
from workbench.mpi import LAUNCHERS

pytest.importorskip("torch")

SCRIPT = """
import torch
import horovod.torch as hvd

hvd.init()
total = hvd.allreduce(torch.tensor(1.0 + hvd.rank()), op=hvd.Sum)
print(f"<{hvd.rank()} of {hvd.size()}: {total.item():g}>\\n", end="")
"""
ALONE = {"<0 of 1: 1>"}
TWO = {"<0 of 2: 3>", "<1 of 2: 3>"}


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Env:
    made = Env(tmp_path_factory.mktemp("starts") / "env")
    made.horovod("install")
    (made.folder / "script.py").write_text(SCRIPT)
    return made


def said(output: str) -> set[str]:
    """What the ranks have printed."""
    return {f"<{part.partition('>')[0]}>" for part in output.split("<")[1:] if " of " in part.partition(">")[0]}


def test_plainly(env: Env) -> None:
    assert said(env.run("python", "script.py")) == ALONE


def test_by_torchrun(env: Env) -> None:
    assert said(env.run("python", "-m", "torch.distributed.run", "--nproc-per-node", "2", "script.py")) == TWO


@pytest.mark.parametrize("name", LAUNCHERS)
def test_by_mpi(env: Env, name: str) -> None:
    mpi = LAUNCHERS[name]
    if lack := mpi.lack():
        pytest.skip(lack)
    words: tuple[str | Path, ...] = (*mpi.command(2), env.folder / "bin" / "python", "script.py")
    assert said(env.run(*words, variables={"FARANDOLE_KEY": new_secret(), **mpi.environment})) == TWO


def test_by_slurm(env: Env, slurm: SlurmCluster) -> None:
    python = str(env.folder / "bin" / "python")
    done = slurm.run(["srun", "--ntasks=2", f"--chdir={env.folder}", python, "script.py"])
    assert said(done.stdout) == TWO, done.stderr


def test_by_a_job_with_a_path_of_its_own(env: Env) -> None:
    job = ("-np", "2", "env", "PYTHONPATH=src", env.folder / "bin" / "python", "script.py")
    assert said(env.run("python", "-m", "farandole", "run", *job)) == TWO
    assert said(env.run("python", "-m", "farandole", "run", "--horovod", *job)) == TWO


def test_by_pytest(env: Env) -> None:
    script = "import horovod.torch as hvd\ndef test_it():\n    hvd.init()\n    assert hvd.size() == 1\n"
    (env.folder / "test_script.py").write_text(script)
    assert "1 passed" in env.run("python", "-m", "pytest", "-p", "no:cacheprovider", "test_script.py")


def test_by_itself(env: Env) -> None:
    calls = "import horovod\n\n\ndef main():\n    exec(open('script.py').read())\n\n\nhorovod.run(main, num_proc=2)\n"
    (env.folder / "calls.py").write_text(calls)
    assert said(env.run("python", "calls.py")) == TWO


def test_by_a_program_that_calls_horovodrun(env: Env) -> None:
    program = "import subprocess; subprocess.run(['horovodrun', '-np', '2', 'python', 'script.py'], check=True)"
    path = f"{env.folder}/bin:{os.environ['PATH']}"
    assert said(env.run("python", "-c", program, variables={"PATH": path})) == TWO


def test_workers_find_the_command_without_an_installation(tmp_path: Path) -> None:
    plain = Env(tmp_path / "env")
    (plain.folder / "script.py").write_text(SCRIPT)
    run = ("python", "-m", "farandole", "run", "--horovod", "-np", "1")
    assert said(plain.run(*run, "horovodrun", "-np", "2", sys.executable, "script.py")) == TWO
    module = (plain.folder / "bin" / "python", "-m", "horovod.runner.launch", "-np", "2", sys.executable, "script.py")
    assert said(plain.run(*run, *module)) == TWO
