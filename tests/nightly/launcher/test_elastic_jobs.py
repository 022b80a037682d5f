"""Jobs whose workers come and go, on one host. Faults come at chosen steps; nothing waits for a clock."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.launch.running import RunningJob, StartJob
from tests.support.paths import SUPPORT

WORKER = SUPPORT / "elastic_worker.py"
TRAINS = re.compile(r"worker (\d+) trains: generation (\d+), rank (\d+) of (\d+), step (\d+), process (\d+)")


class Trains(NamedTuple):
    """What a worker prints when it begins to train."""

    worker_id: int
    generation: int
    rank: int
    size: int
    step: int
    process: int


def trains(running: RunningJob) -> list[Trains]:
    """What all workers have printed."""
    return [Trains(*map(int, match.groups())) for match in TRAINS.finditer(running.stdout)]


def generation(running: RunningJob, is_it: Callable[[int, int], bool]) -> list[Trains]:
    """Wait until all ranks of a generation have begun to train that ``is_it``, by its number and size."""
    found: list[Trains] = []

    def is_there() -> bool:
        own = [each for each in trains(running) if is_it(each.generation, each.size)]
        last = max((each.generation for each in own), default=0)
        found[:] = sorted((each for each in own if each.generation == last), key=lambda each: each.rank)
        return bool(found) and len(found) == found[0].size

    running.until(is_there, "for a generation")
    return found


Train = Callable[..., RunningJob]


@pytest.fixture
def train(job: StartJob) -> Train:
    """Starts a job of ``elastic_worker.py`` with these options, and faults."""

    def start(*options: str, faults: tuple[str, ...] = (), **more: str) -> RunningJob:
        environment = {"OMP_NUM_THREADS": "1", **more}
        return job(*options, command=[sys.executable, str(WORKER), *faults], environment=environment)

    return start


def end(running: RunningJob) -> int:
    """Tell the workers to finish, and wait for that."""
    (running.folder / "end").touch()
    return running.end()


@pytest.mark.parametrize("rank", [0, 1, 2], ids=["oldest", "middle", "youngest"])
def test_a_killed_worker_is_replaced_while_the_others_keep_their_processes(train: Train, rank: int) -> None:
    running = train("-np", "3", "--min-np", "2", faults=(f"{rank}:30:kill",))
    first = generation(running, lambda number, _: number == 1)
    second = generation(running, lambda number, _: number == 2)
    third = generation(running, lambda number, size: number > 2 and size == 3)
    survivors = [each.process for each in first if each.rank != rank]
    assert [each.process for each in second] == survivors  # the oldest first
    assert [each.process for each in third][:2] == survivors
    assert third[2].worker_id == 3
    assert {each.step for each in second} <= {29, 30}
    assert third[2].step == third[0].step >= second[0].step  # it has the others' state
    assert end(running) == 0
    assert f"farandole: worker {rank} on " in running.stderr


def test_several_die_at_once_and_one_is_enough_to_go_on(train: Train) -> None:
    running = train("-np", "3", "--min-np", "1")
    first = generation(running, lambda number, _: number == 1)
    for rank in (0, 2):  # not by a fault in a step: one of the two may come out of it, and go on in the next generation
        os.kill(first[rank].process, signal.SIGKILL)
    last = generation(running, lambda number, size: number > 1 and size == 3)
    assert last[0].process == first[1].process
    assert {each.worker_id for each in last} == {1, 3, 4}
    assert end(running) == 0


LENGTHY = """
import os
import numpy as np
from farandole.elastic.worker.run import run
from farandole.elastic.worker.state import ObjectState
from farandole.runtime.session.init import current, init
from workbench.jobs import NumpyCalls

init()
place = int(os.environ["FARANDOLE_WORKER_ID"])

@run
def train(state):
    do = NumpyCalls()
    while True:
        do.allreduce("x", np.zeros(16))
        state.step += 1
        if place == 3 - current().generation:
            raise RuntimeError("long ago, " * 20000)
        state.commit()

