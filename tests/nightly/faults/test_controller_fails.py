"""Elastic jobs whose controller fails: the workers keep their processes, and lose nothing that was committed."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
from pathlib import Path

from tests.nightly.launcher.test_elastic_jobs import Train, Trains, end, generation, train
from tests.support.launch.running import RunningJob, StartJob
from workbench.controllers import FAILED, fail_controller

__all__ = ["train"]

STAY = "cannot be read: No such file or directory; the hosts stay what they were"


def processes(found: list[Trains]) -> list[int]:
    return [each.process for each in found]


def test_workers_outlive_controllers(train: Train) -> None:
    """The ranks re-form, with what they had; and what happened while no controller was there is told by the agent."""
    running = train("-np", "2", "--min-np", "1")
    first = generation(running, lambda number, _: number == 1)
    running.fail_controller()
    second = generation(running, lambda number, _: number == 2)
    assert processes(second) == processes(first)
    assert second[0].step == second[1].step >= first[0].step
    with running.failing():
        os.kill(second[0].process, signal.SIGKILL)
    whole = generation(running, lambda number, size: number > 2 and size == 2)
    assert whole[0].process == second[1].process
    assert whole[1].worker_id == 2
    assert end(running) == 0
    assert running.stderr.count(FAILED) == 2
    assert running.stderr.count("Traceback (most recent call last):") == 2


def test_controllers_fail_while_workers_re_form(train: Train) -> None:
    """Two in a row, when a worker was killed, whatever it was doing then."""
    running = train("-np", "3", "--min-np", "2")
    first = generation(running, lambda number, _: number == 1)
    os.kill(first[2].process, signal.SIGKILL)
    running.fail_controller()
    running.fail_controller()
    whole = generation(running, lambda number, size: number > 1 and size == 3)
    assert set(processes(first)[:2]) <= set(processes(whole))
    assert end(running) == 0


def test_a_newcomer_is_greeted_in_a_long_step_of_members_that_have_not_spoken_to_this_controller(
    train: Train, tmp_path: Path
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost\n")
    running = train("--min-np", "1", "--hostfile", "hosts", faults=("0:20:wait",))
    first = generation(running, lambda number, _: number == 1)
    hosts.unlink()
    running.until(lambda: running.stderr.count(STAY) == 1, "for a word about the hosts")
    running.fail_controller()
    running.until(lambda: running.stderr.count(STAY) == 2, "for a word about the hosts that it has inherited")
    hosts.write_text("localhost slots=2\n")
    running.prints("worker 1 is up")
    (tmp_path / "go").touch()
    grown = generation(running, lambda _, size: size == 2)
    assert grown[0].process == first[0].process
    assert grown[1].step == grown[0].step >= 20
    assert end(running) == 0


def test_that_all_workers_hang_is_noticed_by_another_controller(train: Train) -> None:
    limits = ("--hang-timeout", "1", "--stall-check-shutdown-time-seconds", "5")  # to kill one takes less
    running = train("-np", "1", "--min-np", "1", *limits, faults=("0:20:stop",))
    generation(running, lambda number, _: number == 1)
    running.fail_controller()
    assert running.end() == 137
    assert "all are stopped, or wait for each other in the script" in running.stderr


def test_a_controller_whose_host_file_cannot_be_read_does_not_hang(train: Train, tmp_path: Path) -> None:
    hosts, slow = tmp_path / "hosts", tmp_path / "slow"
    hosts.write_text("localhost slots=2\n")
    running = train("--min-np", "1", "--hostfile", "hosts")
    first = generation(running, lambda _, size: size == 2)
    os.mkfifo(slow)
    slow.rename(hosts)
    writers: list[int] = []

    def is_being_read() -> bool:
        with contextlib.suppress(OSError):
            writers.append(os.open(hosts, os.O_WRONLY | os.O_NONBLOCK))
        return bool(writers)

    running.until(is_being_read, "for a look at the hosts")  # which takes as long as the test does
    os.kill(first[1].process, signal.SIGKILL)
    whole = generation(running, lambda number, size: number > first[0].generation and size == 2)
    assert whole[0].process == first[0].process
    assert end(running) == 0
    assert "another one takes over" not in running.stderr
    os.close(writers[0])


def test_a_journal_that_goes_into_a_pipe_which_nobody_reads_holds_up_no_job(job: StartJob, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    os.mkfifo(path)
    pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe, bytes(4096))
    running = job("-np", "1", "--min-np", "1", "--elastic-journal", str(path), bash="echo up")
    assert running.end() == 0
    assert "journal lacks its last" in running.stderr
    assert "another one takes over" not in running.stderr
    os.close(pipe)


def test_controllers_that_all_fail_are_given_up(job: StartJob) -> None:
    running = job("-np", "1", "--min-np", "1", bash="echo up; sleep 1000")
    running.prints("up")
    for _ in range(4):
        running.fail_controller()
    fail_controller(running.process.pid)
    assert running.end() == 1
    assert "the controller has failed: PlantedError: by order; it is the 5th within 60 s" in running.stderr


FLOOD = """
text=$(printf %01000d 0)
(for n in {1..6000}; do echo "$FARANDOLE_WORKER_ID $n $text"; done; touch flooded.$FARANDOLE_WORKER_ID) &
trap 'touch noticed.$FARANDOLE_WORKER_ID' USR1
until [ -e noticed.$FARANDOLE_WORKER_ID ]; do read -t 0.01 <> <(:); done
wait
"""


FLOODED = re.compile(r"\[\d\]<stdout>:(\d) (\d+) 0{1000}")


def test_a_failed_controller_whose_output_nobody_reads_holds_up_nothing_else(job: StartJob, tmp_path: Path) -> None:
    """Pipes are full from the workers to the terminal; another controller comes, and orders reach the workers."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(tmp_path / "pipe", os.O_WRONLY)
    into_pipe = ["bash", "-c", 'exec "$@" >pipe', "bash"]
    running = job("-np", "2", "--min-np", "1", "--start-timeout", "120", bash=FLOOD, before=into_pipe)
    running.until(lambda: not select.select([], [writer], [], 0)[1], "for a full pipe")
    os.close(writer)
    running.fail_controller()
    running.process.send_signal(signal.SIGUSR1)
    running.until(lambda: len(list(tmp_path.glob("noticed.*"))) == 2, "for the workers to hear of it")
    assert not list(tmp_path.glob("flooded.*"))
    os.set_blocking(reader, True)
    with open(reader, "rb") as output:
        lines = output.read().decode().splitlines()
    assert running.end() == 0
    whole = [match for line in lines if (match := FLOODED.fullmatch(line))]
    assert len(lines) == len(whole)
    for worker in "01":
        numbers = [int(match[2]) for match in whole if match[1] == worker]
        assert numbers == sorted(set(numbers))
        assert numbers[-1] == 6000


