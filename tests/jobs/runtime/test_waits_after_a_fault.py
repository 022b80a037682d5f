"""After a fault nobody waits in silence: a wait of a second says who waits for whom, in whatever public function."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import farandole.numpy as hvd
from tests.support.paths import SUPPORT
from tests.support.runtime.waits_after_a_fault import ROUNDS, WAYS

SCRIPT = SUPPORT / "runtime" / "waits_after_a_fault.py"
NO_WAITS = {
    "Adasum", "Average", "Compression", "HorovodInternalError", "Max", "Min", "NoiseScale", "ProcessSet", "Product",
    "Sum", "ccl_built", "checkpoint_due", "cross_rank", "cross_size", "cuda_built", "data", "ddl_built",
    "global_process_set",
    "gloo_built", "gloo_enabled", "is_homogeneous", "is_initialized", "local_rank", "local_size", "log", "mllog",
    "mpi_built", "mpi_enabled", "mpi_threads_supported", "nccl_built", "poll", "rank", "rocm_built", "shutdown", "size",
    "start_timeline", "statistics", "stop_timeline",
}  # fmt: skip
"""Public names that wait for no other rank; the timeline's waits for answers of processes, and not of scripts."""

TITLES = {
    "barrier": "barrier 'noname",
    "DistributedGradients": "connecting gradients",
    "join": "join",
    "init": r"init\(\)",
    "add_process_set": "add_set",
    "remove_process_set": "remove_set",
}
"""What lines call those that have no name."""

NOTICE = re.compile(r"farandole: waiting after a fault: rank (\d) on \S+ for rank \d on \S+.*, \d+\.\d s so far, in ")


def test_every_public_name_waits_in_the_script_or_never() -> None:
    assert {*WAYS, "synchronize"} | NO_WAITS == set(hvd.__all__)


def test_each_wait_says_who_waits_for_whom(tmp_path: Path) -> None:
    for ways in ROUNDS:
        os.mkfifo(tmp_path / ways[0])
    limits = ["--stall-check-shutdown-time-seconds", "100"]  # a wait that nobody is told of ends by itself
    command = [sys.executable, "-m", "farandole", "run", "-np", "2", *limits, sys.executable, str(SCRIPT)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as job:
        assert job.stderr is not None
        assert job.stdout is not None
        for ways in ROUNDS:
            untold = dict.fromkeys(ways)
            for line in job.stderr:
                notice = NOTICE.match(line)
                assert notice, line
                for way in list(untold):
                    if notice[1] == "0" and re.search(TITLES.get(way, rf"\bof {way}\."), line):
                        del untold[way]
                if not untold:
                    break
            assert not untold, untold
            os.close(os.open(tmp_path / ways[0], os.O_WRONLY))
        assert all(map(NOTICE.match, job.stderr))
        assert sorted(job.stdout.read().split()) == ["[0]<stdout>:done", "[1]<stdout>:done"]
    assert job.returncode == 0
