"""Times of hosts whose clocks differ, in one timeline."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from farandole.control.clock import Stamp, this_clock
from tests.support.launching import Launch

AHEAD_S = 5000

SCRIPT = """
import os
import sys
import farandole.torch as hvd, torch
if int(os.environ["FARANDOLE_RANK"]) == 1 and "there" not in sys.argv:
    os.execvp("unshare", ["unshare", "--time", "--monotonic", "{ahead}", "--fork", sys.executable, __file__, "there"])
hvd.init()
hvd.start_timeline("{path}")
hvd.allreduce(torch.ones(1), name="together")
hvd.barrier()
hvd.stop_timeline()
"""


def test_an_offset_is_that_of_clocks_and_not_of_the_way() -> None:
    stamp = Stamp.now()
    assert stamp.offset_s(stamp.time_s + 7.0) == 0.0, "the same clock"
    assert Stamp("another", 100.0).offset_s(40.0) == 60.0
    assert len(this_clock()) > 10


def test_a_rank_with_another_clock_stands_beside_the_others_in_the_timeline(launch: Launch, tmp_path: Path) -> None:
    command = ["unshare", "--time", "--monotonic", str(AHEAD_S), "--fork", "true"]
    tried = subprocess.run(command, check=False, capture_output=True)
    if tried.returncode:
        pytest.skip(f"no clock of its own can be made for a process here: {tried.stderr.decode().strip()}")
    path = tmp_path / "timeline.json"
    launch(2, SCRIPT.format(ahead=AHEAD_S, path=path)).ok()
    events = json.loads(path.read_text().rstrip(",\n") + "]")
    reduced = {e["pid"]: e["ts"] for e in events if e["name"] == "reduce" and e["args"]["name"] == "allreduce.together"}
    assert reduced.keys() == {0, 1}
    assert abs(reduced[0] - reduced[1]) < 60e6, "microseconds"
