"""The timeline of a job: when it begins and ends on every rank, who is waited for, and what a crash leaves."""

from __future__ import annotations

import logging
import os
import re
import signal
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from farandole.control import messages
from farandole.control.exits import WorkerExited
from farandole.runtime.lanes.reentry import Reentry
from farandole.runtime.session.init import current, init, shutdown
from farandole.runtime.session.timeline import Recorder, create
from farandole.settings import Settings
from farandole.testing.rank import RankContext
from tests.unit.runtime.test_controller import Job
from workbench.jobs import NumpyCalls, run_job


def test_rank_0_is_told_when_all_who_are_there_have_set_their_timelines() -> None:
    job = Job(3)
    job.form()
    job.say("y", messages.SetTimeline(1, 1, "/t.json"))
    assert job.take() == []
    for number, path in ((1, "/t.json"), (2, "")):
        wish = messages.SetTimeline(1, number, path)
        job.say("x", wish)
        assert job.take() == [("yc", wish), ("zc", wish)]
        job.say("y", messages.TimelineSet(1, number))
        job.say("y", messages.TimelineSet(1, number - 1))
        assert job.take() == []
        job.say("z", messages.TimelineSet(1, number))
        assert job.take() == [("xc", messages.TimelineSet(1, number))]


def test_who_has_left_or_leaves_need_not_set_its_timeline() -> None:
    job = Job(3)
    job.form()
    job.say("y", messages.Leave(1))
    job.say("x", messages.SetTimeline(1, 1, ""))
    assert job.take() == [("zc", messages.SetTimeline(1, 1, ""))]
    job.say("z", messages.Leave(1))
    assert job.take() == [("xc", messages.TimelineSet(1, 1))]
    job.say("x", messages.SetTimeline(1, 2, ""))
    assert job.take() == [("xc", messages.TimelineSet(1, 2))]


def test_who_dies_ends_the_wait_for_timelines_too() -> None:
    job = Job(2)
    job.form()
    job.say("x", messages.SetTimeline(1, 1, ""))
    job.take()
    job.controller.worker_exited(WorkerExited(1, -9, "rank 1 on a was killed by SIGKILL", pid=101))
    assert {to for to, _ in job.only(messages.Abort)} == {"xc", "xo"}


def test_nothing_is_recorded_after_the_end_of_a_session(tmp_path: Path) -> None:
    path = str(tmp_path / "trace.json")
    recorder = Recorder(3, "a", 0.0, Settings(), Reentry())
    create(path)
    recorder.record(path, mark_cycles=False)
    recorder.close()
    written = Path(path).read_text()
    assert "rank 3 on a" in written
    recorder.record(path, mark_cycles=False)
    recorder.close()
    assert Path(path).read_text() == written


