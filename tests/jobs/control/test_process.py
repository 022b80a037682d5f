"""Process trees, their ends, and the stacks of processes that do not answer."""

from __future__ import annotations

import os
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from farandole.control import process
from farandole.errors import ControlError
from tests.support.patience import PATIENCE_S

STUCK = """
import sys
from farandole.runtime.session.tracebacks import stack_dump
def the_place_where_it_hangs():
    print(*stack_dump(), flush=True)
    {hang}
the_place_where_it_hangs()
"""
HANGS = {"computing": "while True: pass", "waiting": "sys.stdin.read()", "holding the GIL": "sum(range(10**15))"}


@pytest.fixture
def stuck(request: pytest.FixtureRequest) -> Iterator[tuple[int, int, int]]:
    """The process number of a Python that hangs in the way asked for, its descriptor of stacks, and its signal."""
    with subprocess.Popen(
        [sys.executable, "-c", STUCK.format(hang=HANGS[request.param])], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        fd, number = map(int, child.stdout.readline().split())
        yield child.pid, fd, number
        child.kill()


@pytest.mark.parametrize("stuck", HANGS, indirect=True)
def test_the_stack_of_a_stuck_process(stuck: tuple[int, int, int]) -> None:
    pid, fd, number = stuck
    for _ in range(2):
        text = process.dump_stack(pid, number, fd, deadline_s=20.0, quiet_s=0.5)
        assert text.count("the_place_where_it_hangs") == 1


@pytest.mark.parametrize("stuck", ["waiting"], indirect=True)
def test_a_process_that_says_nothing(stuck: tuple[int, int, int]) -> None:
    pid, fd, number = stuck
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(ControlError, match=r"no stack within 0\.1 s"):
        process.dump_stack(pid, number, fd, deadline_s=0.1)
    with pytest.raises(ControlError, match=f"no stack of process {pid}"):
        process.dump_stack(pid, number, 999)


def test_a_tree_is_seen_and_ended_whole() -> None:
    reader, writer = os.pipe()
    pid = process.spawn(
        ["bash", "-c", "(bash -c 'setsid sleep 1000 & echo deep; wait') & wait"],
        death_signal=signal.SIGKILL,
        stdout=writer,
    )
    os.close(writer)
    with open(reader, "rb") as lines:
        assert lines.readline() == b"deep\n"
        tree = process.descendants(pid)
        assert len(tree) == 2
        assert process.descendants()[:1] == [pid]
        for one in [pid, *tree]:
            os.kill(one, signal.SIGKILL)
        assert lines.read() == b""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert (pid, -9) in list(process.reap())
    assert not process.has_children()


HAS_A_SAY = """
import signal, subprocess, sys
def told(*_):
    print("told", flush=True)
    child.stdin.close()
signal.signal(signal.SIGTERM, told)
below = "import signal, sys; signal.signal(15, lambda *_: print('hurt', flush=True)); print('ready', flush=True); "
child = subprocess.Popen([sys.executable, "-c", below + "sys.stdin.read()"], stdin=subprocess.PIPE)
child.wait()
"""
KNOWS_NOTHING = "import subprocess; print(subprocess.Popen({!r}).wait())"


@pytest.mark.parametrize("above", ["nobody", "shell with a trap", "program without a handler"])
def test_a_signal_spares_what_is_below_a_process_that_handles_it(above: str) -> None:
    handles = [sys.executable, "-c", HAS_A_SAY]
    shell = ["bash", "-c", f"trap 'echo trapped' TERM; {shlex.join(handles)}"]
    ignorant = [sys.executable, "-c", KNOWS_NOTHING.format(handles)]
    command = {"nobody": handles, "shell with a trap": shell}.get(above, ignorant)
    reader, writer = os.pipe()
    process.spawn(command, death_signal=signal.SIGKILL, stdout=writer)
    os.close(writer)
    with open(reader) as lines:
        assert lines.readline() == "ready\n"
        process.signal_descendants(signal.SIGTERM)
        said = lines.read().split()  # to the end of all
    assert said == (["told", "trapped"] if "trap" in above else ["told"])
    while process.has_children():
        list(process.reap())


def test_a_child_does_not_outlive_its_parent() -> None:
    text = (
        "import signal, sys; from farandole.control.process import spawn;"
        "print(spawn(['sleep', '1000'], death_signal=signal.SIGKILL), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        fd = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    try:
        assert select.select([fd], [], [], 30.0)[0]
    finally:
        os.close(fd)


def test_children_from_before_are_left_alone_with_all_they_start() -> None:
    text = """
import subprocess
from farandole.control import process
mine = subprocess.Popen(["bash", "-c", "for i in {1..200}; do sleep 0.05; done"])
with process.no_descendants_left():
    began = set(process.descendants())
    while set(process.descendants()) <= began:
        pass
assert mine.poll() is None
mine.kill()
mine.wait()
"""
    assert subprocess.run([sys.executable, "-c", text], check=False, timeout=PATIENCE_S).returncode == 0


@pytest.mark.parametrize(
    ("code", "words", "status"),
    [
        (0, "exited with code 0", 0),
        (3, "exited with code 3", 3),
        (-signal.SIGTERM, "was killed by SIGTERM", 143),
        (-(signal.SIGRTMIN + 1), f"was killed by signal {signal.SIGRTMIN + 1}", 128 + signal.SIGRTMIN + 1),
    ],
)
def test_ends_in_words_and_numbers(code: int, words: str, status: int) -> None:
    assert process.describe(code) == words
    assert process.exit_status(code) == status


def test_a_bound_command_ignores_no_signal_that_the_interpreter_ignores() -> None:
    """The interpreter before it ignores two; a shell among the workers would go on writing into a closed pipe."""
    reader, writer = os.pipe()
    command = process.bound(["grep", "SigIgn", "/proc/self/status"], signal.SIGKILL, os.environ)
    pid = process.spawn(command, stdout=writer)
    os.close(writer)
    with open(reader) as file:
        ignored = int(file.read().split()[1], 16)  # also what this process inherited, such as signals of a terminal
    assert os.waitpid(pid, 0)[1] == 0
    assert not [number for number in (signal.SIGPIPE, signal.SIGXFSZ) if ignored >> (number - 1) & 1]


def test_a_bound_command_ends_with_the_process_that_started_it() -> None:
    text = (
        "import os, signal, sys; from farandole.control.process import bound, spawn;"
        "print(spawn(bound(['sleep', '1000'], signal.SIGKILL, os.environ)), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        try:
            parent.kill()
            assert select.select([child], [], [], 30.0)[0]
        finally:
            os.close(child)


@pytest.mark.parametrize("command", ["./no-such-file", "no-such-program"])
def test_a_command_that_is_not_there_is_not_bound(command: str) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        process.bound([command], signal.SIGKILL, os.environ)
    assert process.refusal([command], caught.value)[0] == process.NOT_FOUND


def test_a_command_that_may_not_be_executed_is_not_bound(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print()")
    with pytest.raises(PermissionError) as refused:
        process.bound([str(script)], signal.SIGKILL, os.environ)
    assert "is not executable; type: python" in process.refusal([str(script)], refused.value)[1]


TRACKED = """
import multiprocessing, os, signal
kept = multiprocessing.get_context("spawn").Semaphore()
print(kept._semlock.name, flush=True)
signal.pause()
"""
"""A process whose named semaphore is removed by nobody but Python's resource tracker, once it is killed."""

ENDS = {
    "end_descendants": """
process.adopt_orphans()
start()
process.end_descendants(60.0)
""",
    "no_descendants_left": """
with process.no_descendants_left():
    start()
""",
}

STARTS = """
import subprocess, sys
from farandole.control import process
def start():
    child = subprocess.Popen([sys.executable, *sys.argv[1:]], stdout=subprocess.PIPE, text=True)
    print(child.stdout.readline(), end="", flush=True)
    child.returncode = 0  # it is reaped by others
    child.stdout.close()
"""


@pytest.mark.parametrize("ends", ENDS)
def test_what_killed_processes_have_named_is_removed(ends: str) -> None:
    program = [sys.executable, "-c", STARTS + ENDS[ends], "-c", TRACKED]
    found = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    name = found.stdout.strip().removeprefix("/")
    assert name.startswith("mp-")
    assert not Path(f"/dev/shm/sem.{name}").exists()


@pytest.mark.parametrize("ends", ENDS)
def test_a_resource_tracker_that_does_not_end_is_killed(ends: str) -> None:
    looks_like_one = "from multiprocessing.resource_tracker import main; print(1, flush=True); input()"
    impatient = STARTS.replace("def start", "process.TRACKERS_S = 0.1\ndef start")
    program = [sys.executable, "-c", impatient + ENDS[ends], "-c", looks_like_one]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.read() == b"1\n"
        assert running.wait(PATIENCE_S) == 0
