"""Seats of notebook engines: before the variables of a starter, in no child, in no task."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from farandole.cluster import engine
from farandole.cluster.contact import Contact, Meeting
from farandole.cluster.detect import detect
from farandole.cluster.engine import EngineSeat

SEAT = EngineSeat("3f2a", 1, 3, "node7", 0, spans_hosts=True, contact=Contact(["tcp://10.0.0.1:7000"], "aa" * 32))


@pytest.fixture(autouse=True)
def no_seat() -> Iterator[None]:
    yield
    engine.set_seat(None)


def test_a_seat_comes_before_the_ranks_of_srun(monkeypatch: pytest.MonkeyPatch) -> None:
    step = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_JOB_ID": "7"}
    for name, text in step.items():
        monkeypatch.setenv(name, text)
    assert detect().name == "srun"
    engine.set_seat(SEAT)
    found = detect()
    assert (found.name, found.worker_id, found.size, found.host) == ("notebook engine", 1, 3, "node7")
    assert found.has_controller
    assert not found.launched
    assert found.share(None, Meeting("", 1.0)) == SEAT.contact
    assert detect(step).name == "srun"  # who asks of variables is told of these
    with engine.as_task():
        assert (detect().name, detect().size) == ("single process", 1)
        assert engine.occupied() is None
    assert engine.occupied() == SEAT
    engine.set_seat(None)
    assert detect().name == "srun"


def test_nothing_is_in_the_environment_and_children_have_no_seat() -> None:
    before = dict(os.environ)
    engine.set_seat(SEAT)
    assert dict(os.environ) == before
    pid = os.fork()
    if not pid:
        os._exit(engine.occupied() is not None or engine.environment() is not None)
    assert os.waitpid(pid, 0)[1] == 0


def test_ranks_of_a_job_differ_in_their_identity() -> None:
    engine.set_seat(SEAT)
    one = detect().identity
    engine.set_seat(EngineSeat("3f2a", 2, 3, "node7", 1, spans_hosts=True, contact=SEAT.contact))
    assert detect().identity != one
