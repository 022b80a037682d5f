"""Elastic jobs in slots that others lend, without any cluster: what is lost, asked for again, and given back."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

import farandole.numpy as hvd
from farandole.control.slot_messages import AgentOver, RunAgent, SlotHello, SlotOver
from farandole.elastic.worker import run as elastic
from farandole.elastic.worker.state import ObjectState
from farandole.errors import ControlError
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


class Told:
    """Router and slots of one job, which only note what they are told."""

    bell = 7

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, Any]] = []
        self.held: dict[int, bytes] = {}

    def send(self, identity: bytes, message: Any) -> bool:
        self.sent.append((identity, message))
        return True

    @property
    def counts(self) -> dict[str, int]:
        return {"a": len(self.held)} if self.held else {}

    def take(self, identity: bytes, hello: SlotHello) -> bool:
        return self.held.setdefault(hello.slot, identity) is identity


def test_a_task_that_a_cluster_runs_again_is_sent_home(tmp_path: Path) -> None:
    told: Any = Told()
    slots = ElasticSlots(told, told, tmp_path / "hosts", 1)
    for identity, slot in ((b"first", 0), (b"again", 0), (b"unknown", 5)):
        slots.take(identity, SlotHello(slot, "a", "a", []))
    assert told.sent == [(b"again", SlotOver()), (b"unknown", SlotOver())]
    assert (tmp_path / "hosts").read_text() == "a slots=1\n"


def test_an_agent_on_a_host_without_slots_is_refused(tmp_path: Path) -> None:
    told: Any = Told()
    ElasticSlots(told, told, tmp_path / "hosts", 1).take(b"start", RunAgent("b", b"{}"))
    assert told.sent == [(b"start", AgentOver("no slot of host b is left"))]
