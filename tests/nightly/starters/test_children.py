"""Children of workers inherit the variables that make a rank: they are refused at once, and their parents go on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from farandole.cluster.environment import CONTROLLER, KEY, OWN
from farandole.control.addresses import free_port
from farandole.control.keys import new_secret
from tests.support.launching import Finished, Launch, run_to_end
from tests.support.paths import SUPPORT
from workbench.mpi import LAUNCHERS

SCRIPT = SUPPORT / "runtime" / "children.py"
DEADLINE_S = 200.0
FIRST = (
    r"StartError init\(\) was called by process \d+, a child of PARENT, which is rank \d of the job and has not left it"
)
SECOND = (
    r"StartError rank \d on \S+ is PARENT, which has not left the job, and process \d+ on \S+ says that it is rank \d"
)
GUARD = r'.*if __name__ == "__main__":'
UNINVITED = "NotInitializedError .* is not initialized: call init.. first"


def said(done: Finished) -> dict[str, list[str]]:
    """What children came to, by their kind."""
    found = defaultdict(list)
    for line in done.ok().stdout.splitlines():
        what, _, text = re.sub(r"^\[\d+\]<stdout>:", "", line).partition(": ")
        found[what].append(text)
    return found


def require_refusals(done: Finished) -> dict[str, list[str]]:
    """Of two workers: every child was told why, and nothing has happened to the parents."""
    found = said(done)
    for what in ("spawned", "grandchild", "forked"):
        assert len(found[what]) == 2, done
        assert all(re.match(FIRST + GUARD, text) for text in found[what]), found[what]
    for text in filter(None, found["orphan"]):
        assert re.match(f"({FIRST}|{SECOND}){GUARD}", text), text
    for what, times in {"uninvited": 2, "inherited": 1, "session": 2}.items():
        assert [bool(re.match(UNINVITED, text)) for text in found[what] if text] == times * [True], found[what]
    assert found["generation"] == ["0 since"] * 2
    return found


def test_in_a_static_job_and_who_has_left_makes_room(launch: Launch) -> None:
    found = require_refusals(launch(2, SCRIPT, arguments=["then"], deadline_s=DEADLINE_S))
    for what in ("then", "forked then"):
        assert sorted(found[what]) == ["joined 0 of 2", "joined 1 of 2"]
    assert any(re.match(SECOND, text) for text in found["orphan"]), "the controller has refused nobody"


def test_in_an_elastic_job(launch: Launch) -> None:
    done = launch(2, SCRIPT, options=["--min-np", "2"], arguments=["elastic"], deadline_s=DEADLINE_S)
    require_refusals(done)


def test_under_torchrun(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(SCRIPT)]
    require_refusals(run_to_end(torchrun, tmp_path, DEADLINE_S))


@pytest.mark.parametrize("name", ["mpich", "openmpi"])
def test_under_mpi(name: str, tmp_path: Path) -> None:
    mpi = LAUNCHERS[name]
    if lack := mpi.lack():
        pytest.skip(lack)
    command = [*mpi.command(2), sys.executable, str(SCRIPT)]
    require_refusals(run_to_end(command, tmp_path, DEADLINE_S, mpi.environment))


def test_with_plain_variables(tmp_path: Path) -> None:
    told = {OWN.size: "2", CONTROLLER: f"tcp://127.0.0.1:{free_port()}", KEY: new_secret(), OWN.rank: "1"}
    with subprocess.Popen(
        [sys.executable, str(SCRIPT)], env={**os.environ, **told}, stdout=subprocess.PIPE, text=True
    ) as second:
        try:
            first = run_to_end([sys.executable, str(SCRIPT)], tmp_path, DEADLINE_S, {**told, OWN.rank: "0"})
            stdout = second.communicate(timeout=DEADLINE_S)[0]
        finally:
            second.kill()
    assert second.returncode == 0
    require_refusals(Finished(first.code, first.stdout + stdout, first.stderr, first.seconds))
