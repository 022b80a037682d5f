"""Where hosts are learnt from: what is new, what is wrong, and that nothing waits or is left."""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path

import pytest

from farandole.errors import UsageError
from farandole.launch.hosts.discovery import (
    EVERY_S,
    SCRIPT_S,
    Discovery,
    Fixed,
    PrintedHosts,
    Script,
    SlurmNodes,
    Watched,
)
from farandole.launch.hosts.plan import Host, parse_host_lines
from tests.support.launch.running import DEADLINE_S, StartJob


def heard(discovery: Discovery) -> list[str]:
    """What it says to people."""
    said: list[str] = []
    discovery.say = said.append
    return said


def when_ready(script: PrintedHosts, now: float) -> tuple[Host, ...] | None:
    """Start the script and look as often as it has something to say, until it has ended."""
    assert script.look(now) is None
    poll = select.poll()
    while script.fds:
        for fd in script.fds:
            poll.register(fd, select.POLLIN)
        assert poll.poll(DEADLINE_S * 1000)
        for fd in script.fds:
            poll.unregister(fd)
        if (hosts := script.look(now)) is not None:
            return hosts
    return None


def read(watched: Watched, now: float) -> tuple[Host, ...] | None:
    """Look, and again when the file is read."""
    assert watched.look(now) is None
    await_reader(watched)
    return watched.look(now)


def await_reader(watched: Watched) -> None:
    poll = select.poll()
    for fd in watched.fds:
        poll.register(fd, select.POLLIN)
    assert poll.poll(DEADLINE_S * 1000)


def executable(folder: Path, text: str) -> str:
    """A script of this text."""
    path = folder / "discover"
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return str(path)


def test_lines_may_be_of_both_forms() -> None:
    text = "a\nb:3  # three\n\nc slots=2\nnode[1-2]:4\n"
    assert parse_host_lines(text, slots_each=2) == (
        Host("a", 2), Host("b", 3), Host("c", 2), Host("node1", 4), Host("node2", 4),
    )  # fmt: skip
    assert parse_host_lines("# nothing\n") == ()


def test_fixed_hosts_are_said_once() -> None:
    fixed = Fixed([Host("a", 2)])
    assert fixed.deadline_s is not None
    assert fixed.look(0.0) == (Host("a", 2),)
    assert fixed.look(1.0) is None


