"""Slots that others lend, without any cluster: where ranks are, what they see, and how everything ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import hypothesis
import hypothesis.strategies as st
import pytest

from farandole.control.slot_messages import SlotHello
from farandole.errors import ControlError, RemoteError
from farandole.launch.clusters.allocated_slots import hosts_of
from farandole.launch.clusters.slot import Ticket
from farandole.launch.clusters.slot_function import FunctionCall, run_on
from farandole.launch.clusters.slot_provider import SlotProvider
from tests.support.clusters.process_lender import ProcessLender

cloudpickle.register_pickle_by_value(sys.modules[__name__])

DEADLINE_MS = 20_000


def _run(lender: SlotProvider, func: Any, np: int, *args: Any, **knobs: Any) -> list[Any]:
    return run_on(lender, FunctionCall(func, args), np, knobs=knobs)


def test_ranks_fill_the_hosts_in_the_order_of_their_slots() -> None:
    def place() -> list[str]:
        names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
        return [*(os.environ[f"FARANDOLE_{name}"] for name in names), os.environ["CUDA_VISIBLE_DEVICES"]]

    lender = ProcessLender(["b", "a", "b"], devices=["3", "", "1"])
    assert _run(lender, place, 3) == [
        ["0", "3", "0", "2", "0", "2", "3,1"],
        ["1", "3", "1", "2", "0", "1", "3,1"],
        ["2", "3", "0", "1", "1", "2", ""],
    ]
    assert sorted(lender.told or ()) == [0, 1, 2]
    assert [task.returncode for task in lender.tasks.values()] == [0, 0, 0]


@hypothesis.given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"))))
def test_hosts_have_one_name_for_each_node(slots: list[tuple[str, str]]) -> None:
    hellos = {slot: SlotHello(slot, host, host + node, []) for slot, (host, node) in enumerate(slots)}
    found = hosts_of(hellos)
    assert list(found) == list(hellos)
    assert {(hellos[slot].node, name) for slot, name in found.items()} == set(
        {hello.node: found[slot] for slot, hello in hellos.items()}.items()
    )
    assert len(set(found.values())) == len({hello.node for hello in hellos.values()})
    assert all(name.partition("~")[0] == hellos[slot].host and "/" not in name for slot, name in found.items())


def test_a_slot_that_only_keeps_room_is_missed_too(tmp_path: Path) -> None:
    def waits() -> None:
        (tmp_path / os.environ["FARANDOLE_RANK"]).touch()
        signal.pause()

    lender = ProcessLender(["a", "a"])
    killed: list[int] = []

    def kill_when_all_run() -> dict[int, str]:
        if len(list(tmp_path.iterdir())) == 2 and not killed:
            killed.append(lender.tasks[1].pid)
            os.kill(killed[0], signal.SIGKILL)
        return {}  # a cluster that never notices

    lender.failures = kill_when_all_run  # type: ignore[method-assign]
    with pytest.raises(ControlError, match=r"slot 1 of processes on .* is gone: the process that held it has ended"):
        _run(lender, waits, 2)
    assert killed
    assert lender.told == [0]


def test_slots_that_do_not_come_are_counted(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ControlError, match=r"[01] of 2 slots of processes have come within 4 s: there are 1\. Ask"):
        _run(ProcessLender(["a", ""]), len, 2, "", start_timeout_s=4)
    capfd.readouterr()


def test_a_task_of_another_version_says_so() -> None:
    other = Ticket(("tcp://127.0.0.1:9",), 1.0, 1.0, "aa" * 32, version="0.0.1")
    with pytest.raises(ControlError, match=r"could not lend slot 0: .*UsageError: .* the run 0\.0\.1: install one"):
        _run(ProcessLender(["a"], ticket=other), len, 1, "")


def test_a_task_that_cannot_reach_the_caller_says_so() -> None:
    other = Ticket(("tcp://127.0.0.1:9",), 1.0, 1.0, "aa" * 32)
    with pytest.raises(ControlError, match=r"could not lend slot 0: .*none of the controller's addresses answered"):
        _run(ProcessLender(["a"], ticket=other), len, 1, "")


def test_a_ticket_does_not_show_its_secret() -> None:
    ticket = Ticket(("tcp://127.0.0.1:9",), 1.0, 1.0, "c0ffee")
    assert "c0ffee" not in f"{ticket} {ticket!r}"


def test_an_error_comes_back_and_the_slots_are_given_back(capfd: pytest.CaptureFixture[str]) -> None:
    def fails_on_one() -> None:
        if os.environ["FARANDOLE_RANK"] == "1":
            raise KeyError("no such key")
        signal.pause()

    lender = ProcessLender(["a", "b"])
    with pytest.raises(RemoteError, match=r"rank 1 on .*~2 raised KeyError: 'no such key'(.|\n)*in fails_on_one"):
        _run(lender, fails_on_one, 2)
    assert [task.returncode for task in lender.tasks.values()] == [0, 0]
    assert "[1]<stderr>:KeyError" in capfd.readouterr().err


def test_when_the_caller_is_killed_everything_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.clusters.caller", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as caller:
        assert caller.stdout is not None
        try:
            assert "all run" in caller.stdout.readline()
            endings = [os.pidfd_open(int(note.name)) for note in tmp_path.iterdir()]
        finally:
            caller.kill()
    assert len(endings) == 6  # two tasks, two agents, two workers
    for ending in endings:
        poll = select.poll()
        poll.register(ending, select.POLLIN)
        assert poll.poll(DEADLINE_MS), "a process lives on after its caller was killed"
        os.close(ending)
