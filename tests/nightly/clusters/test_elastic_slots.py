"""Elastic jobs in slots that others lend, without any cluster: what is lost, asked for again, and given back."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import msgspec
import numpy as np
import psutil
import pytest

import farandole.numpy as hvd
from farandole.control.slot_messages import AgentOver, RunAgent, SlotHello, SlotOver
from farandole.elastic.worker import run as elastic
from farandole.elastic.worker.state import ObjectState
from farandole.errors import ControlError
from farandole.launch.agents.agent_config import LaunchedAgentConfig
from farandole.launch.clusters import elastic_slots
from farandole.launch.clusters.elastic_slots import ElasticSlots
from farandole.launch.clusters.slot_function import FunctionCall, run_on
from tests.support.clusters.process_lender import ProcessLender

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def train(folder: Path, wanted: list[int]) -> list[int]:
    """Train until the job has had these numbers of workers in a row; returns all that it had."""

    @elastic.run
    def loop(state: Any) -> None:
        while state.sizes[-len(wanted) :] != wanted:
            hvd.allreduce(np.ones(1), name="step")
            state.sizes = [*state.sizes, hvd.size()] if state.sizes[-1:] != [hvd.size()] else state.sizes
            (folder / f"size-{hvd.size()}").touch()
            state.commit()
            threading.Event().wait(0.01)

    hvd.init()
    state: Any = ObjectState(sizes=[])
    loop(state)
    return list(state.sizes)


@pytest.mark.parametrize(("nodes", "victim"), [(["a", "b"], 0), (["a", "b"], 1), (["a", "a"], 1)])
def test_a_slot_that_is_killed_is_asked_for_again(tmp_path: Path, nodes: list[str], victim: int) -> None:
    lender, killed = ProcessLender(nodes), list[int]()
    failures = lender.failures

    def kill_once() -> Mapping[int, str]:
        if (tmp_path / "size-2").exists() and not killed:
            killed.append(lender.tasks[victim].pid)
            os.kill(killed[0], signal.SIGKILL)
        return failures()

    lender.failures = kill_once  # type: ignore[method-assign]
    knobs = {"min_np": 1, "max_np": 2}
    results = run_on(lender, FunctionCall(train, (tmp_path, [2, 1, 2])), None, knobs=knobs)
    assert killed
    assert [sizes[-3:] for sizes in results] == [[2, 1, 2]] * 2
    assert len(lender.tasks) == 3
    assert all(task.returncode is not None for task in lender.tasks.values())


def test_a_job_begins_with_the_slots_that_there_are(tmp_path: Path) -> None:
    lender = ProcessLender(["a", ""])
    assert run_on(lender, FunctionCall(train, (tmp_path, [1])), None, knobs={"min_np": 1, "max_np": 2}) == [[1]]


def test_too_few_slots_are_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ControlError, match=r"[01] of 2 slots of processes have come within 4 s"):
        run_on(
            ProcessLender(["a", "", ""]),
            FunctionCall(len, ("",)),
            None,
            knobs={"min_np": 2, "max_np": 3, "start_timeout_s": 4},
        )
    capfd.readouterr()


def test_a_slot_that_stands_still_is_given_up_and_asked_for_again(tmp_path: Path) -> None:
    lender, stopped = ProcessLender(["a", "b"]), list[int]()
    failures = lender.failures

    def stop_once() -> Mapping[int, str]:
        if (tmp_path / "size-2").exists() and not stopped:
            stopped.extend([lender.tasks[1].pid, *below(lender.tasks[1].pid)])
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
        return failures()

    lender.failures = stop_once  # type: ignore[method-assign]
    knobs = {"min_np": 1, "max_np": 2, "host_timeout_s": 2.0}
    try:
        results = run_on(lender, FunctionCall(train, (tmp_path, [2, 1, 2])), None, knobs=knobs)
    finally:
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert [sizes[-3:] for sizes in results] == [[2, 1, 2]] * 2


def below(pid: int) -> list[int]:
    """Processes below a process."""
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def test_slots_with_gpus_are_hosts_of_their_own() -> None:
    """A worker that joins later sees its own device, and not those that were there when an agent started."""

    def place() -> list[str]:
        return [os.environ["FARANDOLE_LOCAL_RANK"], os.environ["CUDA_VISIBLE_DEVICES"]]

    lender = ProcessLender(["a", "a"], devices=["0", "1"])
    found = run_on(lender, FunctionCall(place), None, knobs={"min_np": 2, "max_np": 2})
    assert sorted(found) == [["0", "0"], ["0", "1"]]


class Told:
    """Router and slots of one job, which only note what they are told."""

    bell = 7

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, Any]] = []
        self.held: dict[int, bytes] = {}
        self.gone: dict[int, str] = {}
        self.asked: list[range] = []

    def send(self, identity: bytes, message: Any) -> bool:
        self.sent.append((identity, message))
        return True

    def reaches(self, _identity: bytes) -> bool:
        return True

    @property
    def counts(self) -> dict[str, int]:
        return {"a": len(self.held)} if self.held else {}

    def add_slot(self, identity: bytes, hello: SlotHello) -> bool:
        return self.held.setdefault(hello.slot, identity) is identity

    def run_agent(self, host: str, _config: Any, busy: set[int]) -> int:
        return next((slot for slot in self.held if host == "a" and slot not in busy), -1)

    def has(self, slot: int) -> bool:
        return slot in self.held

    def drop(self, slot: int) -> None:
        self.held.pop(slot, None)

    def lost(self) -> dict[int, str]:
        return self.gone

    def request_slots(self, slots: range) -> None:
        self.asked.append(slots)


@pytest.fixture
def told() -> Any:
    """What stands for a router and for slots."""
    return Told()


CONFIG = msgspec.json.encode(LaunchedAgentConfig(["tcp://127.0.0.1:1"], "aa" * 32))


def test_a_task_that_a_cluster_runs_again_is_sent_home(told: Any, tmp_path: Path) -> None:
    slots = ElasticSlots(told, told, tmp_path / "hosts", 1)
    for identity, slot in ((b"first", 0), (b"again", 0), (b"unknown", 5)):
        slots.handle_slot_message(identity, SlotHello(slot, "a", "a", []))
    assert told.sent == [(b"again", SlotOver()), (b"unknown", SlotOver())]
    assert (tmp_path / "hosts").read_text() == "a slots=1\n"


def test_a_host_runs_no_more_agents_than_it_has_slots(told: Any, tmp_path: Path) -> None:
    slots = ElasticSlots(told, told, tmp_path / "hosts", 1)
    slots.handle_slot_message(b"slot", SlotHello(0, "a", "a", []))
    for start, host in ((b"one", "a"), (b"two", "a"), (b"three", "b")):
        slots.handle_slot_message(start, RunAgent(host, CONFIG))
    assert [identity for identity, _ in told.sent] == [b"two", b"three"]
    assert all(isinstance(message, AgentOver) for _, message in told.sent)


def test_slots_are_asked_for_again_later_where_they_fail_at_once(
    told: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(elastic_slots, "time", SimpleNamespace(monotonic=lambda: now[0]))
    slots = ElasticSlots(told, told, tmp_path / "hosts", 2)
    slots.handle_slot_message(b"slot", SlotHello(0, "a", "a", []))
    asked_s = []
    for number in range(1, 5):
        told.gone = {number: "no such module"}
        slots.turn()
        told.gone, before = {}, len(told.asked)
        while len(told.asked) == before:
            now[0] += 0.5
            slots.turn()
        asked_s.append(now[0])
    assert [later - earlier for earlier, later in zip([100.0, *asked_s], asked_s, strict=False)] == [
        4.0,
        8.0,
        16.0,
        32.0,
    ]
    assert told.asked == [range(n, n + 1) for n in range(2, 6)]
