"""The end of a session: what its parts see, in which order, whoever ends it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from farandole.control.messages import Leave
from farandole.errors import AbortError, MismatchError
from farandole.runtime.lanes.active_collectives import ActiveCollectives
from farandole.runtime.lanes.failure import Failure
from farandole.runtime.session.engine_pool import EnginePool
from farandole.runtime.session.metric_sender import MetricSender
from farandole.runtime.session.session_end import SessionEnd
from farandole.runtime.session.step_gate import StepGate
from farandole.runtime.session.training import training
from farandole.settings import Settings
from farandole.topology import Topology

LOST = Failure(AbortError, "rank 1 on b was killed by SIGKILL")


class Part:
    """Rank 0 of two, and what happened, in order: with "broken" once its engines were aborted for a failure."""

    def __init__(self) -> None:
        topology = Topology.of(0, ("a", "b"), 7)
        self.seen: list[tuple[Any, ...]] = []
        self.engines = EnginePool(topology, "tcp", lambda *_: [], Settings())
        link: Any = SimpleNamespace(worker_id=4, up=SimpleNamespace(send=self.send))
        gate, metrics = StepGate(self.send, 7, training), MetricSender(self.send, 7)
        self.end = SessionEnd(topology, link, ActiveCollectives(), self.engines, gate, metrics)
        self.end.waiters = [lambda failure: self.note("waiter", failure.text)]
        self.end.subscribe(lambda: self.note("subscriber"))

    def note(self, *what: Any) -> None:
        assert self.end.failure is not None
        self.seen.append((*what, "broken") if self.engines.broken.is_set() else what)

    def send(self, message: object) -> None:
        if isinstance(message, Leave):
            self.seen.append(("leave", message.reason, message.following, message.ending, message.told))


def test_the_controller_is_told_after_the_waiters_and_before_the_engines_are_aborted() -> None:
    part = Part()
    part.end.abort("its script raised ValueError", ending=True)
    text = "rank 0 on a gave up: its script raised ValueError"
    assert part.seen == [("waiter", text), ("leave", text, False, True, False), ("subscriber", "broken")]
    assert part.end.reason == text


def test_only_the_first_end_counts() -> None:
    part = Part()
    part.end.generation_over(LOST)
    seen = [("waiter", LOST.text), ("subscriber", "broken")]
    part.end.abort("again")
    part.end.tear(LOST)
    part.end.shut_down()
    assert part.seen == seen, "a controller that has ended the generation is told nothing"
    with pytest.raises(AbortError, match="killed by SIGKILL"):
        part.end.explain()


def test_an_orderly_end_breaks_no_engine() -> None:
    part = Part()
    part.end.shut_down()
    text = "shutdown() was called on rank 0 on a"
    assert part.seen == [("waiter", text), ("leave", "", False, False, False), ("subscriber",)]
    assert not part.engines.broken.is_set()


def test_a_worker_that_has_left_for_good_tells_so_once() -> None:
    part = Part()
    part.end.leave_for_good()
    part.end.shut_down()
    assert [each for each in part.seen if each[0] == "leave"] == [("leave", "", False, False, True)]
    assert part.end.has_left


@pytest.mark.parametrize("is_known", [True, False])
def test_a_collective_that_failed_here_alone_names_this_rank(is_known: bool) -> None:
    part = Part()
    failure = LOST if is_known else Failure(MismatchError, "no memory")
    part.end.tear(failure)
    reason = LOST.text if is_known else "rank 0 on a could not go on: no memory"
    assert part.seen[:2] == [("waiter", failure.text), ("leave", reason, False, False, False)]


def test_an_error_of_a_start_that_another_rank_has_caused_keeps_its_words() -> None:
    for error, text in (
        (AbortError(LOST.text), LOST.text),
        (OSError("no port"), "rank 0 on a gave up: it could not start: no port"),
    ):
        part = Part()
        part.end.give_up_start(error)
        assert part.end.reason == text
