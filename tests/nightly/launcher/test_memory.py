"""Workers that run out of memory: everybody is told whose script it was, or that the kernel may have killed it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from farandole.control.oom_kills import OomKills
from tests.nightly.launcher.test_elastic_jobs import TRAINS
from tests.support.launch.running import StartJob
from workbench.attacks.limits import memory_group
from workbench.cluster import UnavailableError

LIMIT_BYTES = 150 * 2**20

EATER = """
import os, resource, sys
import numpy as np
from farandole.elastic.worker.run import run
from farandole.elastic.worker.state import ObjectState
from farandole.runtime.session.init import current, init, shutdown
from workbench.jobs import NumpyCalls

def eat():
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w") as members:
            members.write(str(os.getpid()))
    else:
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 20 * 2**20, resource.RLIM_INFINITY))
    kept = []
    while True:
        kept.append(np.ones(2**20, np.uint8))

@run
def train(state):
    who, ends = current().topology, np.ones(16)
    place = os.environ.get("FARANDOLE_WORKER_ID", who.rank)
    print(
        f"worker {place} trains: generation {who.generation}, rank {who.rank} of {who.size}, "
        f"step {state.step}, process {os.getpid()}",
        flush=True,
    )
    while state.step < 30:
        NumpyCalls().allreduce("step", ends)
        state.step += 1
        if state.step == 10 and who.rank == 1 and who.size == 3:
            eat()
        state.commit()

init()
train(ObjectState(step=0))
shutdown()
"""


def test_a_script_at_its_limit_raises_and_the_others_go_on(job: StartJob) -> None:
    """As after ``ulimit -v``."""
    running = job("-np", "3", "--min-np", "2", python=EATER)
    assert running.end() == 0
    assert "rank 1 on" in running.stderr
    assert re.search(r"gave up: its script raised \S*MemoryError", running.stderr)
    assert {(each[3], each[4]) for each in TRAINS.findall(running.stdout)} > {("3", "0")}


@pytest.mark.parametrize("is_elastic", [False, True], ids=["static", "elastic"])
def test_what_the_kernel_has_killed_for_its_memory_is_said_to_be(
    job: StartJob, tmp_path: Path, is_elastic: bool
) -> None:
    script = tmp_path / "worker.py"
    script.write_text(EATER)
    options = ("-np", "3", "--min-np", "2") if is_elastic else ("-np", "3")
    try:
        with memory_group(LIMIT_BYTES) as members:
            running = job(*options, command=[sys.executable, str(script), str(members)])
            assert running.end() == (0 if is_elastic else 137)
    except UnavailableError as error:
        pytest.skip(str(error))
    killed = r"(rank|worker) 1 on \S+ was killed by SIGKILL \(out of memory\? the kernel has just killed a process"
    assert re.search(killed, running.stderr)


def test_the_kernel_is_asked_what_is_new(tmp_path: Path) -> None:
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("pgfault 7\noom_kill 3\n")
    shortage = OomKills(vmstat)
    assert not shortage.has_struck()
    vmstat.write_text("pgfault 9\noom_kill 4\n")
    assert shortage.has_struck()
    assert not shortage.has_struck()
    assert not OomKills(tmp_path / "nothing").has_struck()
