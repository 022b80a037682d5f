"""A page that outlives its run: nobody waits for it, it orders nothing, and it ends by itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from farandole.monitor.folder import read_info
from tests.jobs.monitor.test_access import Stranger
from tests.support.monitor.page import DEADLINE_S, LiveRun, monitors, until

LONG_S = 3600.0

ENDING = """
import sys
import farandole.numpy as hvd
hvd.init()
hvd.barrier()
sys.exit(int(sys.argv[1]))
"""

COMMAND = [sys.executable, "-m", "farandole", "run", "-np", "2", "--live", "--record", "run"]


def ended(folder: Path, stay_s: float, status: int, *options: str) -> str:
    """Run a job to its end, and to that of its output; returns the latter."""
    (folder / "train.py").write_text(ENDING)
    command = [*COMMAND, *options, "--live-stay", str(stay_s), sys.executable, "train.py", str(status)]
    process = subprocess.Popen(
        command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    said, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == status, said
    return said


@pytest.mark.parametrize(("status", "options"), [(0, []), (3, ["--min-np", "2"])], ids=["well", "elastic-failed"])
def test_a_page_outlives_its_run_and_nobody_waits_for_it(tmp_path: Path, status: int, options: list[str]) -> None:
    ended(tmp_path, LONG_S, status, *options)
    [monitor] = monitors(tmp_path)
    try:
        assert os.getpid() not in {each.pid for each in monitor.parents()}
        assert {os.readlink(f"/proc/{monitor.pid}/fd/{fd}") for fd in (1, 2)} == {os.devnull}
        assert read_info(tmp_path / "run").status == status
        link = (tmp_path / "run" / "live.link").read_text().strip()
        address, _, key = link.partition("/#key=")
        assert urllib.request.urlopen(address, timeout=DEADLINE_S).status == 200
        viewer = Stranger(address)
        viewer.say(json.dumps({"key": key}))
        told = viewer.hear()
        viewer.close()
        assert isinstance(told, list)
        shown = next(each for each in told if each["t"] == "run")
        assert (shown["state"], shown["status"]) == ("ended", status)
        assert shown["until"] == pytest.approx(shown["ended"] + LONG_S)
        order = urllib.request.Request(f"{address}/order", data=b'{"t":"order","verb":"stop"}')
        order.add_header("Authorization", f"Bearer {key}")
        with pytest.raises(urllib.error.HTTPError, match="409"):
            urllib.request.urlopen(order, timeout=DEADLINE_S)
    finally:
        monitor.send_signal(signal.SIGINT)
    until(lambda: not monitors(tmp_path), "for the end of the page")
    assert not (tmp_path / "run" / "live.link").exists()


def test_a_page_ends_by_itself(tmp_path: Path) -> None:
    ended(tmp_path, 0.1, 0)
    until(lambda: not monitors(tmp_path), "for the end of the page")
    assert not (tmp_path / "run" / "live.link").exists()


def test_an_interrupt_ends_run_and_page(tmp_path: Path) -> None:
    run = LiveRun(tmp_path, ["-np", "2"], stay_s=LONG_S)
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 128 + signal.SIGINT, run.said
    assert not monitors(tmp_path)


def test_a_page_in_a_batch_job_keeps_no_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PBS_JOBID", "7.head")
    ended(tmp_path, LONG_S, 0)
    assert not monitors(tmp_path)