train(ObjectState(step=0))
"""


def test_what_workers_say_of_their_failures_may_be_long(job: StartJob) -> None:
    running = job("-np", "3", "--min-np", "1", "--reset-limit", "1", "--blacklist-cooldown-range", "60", "60",
                  python=LENGTHY)  # fmt: skip
    assert running.end() == 1
    assert "farandole: the workers have re-formed 1 times (--reset-limit); then " in running.stderr


@pytest.mark.parametrize("action", ["raise", "segv"])
def test_other_ways_to_fail_are_survived_as_well(train: Train, action: str) -> None:
    running = train("-np", "2", "--min-np", "1", faults=(f"1:20:{action}",))
    generation(running, lambda number, size: number > 1 and size == 2)
    assert end(running) == 0


def test_the_others_go_on_while_the_process_of_a_script_that_has_raised_is_still_ending(train: Train) -> None:
    running = train("-np", "2", "--min-np", "1", "--hang-timeout", "60", faults=("1:20:fail slowly",))
    first = generation(running, lambda number, _: number == 1)
    generation(running, lambda number, _: number == 2)
    assert first[1].process in running.left()
    assert end(running) == 0


def test_the_others_go_on_while_the_process_of_a_worker_that_was_told_to_end_is_still_ending(train: Train) -> None:
    running = train("-np", "2", "--min-np", "1", "--hang-timeout", "600", faults=("1:20:leave slowly",))
    first = generation(running, lambda number, _: number == 1)
    generation(running, lambda number, _: number == 2)
    assert first[1].process in running.left()
    assert end(running) == 0


@pytest.mark.parametrize("expects", ["expect notice slowly", "withdraw while connecting", "withdraw slowly"])
def test_the_others_go_on_without_a_worker_that_was_told_to_end_between_two_generations(
    train: Train, expects: str
) -> None:
    faults = ("0:20:wait", "1:20:kill", f"2:19:{expects}")
    running = train("-np", "3", "--min-np", "1", "--hang-timeout", "600", faults=faults)
    first = generation(running, lambda number, _: number == 1)
    second = generation(running, lambda number, _: number == 2)
    assert first[2].process not in [each.process for each in second]
    assert first[2].process in running.left()
    assert end(running) == 0


def test_a_notice_that_comes_between_two_generations_is_heeded(train: Train) -> None:
    running = train("-np", "2", "--min-np", "2", faults=("0:19:expect notice", "1:20:kill"))
    assert running.end() == 137
    assert "worker 0 on" in running.stderr
    assert "exited with code 143" in running.stderr


def test_a_newcomer_gets_the_state_and_no_checkpoint(job: StartJob) -> None:
    worker = WORKER.parent / "checkpoint_worker.py"
    running = job("-np", "2", "--min-np", "1", command=[sys.executable, str(worker)])
    running.prints("rank 1 of 2")
    worker_id, process = re.findall(r"worker (\d+) trains: rank 1 of 2, step \d+, process (\d+)", running.stdout)[0]
    os.kill(int(process), signal.SIGTERM)
    running.prints("rank 1 of 2", times=2)
    assert f"worker {worker_id} leaves" in running.stdout
    running.process.send_signal(signal.SIGTERM)
    assert running.end() == 128 + signal.SIGTERM
    last = max(int(step) for step in re.findall(r"leaves at step (\d+)", running.stdout))
    assert (running.folder / "checkpoints" / f"step-{last:012}").is_dir()


def test_below_the_minimum_the_survivors_wait_alive(train: Train) -> None:
    running = train("-np", "2", "--min-np", "2", faults=("0:20:kill",))
    first = generation(running, lambda number, _: number == 1)
    second = generation(running, lambda number, _: number == 2)
    assert (second[0].process, second[0].size) == (first[1].process, 2)
    assert second[0].step == second[1].step >= 19
    assert end(running) == 0


def test_below_the_minimum_for_too_long_is_the_end(train: Train) -> None:
    running = train("-np", "2", "--min-np", "2", "--elastic-timeout", "0.1", "--blacklist-cooldown-range", "60", "60",
                    faults=("1:20:kill",))  # fmt: skip
    assert running.end() == 137
    assert "--elastic-timeout" in running.stderr
    assert "worker 1 on" in running.stderr


def test_the_reset_limit_ends_the_job(train: Train) -> None:
    running = train("-np", "2", "--min-np", "1", "--reset-limit", "1", faults=("1:20:kill",))
    assert running.end() != 0  # one fault is survived; that its slot is filled again is once too often
    assert "(--reset-limit)" in running.stderr


def test_who_ends_well_has_finished_and_the_others_go_on(train: Train) -> None:
    running = train("-np", "3", "--min-np", "1", faults=("1:20:finish",))
    second = generation(running, lambda number, _: number == 2)
    assert [each.worker_id for each in second] == [0, 2]
    assert end(running) == 0
    assert {each.worker_id for each in trains(running)} == {0, 1, 2}  # nobody was started for it


def test_a_file_of_hosts_is_watched(train: Train, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost\n")
    running = train("--min-np", "1", "--hostfile", "hosts")
    first = generation(running, lambda _, size: size == 1)
    hosts.write_text("localhost slots=3\n")
    grown = generation(running, lambda _, size: size == 3)
    hosts.write_text("localhost:2  # less\n")
    shrunk = generation(running, lambda number, size: number > grown[0].generation and size == 2)
    started = {each.worker_id: each.process for each in grown}  # those of two slots at once, in any order of ranks
    assert [(each.worker_id, each.process) for each in shrunk] == [(0, first[0].process), (1, started[1])]
    assert shrunk[0].step >= grown[0].step >= first[0].step
    running.until(lambda: "2]<stdout>:worker 2 has" in running.stdout or len(running.left()) == 5, "for its end")
    assert end(running) == 0


def test_a_script_tells_of_hosts_and_may_fail(train: Train, tmp_path: Path) -> None:
    script = tmp_path / "discover"
    script.write_text("#!/bin/bash\n[ -e hosts ] || { echo not yet >&2; exit 3; }\ncat hosts\n")
    script.chmod(0o755)
    running = train("--min-np", "1", "--host-discovery-script", "./discover", "--slots-per-host", "2")
    said = "./discover exited with code 3, and said: not yet; no host is known"
    running.until(lambda: said in running.stderr, "for the first look")
    (tmp_path / "hosts").write_text("localhost\n")
    generation(running, lambda _, size: size == 2)
    (tmp_path / "hosts").unlink()
    running.until(lambda: "the hosts stay what they were" in running.stderr, "for the last look")
    assert end(running) == 0
    assert running.stderr.count(said) == 1


@pytest.mark.parametrize(
    ("action", "limit"),
    [
        ("stop", "--hang-timeout"),
        ("stop inside", "--hang-timeout"),
        ("hang", "--hang-timeout"),
        ("loop", "--stall-check-shutdown-time-seconds"),
    ],
)
def test_a_worker_that_hangs_is_killed(train: Train, action: str, limit: str) -> None:
    others = () if limit == "--hang-timeout" else ("--hang-timeout", "3")
    running = train("-np", "2", "--min-np", "1", limit, "4", *others, faults=(f"1:20:{action}",))
    second = generation(running, lambda number, _: number == 2)
    assert second[0].worker_id == 0
    assert end(running) == 0
    assert "rank 1 on" in running.stderr
    assert f"longer than {limit}" in running.stderr


def test_a_job_whose_workers_all_hang_ends_and_says_so(train: Train) -> None:
    limits = ("--hang-timeout", "3", "--stall-check-shutdown-time-seconds", "4")
    running = train("-np", "2", "--min-np", "1", *limits, faults=("0:20:stop", "1:20:pause"))
    assert running.end() == 137
    assert "all are stopped, or wait for each other in the script" in running.stderr


def test_a_worker_that_is_slow_is_reported_and_left_alone(train: Train) -> None:
    limits = ("--hang-timeout", "4", "--stall-check-warning-time-seconds", "0.5")
    running = train("-np", "2", "--min-np", "1", *limits, faults=("1:20:slow",))
    running.until(lambda: "stalled:" in running.stderr, "for the report")
    assert end(running) == 0
    assert {each.generation for each in trains(running)} == {1}


def test_what_a_dead_worker_leaves_running_is_killed(train: Train) -> None:
    running = train("-np", "2", "--min-np", "1", faults=("1:20:orphan",))
    generation(running, lambda number, size: number > 1 and size == 2)
    assert not [pid for pid in running.left() if Path(f"/proc/{pid}/comm").read_text() == "sleep\n"]
    assert end(running) == 0


def test_losing_everybody_who_has_the_state_is_the_end(train: Train) -> None:
    running = train("-np", "2", "--min-np", "1")
    generation(running, lambda _, size: size == 2)
    os.kill(running.agent(), signal.SIGKILL)
    assert running.end() != 0
    assert "no worker is left that has the state of the job" in running.stderr


def test_a_script_that_cannot_start_ends_the_job(job: StartJob) -> None:
    running = job("-np", "2", "--min-np", "1", "--blacklist-cooldown-range", "0", "0.1", bash="echo why >&2; exit 3")
    assert running.end() == 3
    assert "    why" in running.stderr


def test_a_network_interface_that_is_not_there_is_an_error_of_the_user(job: StartJob) -> None:
    running = job("--min-np", "1", "-H", "localhost:1,127.0.0.2:1", "--network-interface", "nope0", bash="true")
    assert running.end() == 2
    assert running.stderr.startswith("farandole run: --network-interface nope0: this host has no interface nope0")


def test_killing_the_launcher_leaves_nothing(train: Train) -> None:
    running = train("-np", "2", "--min-np", "1")
    generation(running, lambda _, size: size == 2)
    os.kill(running.process.pid, signal.SIGKILL)
    running.until(lambda: not running.left(), "for the workers to be gone")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_job(train: Train, number: int) -> None:
    running = train("-np", "2", "--min-np", "1")
    generation(running, lambda _, size: size == 2)
    running.process.send_signal(number)
    assert running.end() == 128 + number


def test_every_decision_is_written_down(train: Train, tmp_path: Path) -> None:
    running = train("-np", "2", "--min-np", "1", "--elastic-journal", "journal", faults=("1:20:kill",))
    generation(running, lambda number, size: number > 1 and size == 2)
    assert end(running) == 0
    kinds = re.findall(r'"action":\{"type":"(\w+)"', (tmp_path / "journal").read_text())
    assert kinds.count("Start") == 3
    assert {"Form", "AbortGeneration", "Greet", "Announce", "Finish"} <= set(kinds)


REFORMS = """
import os, threading
import numpy as np
from farandole.runtime.session.init import current, init, rejoin, shutdown
from workbench.jobs import NumpyCalls

def parent(pid):
    return int(open(f"/proc/{pid}/stat").read().rpartition(") ")[2].split()[1])

launcher = parent(os.getppid())

def held():
    return len(os.listdir("/proc/self/fd")), threading.active_count(), len(os.listdir(f"/proc/{launcher}/fd"))

init()
do, x = NumpyCalls(), np.ones(1000, np.float32)
for number in range(100):
    do.allreduce("x", x)
    if number == 20:
        before = held()
    rejoin()
do.allreduce("x", x)
after = held()
do.allreduce("end", x)  # until now nobody has begun to leave
print("generation", current().generation, "more:", [b - a for a, b in zip(before, after)], flush=True)
shutdown()
"""


def test_generations_leave_no_descriptors_and_no_threads(job: StartJob) -> None:
    running = job("-np", "2", "--min-np", "1", python=REFORMS)
    assert running.end() == 0
    assert running.stdout.count("generation 101 more: [0, 0, 0]") == 2
