"""The controller that no launcher holds, as the real process it is; this test plays the workers' part on the wire."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, TypeVar

import msgspec
import pytest

from farandole.collective import DType, Kind
from farandole.control.addresses import free_port
from farandole.control.agent_messages import AGENT, AgentHello, Report
from farandole.control.channel import Dealer, Router
from farandole.control.exits import WorkerExited
from farandole.control.keys import JobKeys, new_secret
from farandole.control.messages import (
    Abort,
    AskProgress,
    Entry,
    Exchange,
    Exchanged,
    Hello,
    Leave,
    Orders,
    Progress,
    Refuse,
    Signature,
    Submit,
    Welcome,
)
from farandole.runtime.selfstart.host_socket import claim, name_of
from farandole.runtime.selfstart.spawn import AGENT_MODULE, ControllerConfig, HostAgentConfig
from farandole.runtime.selfstart.spawn import CONTROLLER_MODULE as MODULE
from farandole.version import __version__
from tests.support.patience import PATIENCE_S

M = TypeVar("M")
DEADLINE_S = PATIENCE_S

BUSY = """
from farandole.runtime.session.tracebacks import stack_dump
print(*stack_dump(), flush=True)
def busy():
    while True: pass
busy()
"""


class Job:
    """A standalone controller started by this process, and the sockets of workers."""

    def __init__(self, held: ExitStack, size: int, **settings: str) -> None:
        self.size, self.held = size, held
        self.address, secret = f"tcp://127.0.0.1:{free_port()}", new_secret()
        self.keys = JobKeys.from_secret(secret)
        self.process = held.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", MODULE],
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **settings},
            )
        )
        held.callback(self.process.kill)
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(ControllerConfig(self.address, "here", size, secret)) + b"\n")
        self.process.stdin.flush()
        self.sockets: dict[str, Dealer] = {}

    def join(self, uid: str, worker_id: int, pid: int, **more: Any) -> None:
        for suffix in "uco":
            dealer = Dealer(self.address, f"{uid}{suffix}".encode(), self.keys, DEADLINE_S)
            self.sockets[uid + suffix] = self.held.enter_context(dealer)
        hello = Hello(uid, worker_id, self.size, "here", pid, "1", ["solo", "shm"], 0, 0, [])
        self.sockets[uid + "u"].send(msgspec.structs.replace(hello, **more))

    def read_line(self) -> str:
        """The next line that the controller has written for people."""
        assert self.process.stderr is not None
        line = self.process.stderr.readline().decode()
        assert line, "the controller has ended"
        return line.rstrip()

    def expect(self, socket: str, kind: type[M]) -> M:
        message = self.sockets[socket].recv(DEADLINE_S)
        assert isinstance(message, kind), message
        return message

    def leave(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(DEADLINE_S)


@pytest.fixture
def held() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def child(held: ExitStack, code: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", code]
    process = held.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env))
    held.callback(process.kill)
    return process


def test_it_serves_until_its_starter_lets_go_and_says_farewell(held: ExitStack) -> None:
    job = Job(held, 2)
    other = child(held, "input()")
    job.join("x", 0, os.getpid())
    job.join("y", 1, other.pid)
    assert [job.expect(f"{uid}c", Welcome).rank for uid in "xy"] == [0, 1]
    entry = Entry(0, "n", signature=Signature(Kind.ALLREDUCE, [DType.FLOAT32], [[3]]))
    for uid in "xy":
        job.sockets[f"{uid}u"].send(Submit(1, entry))
    assert job.expect("xo", Orders) == job.expect("yo", Orders)
    assert job.leave() == 0
    reason = job.expect("yc", Abort).reason
    assert reason == f"rank 0 on here (process {os.getpid()}) has ended without calling shutdown()"


def test_it_serves_the_others_when_its_starter_has_left_in_order(held: ExitStack) -> None:
    job = Job(held, 3, FARANDOLE_HOST_TIMEOUT_S="0")
    far = agent(job)
    job.join("x", 0, os.getpid(), engines=["tcp"])
    other = child(held, "input()")
    job.join("y", 1, other.pid, engines=["tcp"])
    job.join("z", 2, 101, host="there", engines=["tcp"])
    assert [job.expect(f"{uid}c", Welcome).rank for uid in "xyz"] == [0, 1, 2]
    job.sockets["xu"].send(Leave(1))
    job.sockets["xu"].flush(DEADLINE_S)
    assert job.process.stdin is not None
    job.process.stdin.close()
    job.sockets["yu"].send(Exchange(1, "both", [1, 2], b"y"))
    job.sockets["zu"].send(Exchange(1, "both", [1, 2], b"z"))
    assert job.expect("yc", Exchanged) == job.expect("zc", Exchanged) == Exchanged(1, "both", [b"y", b"z"])
    job.sockets["yu"].send(Leave(1))
    job.sockets["zu"].send(Exchange(1, "alone", [2], b"z"))
    assert job.expect("zc", Exchanged).key == "alone"
    assert job.process.poll() is None
    far.send(Report(WorkerExited(-1, 0, pid=101)))
    assert job.process.wait(DEADLINE_S) == 0


def test_a_rank_that_is_lost_after_its_starter_has_left_is_told_to_the_others(held: ExitStack) -> None:
    job = Job(held, 3)
    others = [child(held, "input()") for _ in range(2)]
    job.join("x", 0, os.getpid())
    job.join("y", 1, others[0].pid)
    job.join("z", 2, others[1].pid)
    assert [job.expect(f"{uid}c", Welcome).rank for uid in "xyz"] == [0, 1, 2]
    job.sockets["xu"].send(Leave(1))
    job.sockets["xu"].flush(DEADLINE_S)
    assert job.process.stdin is not None
    job.process.stdin.close()
    others[0].kill()
    others[0].wait()
    assert job.expect("zc", Abort).reason.startswith(f"rank 1 on here (process {others[0].pid}) has ended")
    assert job.process.wait(DEADLINE_S) == 0


def test_processes_of_other_hosts_may_have_the_same_number(held: ExitStack) -> None:
    job = Job(held, 2)
    job.join("x", 0, os.getpid(), engines=["tcp"])
    job.join("y", 1, os.getpid(), host="there", engines=["tcp"])
    assert [job.expect(f"{uid}c", Welcome).rank for uid in "xy"] == [0, 1]
    assert job.leave() == 0
    assert job.expect("yc", Abort).reason.startswith("rank 0 on here")


def test_an_end_counts_once_however_often_the_others_begin_again(held: ExitStack) -> None:
    job = Job(held, 2)
    other = child(held, "input()")
    job.join("y", 1, other.pid)
    job.join("x1", 0, os.getpid())
    assert job.expect("x1c", Welcome).generation == 1
    other.kill()
    other.wait()
    job.expect("x1c", Abort)
    for generation in (2, 3, 4):
        job.join(f"x{generation}", 0, os.getpid())
        assert job.expect(f"x{generation}c", Welcome).generation == generation
    assert job.leave() == 0


def test_a_worker_that_is_killed_is_noticed_at_once(held: ExitStack) -> None:
    job = Job(held, 2)
    other = child(held, "input()")
    job.join("y", 1, other.pid)
    job.join("x", 0, os.getpid())
    job.expect("xc", Welcome)
    other.send_signal(signal.SIGKILL)
    reason = job.expect("xc", Abort).reason
    assert reason == f"rank 1 on here (process {other.pid}) has ended without calling shutdown()"
    assert job.leave() == 0


def agent(job: Job) -> Dealer:
    dealer = job.held.enter_context(Dealer(job.address, AGENT + b"there", job.keys, DEADLINE_S))
    dealer.send(AgentHello("there", os.getpid(), __version__))
    dealer.flush(DEADLINE_S)
    return dealer


def test_workers_of_a_host_that_stood_still_for_too_long_are_told_when_it_goes_on(held: ExitStack) -> None:
    """Its processes and connections are there all the time."""
    job = Job(held, 3, FARANDOLE_HOST_TIMEOUT_S="0.5")
    job.join("x", 0, os.getpid(), engines=["tcp"])
    job.join("y", 1, 101, host="there", engines=["tcp"])
    job.join("z", 2, 102, host="there", engines=["tcp"])
    for socket in ("xc", "yc", "zc"):
        job.expect(socket, Welcome)
    agent(job)  # only now: its host has half a second from here
    told = {job.expect(socket, Abort).reason for socket in ("xc", "yc", "zc", "xo", "yo", "zo")}
    assert len(told) == 1
    assert told.pop().startswith("ranks 1-2 on there lost: host there has sent nothing for 0.5 s")
    assert job.leave() == 0


def test_a_worker_whose_end_comes_before_its_hello_is_not_waited_for(held: ExitStack) -> None:
    job = Job(held, 2, FARANDOLE_HOST_TIMEOUT_S="0")
    far = agent(job)
    far.send(Report(WorkerExited(-1, 0, pid=101)))
    far.flush(DEADLINE_S)
    job.join("y", 1, 101, host="there", engines=["tcp"])
    job.sockets["yu"].flush(DEADLINE_S)
    job.join("x", 0, os.getpid(), engines=["tcp"])
    assert "rank 1 on there (process 101) has ended" in job.expect("xc", Refuse).reason
    assert job.leave() == 0


def test_an_agent_tells_of_its_starter_though_nobody_has_asked_it_yet(held: ExitStack) -> None:
    secret = new_secret()
    starter = child(held, "input()")
    with Router(JobKeys.from_secret(secret)) as router, claim(name_of(secret, "there", router.address)) as claimed:
        assert claimed is not None
        config = HostAgentConfig([router.address], secret, "there", 3.0, starter=starter.pid, claimed=claimed.fileno())
        command = [sys.executable, "-m", AGENT_MODULE]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[config.claimed], env=env) as process:
            held.callback(process.kill)
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(config) + b"\n")
            process.stdin.flush()
            said: list[Any] = []
            until_s = time.monotonic() + DEADLINE_S
            while not any(isinstance(each, Report) for each in said) and time.monotonic() < until_s:
                router.wait(0.1)
                while (got := router.recv()) is not None:
                    said.append(got[1])
                    starter.kill()
            assert said[-1] == Report(WorkerExited(-1, 0, pid=starter.pid))
            assert process.wait(DEADLINE_S) == 0


def test_a_stalled_worker_is_reported_with_the_stack_it_is_in_though_it_holds_the_lock(held: ExitStack) -> None:
    job = Job(held, 2, FARANDOLE_STALL_WARNING_S="0.2")
    other = child(held, BUSY)
    assert other.stdout is not None
    fd, number = map(int, other.stdout.readline().split())
    job.join("x", 0, os.getpid())
    job.join("y", 1, other.pid, stack_fd=fd, stack_signal=number)
    job.expect("xc", Welcome)
    job.expect("yc", Welcome)
    entry = Entry(0, "loss", signature=Signature(Kind.ALLREDUCE, [DType.FLOAT32], [[3]]))
    job.sockets["xu"].send(Submit(1, entry))
    found = ""
    while not found.endswith("its Python stack now:"):  # the next report has what came too late for this one
        job.expect("yc", AskProgress)
        job.sockets["yu"].send(Progress(1, "allreduce.acc", ""))
        while not (report := job.read_line()).startswith("farandole: stalled: allreduce 'loss' has waited "):
            pass
        assert report.endswith("missing: rank 1 on here; ready: rank 0 on here")
        found = job.read_line()
    assert found == "  rank 1 on here last finished allreduce.acc, and is outside Farandole; its Python stack now:"
    assert any("in busy" in job.read_line() for _ in range(3))
    assert job.leave() == 0


def test_an_address_that_is_taken_is_said_and_ends_it(held: ExitStack) -> None:
    first = Job(held, 2)
    first.join("x", 0, os.getpid())
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    config = msgspec.json.encode(ControllerConfig(first.address, "here", 2, new_secret())) + b"\n"
    done = subprocess.run(
        [sys.executable, "-m", MODULE], input=config, env=env, capture_output=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 1
    assert f"the controller cannot listen at {first.address}" in done.stderr.decode()
    assert first.leave() == 0
