"""Watching a job: its metrics, its membership, and orders that all ranks obey after the same step."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from farandole import events
from farandole.cluster.environment import CONTROLLER, KEY, OWN
from farandole.control.addresses import free_port
from farandole.control.channel import Dealer
from farandole.control.keys import JobKeys, new_secret
from farandole.control.message import Message
from farandole.control.watch_messages import (
    WATCHER,
    ActAt,
    Acted,
    Announced,
    Members,
    Metrics,
    Missed,
    OrderNews,
    Prepare,
    Prepared,
    RankMetrics,
    Seen,
    SendMetrics,
    WatchJob,
    WatchOrder,
)
from farandole.errors import ControlError, StartError
from farandole.monitor.folder import PointRecord, read_records
from farandole.runtime.controller.watching import Watching
from farandole.runtime.session import step_gate
from farandole.runtime.session.metric_sender import MOST_POINTS, SHORTEST_S, MetricSender
from farandole.runtime.session.step_gate import MOST_ALONE, StepGate
from farandole.runtime.session.training import Training
from tests.support.launching import Launch
from tests.support.patience import PATIENCE_S

DEADLINE_S = PATIENCE_S


class Watched:
    """``Watching`` with lists for what it sends."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, Message]] = []
        self.told: list[Message] = []
        self.gone: set[bytes] = set()
        self.watching = Watching(self.send, lambda _, message: self.told.append(message), lambda: 5.0)

    def send(self, identity: bytes, message: Message) -> bool:
        self.sent.append((identity, message))
        return identity not in self.gone


def test_nobody_is_asked_for_metrics_until_somebody_watches_and_again_when_nobody_does() -> None:
    job = Watched()
    job.watching.formed(1, ["a", "b"])
    assert (job.told, job.sent) == ([], [])
    job.watching.handle_viewer_message(b"w", WatchJob(0.5, 10**6))
    assert job.told == [SendMetrics(1, 0.5)]
    assert job.sent == [(b"w", Members(5.0, 1, ["a", "b"]))]
    job.watching.formed(2, ["a"])
    assert job.told[-1] == SendMetrics(2, 0.5)
    job.gone.add(b"w")
    job.watching.said("hello")
    assert job.told[-1] == SendMetrics(2, 0.0)
    assert not job.watching.is_watched


def test_a_watcher_that_is_expected_hears_what_was_said_before_it_came() -> None:
    job = Watched()
    job.watching.expect()
    job.watching.said("a")
    job.watching.formed(1, ["h"])
    assert [type(message) for message in job.told] == [SendMetrics]
    job.watching.handle_viewer_message(b"w", WatchJob(0.5, 10**6))
    assert [message for _, message in job.sent] == [Announced(5.0, "a"), Members(5.0, 1, ["h"])]
    late = Watched()
    late.watching.expect()
    while late.watching.is_watched:
        late.watching.said("x" * 2**20)
    late.watching.handle_viewer_message(b"w", WatchJob(0.5, 10**6))
    assert late.sent == []


def test_a_watcher_that_sees_nothing_misses_messages_and_is_told_how_many() -> None:
    job = Watched()
    job.watching.handle_viewer_message(b"w", WatchJob(0.5, 1000))
    for _ in range(50):
        job.watching.said("x" * 100)
    got = len(job.sent)
    assert 5 < got < 10
    job.watching.handle_viewer_message(b"w", Seen(900))
    job.watching.said("again")
    assert [message for _, message in job.sent[got:]] == [Missed(50 - got), Announced(5.0, "again")]
    job.watching.handle_viewer_message(b"stranger", Seen(5))
    job.watching.handle_viewer_message(b"stranger", WatchOrder(1, "end"))
    assert len(job.sent) == got + 2


def test_a_burst_of_metrics_is_one_message_and_what_is_too_much_is_counted() -> None:
    sent: list[Any] = []
    sender = MetricSender(sent.append, 3)
    try:
        for step in range(5):
            events.emit(events.Metric(0.0, 0, step, 0, {"early": 1.0}))
        sender.every(SHORTEST_S / 100)  # no watcher makes it faster than it may be
        began_s = time.monotonic()
        for step in range(MOST_POINTS + 7):
            events.emit(events.Metric(time.monotonic(), 0, step, 0, {"loss": float(step)}))
        emitted_s = time.monotonic() - began_s
    finally:
        sender.close()
    sender.close()
    sender.every(1.0)
    points = [point for message in sent for point in message.points]
    assert [point.step for point in points[:MOST_POINTS]] == list(range(MOST_POINTS))
    assert len(points) + sum(message.dropped for message in sent) == MOST_POINTS + 7
    assert abs(points[0].time_s - time.time()) < 60
    assert len(sent) <= 2 + emitted_s / SHORTEST_S
    assert not events.listeners
    assert all(isinstance(message, Metrics) and message.generation == 3 for message in sent)