def test_a_failed_controller_whose_error_nobody_reads_has_a_successor(job: StartJob, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    into_pipe = ["bash", "-c", 'exec "$@" 2>pipe', "bash"]
    running = job("-np", "1", "--min-np", "1", bash=NOTICING, before=into_pipe)
    running.prints("up")
    writer = os.open(tmp_path / "pipe", os.O_WRONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    os.close(writer)
    fail_controller(running.process.pid)
    running.process.send_signal(signal.SIGUSR1)
    running.prints("noticed")
    os.set_blocking(reader, True)
    with open(reader, "rb") as errors:
        text = errors.read().decode()
    assert running.end() == 0
    assert text.count(FAILED) == 1


PATIENT = """
trap 'echo told; until [ -e go ]; do read -t 0.01 <> <(:); done; echo had time; exit 0' TERM
echo up
while true; do read -t 0.01 <> <(:); done
"""


def test_a_signal_that_comes_with_the_failure_of_the_controller_counts(job: StartJob) -> None:
    """And workers have the time that they are to have."""
    running = job("-np", "1", "--min-np", "1", bash=PATIENT)
    running.prints("up")
    with running.failing():
        running.process.send_signal(signal.SIGTERM)
    end_of_the_patient(running)
    assert running.end() == 128 + signal.SIGTERM


def test_controllers_that_all_fail_keep_the_status_that_was_decided(job: StartJob) -> None:
    running = job("-np", "1", "--min-np", "1", bash=PATIENT)
    running.prints("up")
    running.process.send_signal(signal.SIGTERM)
    running.prints("told")
    for _ in range(4):
        running.fail_controller()
    fail_controller(running.process.pid)
    assert running.end() == 128 + signal.SIGTERM
    assert (
        "the job was ended by SIGTERM\nthe controller has failed: PlantedError: by order; it is the 5th"
        in running.stderr
    )


NOTICING = """
trap 'echo noticed; exit 0' USR1
echo up
while true; do read -t 0.01 <> <(:); done
"""


def test_a_signal_for_workers_that_comes_with_the_failure_of_the_controller_is_passed_on(job: StartJob) -> None:
    running = job("-np", "1", "--min-np", "1", bash=NOTICING)
    running.prints("up")
    with running.failing():
        running.process.send_signal(signal.SIGUSR1)
    running.prints("noticed")
    assert running.end() == 0


NEWCOMER = """
import os, signal, sys
from pathlib import Path
from farandole.runtime.session.init import init

def take_time(*_):
    print("told", flush=True)
    while not Path("go").exists():
        pass
    print("had time", flush=True)
    os._exit(0)

init()
print("these are my last words", file=sys.stderr, flush=True)
signal.signal(signal.SIGTERM, take_time)
print("worker", os.environ["FARANDOLE_WORKER_ID"], "is up: process", os.getpid(), flush=True)
while True:
    signal.pause()
"""


def test_workers_keep_their_time_and_words_when_the_controller_fails_after_the_end_is_decided(
    job: StartJob, tmp_path: Path
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost\n")
    running = job("--min-np", "1", "--hostfile", "hosts", python=NEWCOMER)
    running.prints("worker 0 is up")
    hosts.write_text("localhost slots=2\n")
    running.prints("worker 1 is up")
    os.kill(int(re.findall(r"worker 0 is up: process (\d+)", running.stdout)[0]), signal.SIGKILL)  # who has the state
    running.prints("told")
    running.fail_controller()
    end_of_the_patient(running)
    assert running.end() == 137
    assert "the last lines of its stderr:\n    these are my last words" in running.stderr


def end_of_the_patient(running: RunningJob) -> None:
    running.prints("told")
    (running.folder / "go").touch()
    running.prints("had time")