def test_a_file_is_looked_at_now_and_then_and_what_is_wrong_is_said_once(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    watched = Watched(str(path), slots_each=1)
    said = heard(watched)
    assert read(watched, 0.0) == ()
    assert "cannot be read: No such file or directory; no host is known" in said[0]
    path.write_text("a\n")
    assert watched.look(EVERY_S / 2) is None
    assert read(watched, EVERY_S) == (Host("a", 1),)
    assert read(watched, 2 * EVERY_S) is None
    path.write_bytes(b"a slots=\xff\n")
    assert read(watched, 3 * EVERY_S) is read(watched, 4 * EVERY_S) is None
    assert len(said) == 2
    assert "the hosts stay what they were" in said[1]
    path.write_text("a\n")
    assert read(watched, 5 * EVERY_S) is None  # as before
    watched.close()


def test_a_file_that_cannot_be_read_for_long_holds_up_nobody(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    os.mkfifo(path)
    watched = Watched(str(path), slots_each=1)
    said = heard(watched)
    assert [watched.look(turn * SCRIPT_S) for turn in range(3)] == [None, (), None]
    (text,) = said
    assert "has not been read for 30 s: its file system does not answer; no host is known" in text
    path.write_text("a\n")  # when there is somebody who reads it
    await_reader(watched)
    assert watched.look(3 * SCRIPT_S) == (Host("a", 1),)
    assert watched.deadline_s == 3 * SCRIPT_S + EVERY_S
    watched.close()
    assert not watched.fds


def test_hosts_that_another_process_has_found_stay(tmp_path: Path) -> None:
    watched = Watched(str(tmp_path / "hosts"), slots_each=1)
    watched.inherit()
    said = heard(watched)
    assert read(watched, 0.0) is None
    assert "the hosts stay what they were" in said[0]
    watched.close()


def test_a_script_is_run_again_and_again(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("a\nb:2\n")
    script = Script(executable(tmp_path, f"print(open({str(hosts)!r}).read())"), slots_each=4)
    assert when_ready(script, 0.0) == (Host("a", 4), Host("b", 2))
    assert when_ready(script, EVERY_S) is None
    hosts.write_text("a\n")
    assert when_ready(script, 2 * EVERY_S) == (Host("a", 4),)
    script.close()


def test_slurm_is_asked_for_the_nodes_of_a_job_now_and_then_and_when_one_is_lost(tmp_path: Path) -> None:
    answer, squeue = tmp_path / "answer", tmp_path / "squeue"
    squeue.write_text(
        f"#!{sys.executable}\nimport sys\nassert '--jobs=7' in sys.argv\nprint(open({str(answer)!r}).read())\n"
    )
    squeue.chmod(0o755)
    first = (Host("n1", 4), Host("n2", 4), Host("n3", 2))
    nodes = SlurmNodes("7", first, 60.0, {"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    said = heard(nodes)
    assert nodes.look(0.0) == first
    assert nodes.look(1.0) is None
    assert not nodes.fds, "Slurm is not asked yet"
    answer.write_text("n[1,4]")
    nodes.hurry()
    assert when_ready(nodes, 2.0) == (Host("n1", 4), Host("n4", 4))
    answer.write_text("n1\nn3")
    assert nodes.look(30.0) is None
    assert not nodes.fds
    assert when_ready(nodes, 62.0) == (Host("n1", 4), Host("n3", 2))
    for wrong in ("", "n[1-"):
        answer.write_text(wrong)
        nodes.hurry()
        assert when_ready(nodes, 63.0) is None
    assert said[0] == "squeue of job 7 shows no node; the hosts stay what they were; it is looked at again every 60 s"
    assert "stay what they were" in said[1]
    nodes.close()


def test_what_a_script_says_when_it_fails_is_passed_on(tmp_path: Path) -> None:
    script = Script(executable(tmp_path, "import sys; sys.exit('x' * 100_000 + ' no quota')"), slots_each=1)
    said = heard(script)
    assert when_ready(script, 0.0) == ()
    assert when_ready(script, EVERY_S) is None
    (text,) = said
    assert text.endswith(" no quota; no host is known yet; it is looked at again every 1 s")
    assert len(text) < 1000
    script.close()


@pytest.mark.parametrize(
    ("printed", "says"),
    [
        ("", "names no host"),
        ("Hello, World", "line 1 of what {0} prints, 'Hello, World', is not of the form"),
        ("node1:many", "line 1 of what {0} prints, 'node1:many': 'node1:many' is no host"),
    ],
)
def test_a_script_that_prints_no_hosts_is_named_once(tmp_path: Path, printed: str, says: str) -> None:
    path = executable(tmp_path, f"print({printed!r})")
    script = Script(path, slots_each=1)
    said = heard(script)
    assert when_ready(script, 0.0) == ()
    assert when_ready(script, EVERY_S) is None
    (text,) = said
    assert says.format(path) in text
    assert text.endswith("it is looked at again every 1 s")
    script.close()


def test_a_script_that_does_not_end_is_killed(tmp_path: Path) -> None:
    script = Script(executable(tmp_path, "import time; print('up', flush=True); time.sleep(1000)"), slots_each=1)
    said = heard(script)
    assert script.look(0.0) is None
    assert script.look(SCRIPT_S) == ()
    assert f"took longer than {SCRIPT_S:g} s and was killed" in said[0]
    assert script.look(SCRIPT_S + EVERY_S) is None  # the next one runs
    script.close()


def test_nothing_of_a_script_is_left(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    script = Script(executable(tmp_path, "import time; time.sleep(1000)"), slots_each=1)
    script.look(0.0)
    script.close()
    script.close()
    assert os.listdir("/proc/self/fd") == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_group_is_killed_only_while_its_number_is_the_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[bool] = []

    def killpg(pid: int, number: int) -> None:
        killed.append(os.path.exists(f"/proc/{pid}"))

    monkeypatch.setattr(os, "killpg", killpg)
    script = Script(executable(tmp_path, "print('a')"), slots_each=1)
    assert when_ready(script, 0.0) == (Host("a", 1),)
    script.close()
    assert killed == [True]


def test_a_job_does_not_wait_for_hosts_that_are_never_named(job: StartJob, tmp_path: Path) -> None:
    path = executable(tmp_path, "print('Hello, World')")
    running = job("--min-np", "1", "--elastic-timeout", "0.2", "--host-discovery-script", path, command=["true"])
    assert running.end() == 1
    assert "'Hello, World', is not of the form" in running.stderr
    assert "0 ready, and the job needs 1 (--min-np)" in running.stderr


@pytest.mark.parametrize("command", ["", "./there-is-none", "/etc/passwd"])
def test_what_is_no_script_is_refused(command: str) -> None:
    with pytest.raises(UsageError, match="there is no such program that can be executed"):
        Script(command, slots_each=1)
