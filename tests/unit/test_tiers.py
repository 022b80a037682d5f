"""The rules of the tiers: what a test must not do is refused where it does it, and told even where it is caught."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

from farandole.testing.harness import run_ranks
from farandole.testing.leaks import no_leaks
from tests.support import tiers
from tests.support.paths import TESTS
from tests.support.tiers import Tier, WrongTierError


def _wait_in_vain() -> None:
    threading.Event().wait(0.001)


def _socket_of_zeromq() -> None:
    with zmq.Context() as context:
        context.socket(zmq.PAIR)


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (lambda: subprocess.run(["true"], check=True), "start a process (true): it belongs in tests/jobs"),
        (os.fork, "start a process (os.fork): it belongs in tests/jobs"),
        (lambda: os.system("true"), "start a process"),
        (lambda: run_ranks(lambda _: None, 1), "start ranks: it belongs in tests/jobs"),
        (socket.socket, "open a socket: it belongs in tests/jobs"),
        (_socket_of_zeromq, "open a socket: it belongs in tests/jobs"),
        (lambda: time.sleep(0), "sleep"),
        (_wait_in_vain, "wait until 0.001 s are over"),
        (lambda: sys.audit("import", "torch", None, None, None, None), "import torch: it belongs in tests/frameworks"),
    ],
)
def test_a_unit_test_that_does_this_is_told_where_it_belongs(act: Callable[[], object], told: str) -> None:
    tiers.enter(Tier.UNIT)
    with pytest.raises(WrongTierError):
        act()
    (sentence,) = tiers.leave()
    assert sentence.startswith(f"a test in tests/unit must not {told}")


def test_a_rule_that_was_broken_in_a_thread_and_caught_is_told_too() -> None:
    def act() -> None:
        with contextlib.suppress(WrongTierError):
            time.sleep(0)

    tiers.enter(Tier.UNIT)
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()
    assert len(tiers.leave()) == 1


def test_the_look_for_leaks_may_wait_for_the_end_of_a_thread() -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    looks: list[str] = []

    def is_allowed(line: str) -> bool:
        looks.append(line)
        end.set()
        thread.join()
        return False

    tiers.enter(Tier.UNIT)
    with no_leaks(allowed=is_allowed):
        thread.start()
    assert looks
    assert tiers.leave() == []


def test_a_wait_that_is_answered_may_have_a_limit() -> None:
    tiers.enter(Tier.UNIT)
    event = threading.Event()
    thread = threading.Thread(target=event.set)
    thread.start()
    assert event.wait(60.0)
    thread.join()
    assert tiers.leave() == []


@pytest.mark.parametrize(
    ("tier", "command", "told"),
    [
        (
            Tier.JOBS,
            ["farandole", "run", "-np", "4", "true"],
            "start 4 ranks, more than 3: it belongs in tests/nightly/SLICE",
        ),
        (Tier.FRAMEWORKS, ["farandole", "run", "-np", "3", "true"], "start 3 ranks, more than 2"),
        (Tier.JOBS, ["ip", "netns", "list"], "run ip: it belongs in tests/nightly/SLICE"),
    ],
)
def test_a_job_that_is_too_large_or_elsewhere_is_refused(tier: Tier, command: list[str], told: str) -> None:
    tiers.enter(tier)
    with pytest.raises(WrongTierError):
        sys.audit("subprocess.Popen", command[0], command, None, {"PATH": "/usr/bin:/usr/sbin"})
    (sentence,) = tiers.leave()
    assert sentence.startswith(f"a test in tests/{tier.value} must not {told}")


def test_a_stand_in_for_a_command_may_run(tmp_path: Path) -> None:
    (tmp_path / "sbatch").write_text("")
    (tmp_path / "sbatch").chmod(0o755)
    tiers.enter(Tier.JOBS)
    sys.audit("subprocess.Popen", "sbatch", ["sbatch"], None, {"PATH": str(tmp_path)})
    assert tiers.leave() == []


def test_nightly_tests_may_do_all() -> None:
    tiers.enter(Tier.NIGHTLY)
    sys.audit("subprocess.Popen", "srun", ["srun", "farandole", "run", "-np", "64"], None, None)
    time.sleep(0)
    assert tiers.leave() == []


@pytest.mark.parametrize("name", ["test_floors.py", "runtime/test_stall.py", "nightly/test_soak.py"])
def test_a_file_in_no_tier_is_told_where_it_might_lie(name: str) -> None:
    with pytest.raises(ValueError, match="lies in no tier: move it to tests/unit"):
        tiers.tier_of(TESTS / name)