def test_what_is_left_is_sent_now_and_once() -> None:
    sent: list[Any] = []
    sender = MetricSender(sent.append, 3)
    sender.flush()
    try:
        sender.every(3600.0)
        events.emit(events.Metric(0.0, 0, 1, 0, {"loss": 1.0}))
        sender.flush()
        sender.flush()
        assert [[point.step for point in message.points] for message in sent] == [[1]]
    finally:
        sender.close()
    assert len(sent) == 1


FAILS = """
import numpy as np
import farandole.numpy as hvd
from farandole import events
hvd.init()
while not hvd.allreduce(np.array([int(bool(events.listeners))]), op=hvd.Min, name="is watched")[0]:
    pass
hvd.log(loss=float(hvd.rank()))
try:
    hvd.barrier()  # all have come so far
    if hvd.rank() == 1:
        raise ValueError("the loss is no number")
    hvd.allreduce(np.ones(1), name="never")
finally:
    hvd.log(loss=float("nan"))
"""


def test_what_ranks_log_just_before_an_error_is_recorded(launch: Launch, tmp_path: Path) -> None:
    options = ["--record", str(tmp_path / "run"), "--on-failure", "continue"]  # else SIGTERM may end rank 0 before
    assert launch(2, FAILS, options=options).code
    points = [record for record in read_records(tmp_path / "run") if isinstance(record, PointRecord)]
    losses = {0: "", 1: ""}
    for record in points:
        losses[record.rank] += "".join(f"{point.values['loss']} " for point in record.points if "loss" in point.values)
    assert losses == {0: "0.0 nan ", 1: "1.0 nan "}


SCRIPT = """
import sys, time
import numpy as np
import farandole.numpy as hvd
hvd.init()
gradients = hvd.DistributedGradients([np.zeros(3, np.float32)])
step = 0
try:
    for step in range(1, 10**7):
        gradients([np.ones(3, np.float32)])
        if step % 20 == 0:
            hvd.log(loss=1.0 / step, wrong="no number")
        if hvd.checkpoint_due():
            print("saves after", step, flush=True)
        time.sleep(0.001 if hvd.rank() else 0)
finally:
    print("ends in step", step, flush=True)
"""


