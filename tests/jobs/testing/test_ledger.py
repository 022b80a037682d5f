"""The ledger of an elastic job finds what was lost, repeated, or different."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from farandole import events
from farandole.testing.faults import Fault, InjectedError, inject
from farandole.testing.ledger import Begun, Brought, History, Record, Voted, read
from tests.support.patience import PATIENCE_S


def steps(generation: int, batches: dict[int, list[int]], rank: int = 0, voted: bool = True) -> list[Record]:
    records: list[Record] = []
    for step, indices in batches.items():
        records.append(Brought(generation, rank, step, "sampler", 0, indices))
        if voted:
            records.append(Voted(generation, rank, step, 0.0))
    return records


def begun(generation: int, step: int, digest: str = "a", rank: int = 0) -> Begun:
    return Begun(generation, rank, 2, step, digest, 0.0)


def test_a_step_counts_as_its_last_generation_made_it() -> None:
    killed = [begun(1, 0, rank=1), *steps(1, {0: [2, 3], 1: [6, 7]}, rank=1)]  # it alone saw the end of the second vote
    survivor = [begun(1, 0), *steps(1, {0: [0, 1]}), *steps(1, {1: [4, 5]}, voted=False)]
    survivor += [begun(2, 1), *steps(2, {1: [4, 5, 6, 7]})]
    history = History({"a": killed, "b": survivor})
    assert history.steps == {0: 1, 1: 2}
    assert history.batches() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert history.problems(8, 1) == []
    assert history.problems(9, 1) == ["epoch 0: 1 samples lost [8], 0 repeated []"]


def test_what_is_wrong_is_named() -> None:
    worker = [begun(1, 0), *steps(1, {0: [0, 1], 2: [1, 2]})]
    other: list[Record] = [begun(1, 0, digest="b", rank=1)]
    assert History({"a": worker, "b": other}).problems(3, 1) == [
        "epoch 0: 0 samples lost [], 1 repeated [1]",
        "steps [1] were never voted",
        "generation 1 began with different states: {0: (0, 'a'), 1: (0, 'b')}",
    ]


def test_a_line_that_was_cut_off_does_not_count(tmp_path: Path) -> None:
    whole = msgspec.json.encode(Voted(1, 0, 3, 0.0))
    (tmp_path / "worker-7.jsonl").write_bytes(whole + b"\n" + whole[:9])
    assert read(tmp_path).workers == {"worker-7": [Voted(1, 0, 3, 0.0)]}


def test_a_fault_happens_once_and_where_it_should(tmp_path: Path) -> None:
    end = inject(tmp_path, [Fault(1, 7, "vote", "raise")])
    try:
        for worker_id in ((0, 7, "vote"), (1, 6, "vote"), (1, 7, "commit")):
            rank, step, phase = worker_id
            events.emit(events.Milestone(phase, 1, rank, step, 0.0))
        with pytest.raises(InjectedError):
            events.emit(events.Milestone("vote", 1, 1, 7, 0.0))
        events.emit(events.Milestone("vote", 2, 1, 7, 0.0))
    finally:
        end()
    assert [path.name for path in tmp_path.iterdir()] == ["fault-1-7-vote-raise--1"]


@pytest.mark.parametrize(("action", "code"), [("kill", -signal.SIGKILL), ("segv", -signal.SIGSEGV), ("exit", 0)])
def test_faults_end_processes(tmp_path: Path, action: str, code: int) -> None:
    script = (
        "from farandole import events\n"
        "from farandole.testing.faults import Fault, inject\n"
        f"inject({str(tmp_path)!r}, [Fault(0, 0, 'vote', {action!r})])\n"
        "events.emit(events.Milestone('vote', 1, 0, 0, 0.0))\n"
        "raise SystemExit('still here')\n"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=PATIENCE_S, check=False).returncode == code
