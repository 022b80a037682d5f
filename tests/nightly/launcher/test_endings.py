"""How jobs end: by themselves, by a failure, by a signal, by force. Nothing may be left, whatever happens."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import socket
from pathlib import Path

import pytest

from farandole.launch.agents.agents import Agents
from farandole.launch.agents.local import Local
from farandole.settings import Settings
from tests.support.launch.running import DEADLINE_S, StartJob

SLEEP = "echo up; exec sleep 1000"
TREE = "(setsid bash -c 'trap \"\" TERM; echo deep; sleep 1000') & echo up; wait"


def test_ending_well(job: StartJob) -> None:
    running = job("-np", "3", bash="echo rank $FARANDOLE_RANK of $HOROVOD_SIZE")
    assert running.end() == 0
    assert sorted(running.stdout.splitlines()) == [f"[{r}]<stdout>:rank {r} of 3" for r in range(3)]
    assert running.stderr == ""


def test_strangers_at_the_door_are_logged_once_and_the_job_goes_on(job: StartJob) -> None:
    running = job("-np", "1", bash="mkfifo p; echo at $FARANDOLE_CONTROLLER; read < p; exit 0")
    running.prints("at ipc://@")
    running.until(lambda: running.stdout.endswith("\n"))
    name = running.stdout.rpartition("@")[2].strip()
    for _ in range(5):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.settimeout(DEADLINE_S)
            stranger.connect(f"\0{name}")
            stranger.sendall(os.urandom(300))
            with contextlib.suppress(OSError):  # it may be turned away before it has come to its end
                stranger.shutdown(socket.SHUT_WR)
                while stranger.recv(4096):
                    pass
    running.until(lambda: "this job's key" in running.stderr, "for the log")
    with (running.folder / "p").open("w") as pipe:
        pipe.write("\n")
    assert running.end() == 0
    _, total = running.stderr.splitlines()
    # One has the benefit of the doubt (Admissions): the agent's own handshake may have succeeded while it was there.
    assert re.search(r"refused [45] connections without this job's key in all$", total)


def test_a_worker_may_end_well_before_the_others(job: StartJob) -> None:
    running = job(
        "-np", "2", bash="mkfifo pipe 2>/dev/null; if ((FARANDOLE_RANK)); then read < pipe; fi; echo done; true"
    )
    running.prints("[0]<stdout>:done")
    with (running.folder / "pipe").open("w") as pipe:
        pipe.write("\n")
    assert running.end() == 0


@pytest.mark.parametrize(
    ("death", "status", "words"),
    [("exit 3", 3, "exited with code 3"), ("kill -SEGV $$", 139, "was killed by SIGSEGV")],
    ids=["code", "signal"],
)
def test_first_failure_ends_the_job_and_has_the_last_words(job: StartJob, death: str, status: int, words: str) -> None:
    running = job(
        "-np", "3", bash=f"if ((FARANDOLE_RANK == 1)); then echo 'my reason' >&2; {death}; fi; exec sleep 1000"
    )
    assert running.end() == status
    last = running.stderr.splitlines()[-2:]
    assert last[0].startswith("farandole: rank 1 on ")
    assert words in last[0]
    assert last[1] == "    my reason"


def test_the_last_words_hold_twenty_lines_of_the_first_failure_only(job: StartJob) -> None:
    running = job(
        "-np", "2", bash="if ((FARANDOLE_RANK)); then seq 100 >&2; exit 1; fi; echo other >&2; exec sleep 1000"
    )
    assert running.end() == 1
    words = running.stderr[running.stderr.index("farandole: rank 1 on ") :].splitlines()[1:]
    assert words == [f"    {n}" for n in range(81, 101)]


def test_on_failure_continue_lets_the_others_end(job: StartJob) -> None:
    running = job(
        "-np",
        "2",
        "--on-failure",
        "continue",
        bash="((FARANDOLE_RANK)) && exit 7; mkfifo p; echo up; read < p; echo done",
    )
    running.prints("up")
    running.until(lambda: len(running.left()) == 3, "for rank 1 to be gone")
    with (running.folder / "p").open("w") as pipe:
        pipe.write("\n")
    assert running.end() == 7
    assert "[0]<stdout>:done" in running.stdout


def test_a_stubborn_worker_is_killed_after_the_grace(job: StartJob) -> None:
    running = job("-np", "2", "--grace-seconds", "0.3", bash="trap '' TERM; echo up; while :; do sleep 0.1; done")
    running.prints("up", 2)
    running.process.send_signal(signal.SIGTERM)
    assert running.end() == 143


def test_ctrl_c_once_lets_workers_tidy_up(job: StartJob) -> None:
    running = job("-np", "2", bash="trap 'echo tidied; exit 0' TERM; echo up; while :; do sleep 0.01; done")
    running.prints("up", 2)
    running.process.send_signal(signal.SIGINT)
    assert running.end() == 130
    assert running.stdout.count("tidied") == 2
    assert "farandole: the job was ended by SIGINT" in running.stderr


def test_ctrl_c_twice_kills_at_once(job: StartJob) -> None:
    running = job("-np", "2", "--grace-seconds", "1000", bash="trap '' TERM; echo up; while :; do sleep 0.1; done")
    running.prints("up", 2)
    running.process.send_signal(signal.SIGINT)
    running.until(lambda: "again: kill at once" in running.stderr, "for the first answer")
    told = "to end; those that have not are killed 1000 s after SIGTERM (--grace-seconds)"
    running.until(lambda: told in running.stderr, "to be told what the launcher waits for")
    running.process.send_signal(signal.SIGINT)
    assert running.end() == 130


def test_an_ignored_hangup_stays_ignored(job: StartJob) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        running = job("-np", "1", bash=SLEEP)
    finally:
        signal.signal(signal.SIGHUP, before)
    running.prints("up")
    running.process.send_signal(signal.SIGHUP)
    running.process.send_signal(signal.SIGTERM)
    assert running.end() == 143


@pytest.mark.parametrize("script", [SLEEP, TREE], ids=["workers", "trees"])
def test_killing_the_launcher_leaves_nothing(job: StartJob, script: str) -> None:
    running = job("-np", "2", bash=script)
    running.prints("up", 2)
    if script is TREE:
        running.prints("deep", 2)
    os.kill(running.process.pid, signal.SIGKILL)
    running.until(lambda: not running.left(), "for the workers to be gone")


@pytest.mark.parametrize("script", [SLEEP, TREE], ids=["workers", "trees"])
def test_killing_the_agent_ends_the_job(job: StartJob, script: str) -> None:
    running = job("-np", "2", bash=script)
    running.prints("up", 2)
    if script is TREE:
        running.prints("deep", 2)
    os.kill(running.agent(), signal.SIGKILL)
    assert running.end() == 137
    assert "the agent on" in running.stderr
    assert "was killed by SIGKILL; its workers were killed" in running.stderr


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_a_launcher_killed_in_start_up_leaves_nothing(job: StartJob, processes: int) -> None:
    running = job("-np", "2", bash=SLEEP)
    running.until(lambda: len(running.left()) >= processes, "for the start")
    os.kill(running.process.pid, signal.SIGKILL)
    running.until(lambda: not running.left(), "for all to be gone")


def test_what_workers_leave_running_is_ended(job: StartJob) -> None:
    running = job(
        "-np", "2", "--grace-seconds", "0.3", bash="(trap '' TERM; sleep 1000) & disown; setsid sleep 1000 & exit 0"
    )
    assert running.end() == 0


@pytest.mark.parametrize(
    ("command", "status", "words"),
    [
        (["nonesuch"], 127, "nonesuch was not found"),
        (["./nonesuch.sh"], 127, "./nonesuch.sh was not found"),
        (["./plain.sh"], 126, "./plain.sh is not executable; type: chmod +x ./plain.sh"),
        (["./train.py"], 126, "./train.py is not executable; type: python ./train.py"),
        (["train.py"], 127, "type: python train.py"),
        (["./headless.py"], 126, "./headless.py is not executable; type: python ./headless.py"),
        (["./headless.sh"], 126, "./headless.sh is not executable; type: sh ./headless.sh, or begin it with"),
        (["./lost.sh"], 126, "the interpreter its first line names does not exist"),
        (["."], 126, ". is not executable"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_cannot_be_started(job: StartJob, tmp_path: Path, command: list[str], status: int, words: str) -> None:
    for name, text, mode in (
        ("plain.sh", "#!/bin/sh\n", 0o644),
        ("train.py", "print()\n", 0o644),
        ("headless.py", "print()\n", 0o755),
        ("headless.sh", "true\n", 0o755),
        ("lost.sh", "#!/no/such/shell\n", 0o755),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    running = job("-np", "2", command=command)
    assert running.end() == status
    assert words in running.stderr
    assert running.stderr.startswith("farandole: rank 0 on ")


def test_a_folder_for_the_output_that_cannot_be_one(job: StartJob, tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file")
    running = job("-np", "2", "--output-filename", "logs", command=["true"])
    assert running.end() == 126
    assert "could not be started: --output-filename " in running.stderr
    assert "Not a directory; give a folder that can be written to" in running.stderr


def test_a_program_with_thousands_of_descriptors_can_end_an_agent() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, hard), hard))
    with contextlib.ExitStack() as held:
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            held.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        with Agents(Local().groups(("box",), "box"), Settings(), captured=False) as agents:
            (agent,) = agents
            assert min(agent.fds) > 1024
        assert agent.code is not None


def test_an_idle_job_uses_no_cpu(job: StartJob) -> None:
    running = job("-np", "2", bash=SLEEP)
    running.prints("up", 2)
    pids = [running.process.pid, running.agent()]

    def ticks() -> int:
        stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split() for pid in pids]
        return sum(int(stat[11]) + int(stat[12]) for stat in stats)

    def waits() -> int:
        lines = [line for pid in pids for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
        return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))

    history: list[tuple[int, int]] = []

    def settled() -> bool:
        history.append((ticks(), waits()))
        return len(history) > 200 and history[-1] == history[-100]

    running.until(settled, "for launcher and agent to be still")
    os.kill(running.process.pid, signal.SIGTERM)
    assert running.end() == 143


HANDLES = """
import os, signal
reader, writer = os.pipe()
os.set_blocking(writer, False)
signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
if os.environ["FARANDOLE_LOCAL_RANK"] == "0":
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, _: os.write(1, f"got {number}\\n".encode()))
signal.signal(signal.SIGTERM, lambda *_: None)
os.write(1, b"up\\n")
while os.read(reader, 1)[0] != signal.SIGTERM: pass
"""


@pytest.mark.parametrize("options", [("-np", "2"), ("-np", "2", "--min-np", "2")])
def test_what_schedulers_announce_an_end_with_reaches_workers_that_handle_it_and_ends_nobody(
    options: tuple[str, ...], job: StartJob
) -> None:
    running = job(*options, bash=f"python3 -c '{HANDLES}'; true")
    running.prints("up", 2)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        running.process.send_signal(number)
        running.prints(f"got {number:d}")
    running.process.send_signal(signal.SIGTERM)
    assert running.end() == 143
    assert running.stdout.count("got") == 2