@contextmanager
def training(folder: Path, size: int, script: str = SCRIPT) -> Iterator[tuple[list[subprocess.Popen[str]], Dealer]]:
    """A job that nobody launches, and somebody who watches it."""
    (folder / "train.py").write_text(script)
    told = {CONTROLLER: f"tcp://127.0.0.1:{free_port()}", KEY: new_secret(), OWN.size: str(size)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "train.py"],
            cwd=folder,
            env={**os.environ, **told, OWN.rank: str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        with Dealer(told[CONTROLLER], WATCHER + b"test", JobKeys.from_secret(told[KEY]), DEADLINE_S) as dealer:
            dealer.send(WatchJob(0.2, 2**24))
            yield ranks, dealer
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


def until(dealer: Dealer, enough: Callable[[Any], bool]) -> list[Any]:
    """Messages up to the first that is ``enough``."""
    seen: list[Any] = []
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        try:
            message = dealer.recv(1.0)
        except ControlError as error:
            raise AssertionError(f"{error}; last came {seen[-5:]}") from error
        if message is not None:
            seen.append(message)
            if enough(message):
                return seen
    raise AssertionError(f"waited in vain; last came {seen[-3:]}")


def outcome(dealer: Dealer, number: int, verb: str) -> tuple[OrderNews, list[Any]]:
    """News of an order, once it is obeyed or refused; and all that came before."""
    dealer.send(WatchOrder(number, verb))
    seen = until(dealer, lambda m: isinstance(m, OrderNews) and m.number == number and m.state != "taken")
    return seen[-1], seen


def test_a_watcher_sees_the_numbers_of_all_ranks_and_stops_them_after_the_same_step(tmp_path: Path) -> None:
    with training(tmp_path, 2) as (ranks, dealer):
        assert isinstance(until(dealer, lambda m: isinstance(m, Members))[-1], Members)
        names: dict[int, set[str]] = {0: set(), 1: set()}

        def note(message: Any) -> bool:
            if isinstance(message, RankMetrics):
                names[message.rank].update(name for point in message.points for name in point.values)
            return all({"loss", "step_s", "wait_s"} <= each for each in names.values())

        until(dealer, note)
        assert names[0] == {"loss", "step_s", "wait_s"}

        news, _ = outcome(dealer, 1, "resume")
        assert (news.state, news.text) == ("refused", "nothing is paused")
        paused, _ = outcome(dealer, 2, "pause")
        assert paused.state == "acted"
        assert paused.step > 0
        news, _ = outcome(dealer, 3, "checkpoint")
        assert news.state == "refused"
        resumed, _ = outcome(dealer, 4, "resume")
        assert resumed.step == paused.step
        saved, _ = outcome(dealer, 5, "checkpoint")
        assert saved.step > paused.step
        dealer.send(WatchOrder(6, "stop"))  # the controller ends with the last rank: what it says then may be lost
        said = [process.communicate(timeout=DEADLINE_S)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], said
    [last] = {text.split("ends in step ")[1].split()[0] for text in said}
    assert int(last) > saved.step
    for text in said:
        assert f"saves after {saved.step}\n" in text, "checkpoint_due() is asked after the step, on every rank"
        assert text.count("hvd.log(wrong=...) is left out, as it is no number") == 1


UNEVEN = """
import numpy as np
import farandole.numpy as hvd
hvd.init()
some = hvd.ProcessSet([1])
hvd.add_process_set(some)
gradients = hvd.DistributedGradients([np.zeros(3, np.float32)])
if hvd.rank() == 1:
    alone = hvd.DistributedGradients([np.zeros(3, np.float32)], process_set=some)
    for _ in range(5):
        alone([np.ones(3, np.float32)])
for _ in range(4 - 3 * hvd.rank()):
    gradients([np.ones(3, np.float32)])
hvd.join()
open(f"joined-{hvd.rank()}", "w").close()
step = 0
try:
    for step in range(1, 10**7):
        gradients([np.ones(3, np.float32)])
finally:
    print("ends in step", step, flush=True)
"""


def test_ranks_that_have_made_unequally_many_steps_pause_after_the_same_one(tmp_path: Path) -> None:
    with training(tmp_path, 2, UNEVEN) as (ranks, dealer):
        until(dealer, lambda _: all((tmp_path / f"joined-{rank}").exists() for rank in range(2)))
        for number in (1, 3):
            assert outcome(dealer, number, "pause")[0].state == "acted"
            assert outcome(dealer, number + 1, "resume")[0].state == "acted"
        dealer.send(WatchOrder(5, "stop"))
        said = [process.communicate(timeout=DEADLINE_S)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], said
    assert len({text.split("ends in step ")[1] for text in said}) == 1


def test_a_rank_that_has_promised_to_wait_does_so_until_it_is_told_or_nobody_is_there_to_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_gate, "SLICE_S", 0.001)
    said: list[Message] = []
    turns: list[int] = []

    def gate_turn() -> None:
        turns.append(len(turns))
        if len(turns) == 50:  # however long it takes
            gate.watch(ActAt(1, 7, "pause", 1))
        if len(turns) == 100:
            gate.forget()

    gate = StepGate(said.append, 1, Training(), gate_turn)
    gate.watch(Prepare(1, 7))
    gate.passes()
    assert said == [Prepared(1, 7, 0), Acted(1, 7, 0)]
    assert len(turns) == 100
    gate.passes()
    assert len(turns) == 100, "the order is forgotten"


def test_a_rank_that_dies_while_all_pause_ends_the_pause_and_nobody_hangs(tmp_path: Path) -> None:
    with training(tmp_path, 2) as (ranks, dealer):
        assert outcome(dealer, 1, "pause")[0].state == "acted"
        ranks[1].kill()
        said = ranks[0].communicate(timeout=DEADLINE_S)[0]
    assert ranks[0].returncode == 1
    assert "AbortError" in said


def test_an_order_to_a_script_without_steps_waits_and_disturbs_nothing(tmp_path: Path) -> None:
    script = """
import sys
import farandole.numpy as hvd
hvd.init()
while not hvd.broadcast_object(__import__("os").path.exists("end"), 0): pass
"""
    with training(tmp_path, 2, script) as (ranks, dealer):
        dealer.send(WatchOrder(1, "pause"))
        until(dealer, lambda m: isinstance(m, OrderNews) and m.state == "taken")
        (tmp_path / "end").touch()
        assert [process.wait(DEADLINE_S) for process in ranks] == [0, 0]


@pytest.mark.parametrize("watch", [False, True])
def test_an_optimizer_step_does_not_end_when_its_session_has(watch: bool) -> None:
    script = """
import numpy as np
import farandole.numpy as hvd
from farandole.runtime.session.init import end_step
end_step(hvd.global_process_set)
hvd.init()
hvd.log(loss=1.0)
end_step(hvd.global_process_set)
hvd.shutdown()
end_step(hvd.global_process_set)
"""
    if watch:
        script = "from farandole import events; events.listen(print)\n" + script
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert ("loss" in done.stdout) is watch


def test_a_newcomer_that_trains_alone_is_told_that_its_script_cannot_grow() -> None:
    """It trained so to the end of the job, whose other workers it would never join, and nobody heard of it."""
    gate = StepGate(lambda _: None, 0, Training())
    for _ in range(MOST_ALONE):
        gate.passes()
    with pytest.raises(StartError, match=r"50 steps alone: the script trains outside of @hvd\.elastic\.run"):
        gate.passes()
