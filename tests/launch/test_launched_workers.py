"""The workers of a launched agent."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import pytest

from farandole.control import process
from farandole.control.agent_messages import StartWorkers, WorkerSpec
from farandole.control.output import Sink
from farandole.launch.agents import agent
from farandole.launch.agents.agent import SIGNALS, LaunchedWorkers
from farandole.launch.agents.agent_config import LaunchedAgentConfig
from farandole.launch.agents.output import JobOutput

WORKERS = 8


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
    assert took_s < 0.2 * WORKERS / 2
    may_write.set()
    assert output.close(30.0)