def test_a_file_that_cannot_be_written_is_no_error_of_the_rank(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(3, "a", 0.0, Settings(), Reentry())
    with caplog.at_level(logging.WARNING, "farandole"):
        recorder.record("/nonexistent/trace.json", mark_cycles=False)
    recorder.close()
    assert "rank 3 on a cannot write to the timeline /nonexistent/trace.json" in caplog.text


def _while_others_have_left(member: RankContext, path: str) -> None:
    init()
    session = current()
    session.barrier()
    if member.rank:
        shutdown()
    member.exchange(b"")
    if not member.rank:
        session.recorder.record_all(path)
        session.recorder.record_all("")
        shutdown()


def test_a_rank_that_has_shut_down_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    run_job(_while_others_have_left, 3, str(path))
    named = re.findall("rank [0-9]", path.read_text())
    assert named == ["rank 0"]


def _while_another_is_stopped(member: RankContext, path: str) -> str:
    pids = [int(pid) for pid in member.exchange(str(os.getpid()).encode())]
    init()
    session, logged = current(), ""
    session.recorder.record_all(path)
    session.barrier()
    if member.rank == 0:
        os.kill(pids[1], signal.SIGSTOP)
        handler = logging.Handler()
        said: list[str] = []
        handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("farandole").addHandler(handler)
        session.recorder.record_all("")
        logging.getLogger("farandole").removeHandler(handler)
        os.kill(pids[1], signal.SIGCONT)
        logged = "; ".join(said)
    session.barrier()
    shutdown()
    return logged


def test_a_rank_that_does_not_answer_is_waited_for_until_it_would_be_reported(tmp_path: Path) -> None:
    times = {"FARANDOLE_STALL_WARNING_S": "0.3"}
    logged, _ = run_job(_while_another_is_stopped, 2, str(tmp_path / "trace.json"), environment=times)
    assert logged.startswith("not every rank has ended its timeline within 0.3 s")


def _traced(member: RankContext, path: str) -> None:
    init()
    session, do = current(), NumpyCalls()
    session.recorder.record_all(path, mark_cycles=True)
    session.barrier()
    for i in range(50):
        pair = [do.reduction(f"{i}.pair.{j}", np.ones(9)) for j in range(2)]  # always fused; the others by chance
        handles = [do.submit(*pair), *(do.submit(do.reduction(f"{i}.{j}", np.ones(9))) for j in range(3))]
        for handle in handles:
            handle.wait()
    last, deadline = rf'"pid":{member.rank},.*"ALLREDUCE".*"allreduce\.49\.2"', time.monotonic() + 20
    while not re.search(last, Path(path).read_text()):
        assert time.monotonic() < deadline
    session.barrier()
    if member.rank == 1:
        os.kill(os.getpid(), 9)
    session.recorder.record_all("")
    os._exit(0)


def test_the_timeline_of_all_ranks_is_readable_after_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    run_job(_traced, 2, str(path), may_die=[0, 1])
    assert path.stat().st_mode & 0o777 == 0o600
    text = path.read_text()
    assert text.endswith(",\n")
    lines = msgspec.json.decode(text.rstrip(",\n") + "]")
    phases = {(line["pid"], line["name"]) for line in lines if line["ph"] in "Xbi"}
    expected = {"submit", "NEGOTIATE_ALLREDUCE", "queue", "ALLREDUCE", "reduce", "copy", "CYCLE_START"}
    assert phases >= {(rank, phase) for rank in (0, 1) for phase in expected}
    names = {line["args"]["name"] for line in lines if line["name"] == "process_name"}
    assert {name.partition(" on ")[0] for name in names} == {"rank 0", "rank 1"}
    rows = {(line["pid"], line["args"]["name"]): line["tid"] for line in lines if line["name"] == "thread_name"}
    for rank in (0, 1):  # the entries of a name lie on its row, one after the other
        mine = [line for line in lines if (line["pid"], line.get("tid")) == (rank, rows[rank, "allreduce.7.1"])][1:]
        submit, (negotiate, queue, execute) = mine[:-3], mine[-3:]  # no submit where the order overtakes its end
        assert [line["name"] for line in submit] in (["submit"], [])
        shown = [line["name"] for line in (negotiate, queue, execute)]
        assert shown == ["NEGOTIATE_ALLREDUCE", "queue", "ALLREDUCE"]
        assert {line["args"]["name"] for line in mine} == {"allreduce.7.1"}
        assert negotiate["ts"] + negotiate["dur"] <= execute["ts"] + 0.01
    assert (0, "barrier.noname") in rows
    reduced = {line["args"]["name"].partition(" and ")[0] for line in lines if line["name"] == "reduce"}
    assert any(name.startswith("allreduce.") for name in reduced)
    begins = [line["ts"] for line in lines if line["ph"] == "X"]
    assert max(begins) - min(begins) < 60e6  # one clock


def _read_along(member: RankContext, path: str) -> list[float]:
    init()
    current().barrier()  # afterwards every rank records
    do, delays, shown = NumpyCalls(), [], ("NEGOTIATE_ALLREDUCE", "ALLREDUCE", "CYCLE_START")
    for i in range(20):
        do.submit(do.reduction("loss", np.ones(1))).wait()
        done_s = time.monotonic()
        while not all(len(re.findall(f'"pid":{member.rank},.*"{s}"', Path(path).read_text())) > i for s in shown):
            assert time.monotonic() < done_s + 20
        delays.append(time.monotonic() - done_s)
    shutdown()
    return delays


@pytest.mark.parametrize("size", [1, 2])
def test_a_timeline_can_be_read_while_its_job_runs(size: int, tmp_path: Path) -> None:
    path = str(tmp_path / "trace.json")
    recorded = {"HOROVOD_TIMELINE": path, "HOROVOD_TIMELINE_MARK_CYCLES": "1"}
    for delays in run_job(_read_along, size, path, environment=recorded):
        assert min(delays) < 0.1, delays
    assert re.search(r'"name":"thread_name","tid":\d+,"args":{"name":"allreduce.loss"}', Path(path).read_text())
