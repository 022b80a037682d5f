"""Seconds of what `make soak` does for a quarter of an hour, and 40 of its 1000 changes of the workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.cluster import Cluster, UnavailableError
from workbench.survival.records import GenerationRecord
from workbench.survival.soak import reforms, soak, strangers

SECONDS, REFORMS = 20, 40
KINDS = {"virtual-workers": 6, "normal-mode": 0}


@pytest.mark.parametrize("virtual", KINDS.values(), ids=KINDS)
def test_random_faults_change_nothing(tmp_path: Path, virtual: int) -> None:
    try:
        Cluster(2).close()
    except UnavailableError as reason:
        pytest.skip(str(reason))
    seed = 1 + virtual
    report = soak(tmp_path, SECONDS / 2, seed, virtual)
    print(f"seed {seed}\n{report.text()}")
    assert not report.wrong, report.text()
    assert report.faults


def test_workers_re_form_again_and_again(tmp_path: Path) -> None:
    report = reforms(tmp_path, REFORMS)
    assert not report.wrong, report.text()
    assert report.generations > REFORMS


def test_who_ends_without_a_fault_is_found() -> None:
    def record(worker: str, generation: int) -> GenerationRecord:
        return GenerationRecord(worker, 0, 0, generation, 0, 2, 0, 0.0, 0, 0, 0)

    workers = [record("node1-7", 1), record("node2-8", 1), record("node1-7", 2)]
    [said] = strangers(workers, set(), {})
    assert said == "node2-8 ended, and no fault has hit them; 0 had to leave node2"
    assert not strangers(workers, {"node2-8"}, {})
    assert not strangers(workers, set(), {"node2": 1})
    assert strangers(workers, set(), {"node1": 1})
