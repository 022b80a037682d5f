"""Elastic jobs with faults while their surroundings are bad: networks, clocks, controllers, other users.

    controllers(folder)          # the second fails while it takes over from the first
    network(folder)              # 50 ms of lag to each host, and one packet in fifty lost
    clock(folder)                # the wall clock jumps an hour to and fro all the time
    neighbour(folder)            # another user takes every name that is seen, and calls who has one

The cases are those of the table of faults (``workbench.survival``), with all its checks of lost work.
"""

# Processes: a job runs beside this process, which observes it through ``/proc`` and files. An observation may be out of
# date, so it is repeated (``until``) until it shows the expected state.
#
# Threads: ``jumping_clock`` has one, which alone writes the file of the offset. The processes of the job map that file
# (``wall_clock.c``) and read it without a lock: the offset is one aligned number, written by one call. This process
# itself keeps the right clock, because the library is preloaded only into its children.

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

from workbench.attacks.other_user import NEIGHBOUR, other_user
from workbench.cluster import Cluster
from workbench.survival.cases import FaultCase, controller, kill, newcomer, other
from workbench.survival.cases_hosts import TWO_HOSTS
from workbench.survival.fault_injection import ScheduledFault
from workbench.survival.job import TraineeJob
from workbench.survival.soak import HOSTS
from workbench.survival.table import CaseResult, run

LAG_MS, LOSS = 25.0, 0.02
"""Delay to each of two hosts and to the head (50 ms for a round trip between two of them), and packet loss."""
PATIENCE = ("--host-timeout", "10")
JUMP_S, EVERY_S = 3600, 0.3
DELAYS_S = (0.0, 0.01, 0.03, 0.06, 0.1, 0.2, 0.4)
"""Delays after which a controller fails that has just replaced a failed one."""

Tell = Callable[[CaseResult], object]


def _takeover(delay_s: float) -> FaultCase:
    def do(job: TraineeJob, _number: int) -> None:
        job.fail_controller()
        time.sleep(delay_s)  # a takeover shows no progress: the delays try its phases one after the other
        job.fail_controller()

    name = f"an error in the controller, and in the next one after {1000 * delay_s:g} ms"
    return FaultCase(name, "reduce", [ScheduledFault("reduce", 0, "call")], do)


def controllers(folder: Path, tell: Tell, delays_s: Sequence[float] = DELAYS_S) -> list[CaseResult]:
    """Play a job for each pair of failures: the fifth controller that fails within a minute ends a job."""
    found = []
    for number, delay_s in enumerate(delays_s):
        own = folder / str(number)
        own.mkdir()
        found += run(own, {"localhost": 3}, (_takeover(delay_s), kill("vote", 1)), tell=tell)
    return found


def network(folder: Path, tell: Tell, lag_ms: float = LAG_MS, loss: float = LOSS) -> list[CaseResult]:
    """Play a kill, a newcomer, a swap of slots and a failed controller on a bad network."""
    swap = next(case for case in TWO_HOSTS if case.fault == "a worker joins where another one leaves")
    cases = (kill("reduce", 3), kill("voted", 0), swap, controller("vote"), kill("vote", 2, 3))
    with bad_network(lag_ms, loss) as cluster:
        return run(folder, HOSTS, cases, cluster=cluster, tell=tell, options=PATIENCE)


@contextlib.contextmanager
def bad_network(lag_ms: float = LAG_MS, loss: float = LOSS) -> Iterator[Cluster]:
    """Two hosts and a head; each receives with delay and packet loss."""
    with Cluster(2) as cluster:
        for host in cluster.hosts:
            if lag_ms:
                cluster.lag(host, lag_ms)
            for command in ("iptables", "ip6tables") if loss else ():
                rule = f"-A INPUT -i eth0 -m statistic --mode random --probability {loss} -j DROP"
                cluster.run(host, [command, *rule.split()])
        yield cluster


def clock(folder: Path, tell: Tell) -> list[CaseResult]:
    """Play all faults that involve time limits, while the wall clock jumps."""
    cases = (
        kill("reduce", 3),
        other("stop", "backward", 1, "SIGSTOP"),
        controller("voted"),
        newcomer("a newcomer is killed while it receives the state", "receive", "kill"),
        other("hang", "forward", 0, "a hang with the GIL held"),
    )
    with jumping_clock(folder) as variables, patch.dict(os.environ, variables):
        return run(folder, {"localhost": 4}, cases, tell=tell)


def neighbour(folder: Path, tell: Tell) -> list[CaseResult]:
    """Play generations that end and form again, while another user attacks on this host."""
    with other_user(NEIGHBOUR):
        return run(folder, {"localhost": 3}, (kill("reduce", 1), kill("voted", 0)), tell=tell)


@contextlib.contextmanager
def jumping_clock(folder: Path) -> Iterator[dict[str, str]]:
    """Variables for processes whose wall clock is an hour fast, an hour slow and right, in turn."""
    library, file = folder / "wall_clock.so", folder / "wall_clock"
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "the clock needs a C compiler: apt-get install gcc"
    source = Path(__file__).with_name("wall_clock.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True, timeout=120)
    file.write_bytes(struct.pack("=q", 0))  # before a process maps it: reading beyond the end of a file is a SIGBUS
    over = threading.Event()

    def jump() -> None:
        # In place, by one write of the whole number: a file that is truncated and rewritten is empty in between.
        with file.open("r+b", buffering=0) as target:
            number = 0
            while not over.wait(EVERY_S):
                number += 1
                target.seek(0)
                target.write(struct.pack("=q", JUMP_S * (0, 1, -1)[number % 3]))

    jumper = threading.Thread(target=jump)
    jumper.start()
    try:
        yield {"LD_PRELOAD": str(library), "WALL_CLOCK": str(file)}
    finally:
        over.set()
        jumper.join()
