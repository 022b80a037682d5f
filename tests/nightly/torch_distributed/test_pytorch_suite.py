"""PyTorch's own suite for backends of ``torch.distributed``: nothing fails but what is listed here, with its reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.frameworks import lean
from tests.support.paths import ROOT

DEADLINE_S = 900.0

AS_GLOO = {
    "test_get_backend": "it asks for the name of the backend, which is not gloo",
    "test_barrier_timeout_full_group": "it asks for Gloo's words; ours say who has waited for how long, and for whom",
    "test_monitored_barrier_gloo": "dist.monitored_barrier() refuses all groups but Gloo's; ours have it as a method",
    "test_monitored_barrier_gloo_subgroup": "as before",
    "test_monitored_barrier_gloo_rank_0_timeout": "it asks a group for its Gloo backend",
    "test_monitored_barrier_allreduce_hang": "as test_monitored_barrier_gloo",
    "test_monitored_barrier_allreduce_hang_wait_all_ranks": "as before",
    "test_monitored_barrier_failure_order": "as before",
    "test_monitored_barrier_wait_all_ranks": "as before",
}
"""Tests that fail where the suite takes our groups for Gloo's, and why."""


@pytest.mark.parametrize(("backend", "size", "least"), [("farandole", 2, 60), ("farandole", 3, 60), ("gloo", 3, 80)])
def test_the_suite(tmp_path: Path, backend: str, size: int, least: int) -> None:
    if find_spec("expecttest") is None:
        pytest.skip("expecttest, which PyTorch's tests import, is not installed: make setup")
    told = {**os.environ, **lean("torch"), "BACKEND": backend, "WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.support.torch.pytorch_suite", str(tmp_path / "results.json")]
    done = subprocess.run(command, env=told, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "results.json").read_text())
    expected = AS_GLOO if backend == "gloo" else {}
    failed = {name: why for name, (kind, why) in found.items() if kind == "failed" and name not in expected}
    assert not failed, "\n".join(f"{name}: {why}" for name, why in failed.items())
    counts = Counter(kind for kind, _ in found.values())
    print(f"{backend}, {size} ranks: {dict(counts)}")
    assert counts["ok"] >= least, counts
