"""The workers of a launched agent."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from farandole.control import process
from farandole.control.addresses import own_host_only
from farandole.control.agent_messages import AgentHello, StartWorkers, WorkerSpec
from farandole.control.channel import Router
from farandole.control.keys import JobKeys, new_secret
from farandole.control.output import Sink
from farandole.launch.agents import agent
from farandole.launch.agents.agent import SIGNALS, LaunchedWorkers
from farandole.launch.agents.agent_config import LaunchedAgentConfig
from farandole.launch.agents.output import JobOutput
from tests.support.patience import PATIENCE_S

WORKERS = 8
DEADLINE_S = PATIENCE_S


def test_last_words_of_many_workers_are_awaited_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads what they wrote; heartbeats must not wait for one after the other."""
    monkeypatch.setattr(agent, "SETTLE_S", 0.2)
    may_write = threading.Event()
    sink = Sink(lambda _: may_write.wait())
    output = JobOutput((sink, sink))
    fail = [sys.executable, "-S", "-c", "import os; os.write(2, b'no\\n'); os._exit(1)"]
    start = StartWorkers([WorkerSpec(number, fail, {}) for number in range(WORKERS)])
    with process.signals_as_bytes(SIGNALS) as signals:
        workers = LaunchedWorkers(LaunchedAgentConfig([], ""), "", signals)
        workers.begin(start, output)
        for pid in list(workers._workers):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        os.kill(os.getpid(), signal.SIGCHLD)
        began_s = time.monotonic()
        workers.attend({signals})
        took_s = time.monotonic() - began_s
    assert len(workers._ended) == WORKERS
    assert took_s < 0.2 * WORKERS
    may_write.set()
    assert output.close(30.0)


DEEP = """
setsid bash -c 'trap "" TERM; exec 9>deep; echo up >&9; exec sleep 60' &
wait
"""
"""A worker whose child has hidden from its session, and outlives it; it holds a pipe open as long as it lives."""

LATE = "agent.GIVE_UP_S = 0.0; agent.process.signal_descendants = lambda _: None"
"""An agent on a machine so busy that its time is over before it has found whom to kill."""


@pytest.mark.parametrize("end", ["standard input", "controller"])
@pytest.mark.parametrize("busy", ["", LATE], ids=["quick", "late"])
def test_an_agent_leaves_nothing_running_however_it_ends(end: str, busy: str, tmp_path: Path) -> None:
    """Nobody reads its standard error any more, as when the ssh that started it has just been killed."""
    os.mkfifo(tmp_path / "deep")
    deep = os.open(tmp_path / "deep", os.O_RDONLY | os.O_NONBLOCK)
    nobody_reads, stderr = os.pipe()
    os.close(nobody_reads)
    secret = new_secret()
    with contextlib.ExitStack() as listening, contextlib.ExitStack() as held:
        router = listening.enter_context(Router(JobKeys.from_secret(secret), own_host_only()))
        held.callback(os.close, deep)
        program = f"from farandole.launch.agents import agent; {busy or 'pass'}; agent.main()"
        started = held.enter_context(
            subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stderr=stderr, cwd=tmp_path)
        )
        held.callback(started.kill)
        os.close(stderr)
        start = StartWorkers([WorkerSpec(0, ["bash", "-c", DEEP], {})], cwd=str(tmp_path))
        config = LaunchedAgentConfig([router.address], secret, host="b", start=start)
        assert started.stdin is not None
        started.stdin.write(msgspec.json.encode(config) + b"\n")
        started.stdin.flush()
        wait_for(deep)
        assert os.read(deep, 10) == b"up\n"
        until_s = time.monotonic() + DEADLINE_S
        while (got := router.recv()) is None or not isinstance(got[1], AgentHello):
            router.wait(until_s - time.monotonic())
        if end == "controller":
            listening.close()
        else:
            started.stdin.close()
        wait_for(deep)
        assert os.read(deep, 10) == b""  # nobody has it open any more
        started.wait(DEADLINE_S)


def wait_for(fd: int) -> None:
    """Wait until there is something to read, or nobody is left to write it."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    assert poll.poll(DEADLINE_S * 1000)
