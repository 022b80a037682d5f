"""What a controller says to the members of a generation that another one has formed."""

from __future__ import annotations

from typing import Any

import pytest

from farandole.control.exits import GenerationEnded
from farandole.control.messages import (
    Abort,
    Blocked,
    ChangeDue,
    ControllerLost,
    Entry,
    Hello,
    Leave,
    Progress,
    Submit,
    Withdraw,
)
from farandole.elastic.membership.formation import ElasticFormation
from farandole.elastic.membership.job_events import Answered, WorkerHung, WorkerLeft
from farandole.elastic.membership.journal import Recorded, read
from farandole.elastic.membership.policy import Policy
from farandole.runtime.controller.inherited_generation import REASON, InheritedGeneration
from farandole.runtime.coordination.stall import Limits

LIMITS = Limits(1.0, 2.0, answering_s=4.0)
SUBMIT = Submit(7, Entry(0, "loss", 3))


class Bench:
    """Generation 7 of three places, and what was sent."""

    def __init__(self, over: str = "") -> None:
        self.sent: list[tuple[bytes, Any]] = []
        self.lines: list[str] = []
        self.now = 0.0
        membership = Recorded(Policy(), self.lines.append)
        self.formation = ElasticFormation(membership, lambda *_: ("shm", ""), lambda: 0.0)
        found = 7, (0, 1, 4), over
        self.inherited = InheritedGeneration(
            lambda who, what: self.sent.append((who, what)), self.formation, lambda: self.now, *found, LIMITS
        )

    def says(self, identity: bytes, message: Any) -> list[tuple[bytes, Any]]:
        """What is sent because of it."""
        self.sent.clear()
        self.inherited.takes(identity, message)
        return list(self.sent)

    def heard(self) -> list[Any]:
        """What the membership was told."""
        self.formation.decide(0.0)
        return [heard.event for turn in read(self.lines)[1] for heard in turn.heard]


def hello(worker_id: int) -> Hello:
    return Hello("w", worker_id, 0, "a", worker_id, "1", ["shm"], 2, 40, [])


def test_who_stays_is_told_to_come_when_its_state_allows_it() -> None:
    bench = Bench()
    assert bench.says(b"wc", ControllerLost(7, 0)) == [(b"wc", ChangeDue(7, REASON))]
    assert bench.says(b"xc", Leave(7, worker_id=1)) == []
    assert bench.says(b"wc", hello(0)) == []  # as it was told
    assert not bench.inherited.takes(b"wc", hello(0))  # it is for the controller as well


@pytest.mark.parametrize(
    "message",
    [
        ControllerLost(7, 1, wait=True),
        SUBMIT,
        Leave(7, "it broke"),
        Blocked(7, 0, "o", 1, "", 9.0),
        hello(1),
        Withdraw(1),
    ],
    ids=lambda message: type(message).__name__,
)
def test_who_needs_a_controller_ends_it_for_all(message: Any) -> None:
    bench = Bench()
    bench.says(b"wc", ControllerLost(7, 0))
    sent = bench.says(b"xo", message)
    assert sent[0][0] == b"wc"
    assert isinstance(sent[0][1], Abort)
    assert bench.says(b"yc", ControllerLost(7, 4)) == [(b"yc", sent[0][1])]  # whoever comes later, too


def test_the_membership_is_told_who_has_left_and_who_only_takes_long() -> None:
    bench = Bench()
    bench.says(b"wc", ControllerLost(7, 0))
    bench.says(b"wu", Leave(7, worker_id=0))
    bench.says(b"xu", Leave(7, "it broke", ending=True, worker_id=4))  # it never said that it stays
    bench.says(b"yc", ControllerLost(7, 1))
    bench.says(b"yu", Progress(7, "", "", 0.5))
    assert bench.heard() == [WorkerLeft(0), GenerationEnded(7, "it broke"), WorkerLeft(4, ending=True), Answered(1)]


def test_who_has_left_before_it_could_say_that_it_stays_may_come_again() -> None:
    bench = Bench()
    bench.says(b"wu", Leave(7, worker_id=0))
    bench.says(b"zc", hello(0))
    assert bench.heard() == [WorkerLeft(0)]


def test_that_all_hang_is_noticed_though_the_controller_is_another_one() -> None:
    bench = Bench()
    for uid, worker_id in ((b"w", 0), (b"x", 1)):
        bench.says(uid + b"c", ControllerLost(7, worker_id))
        bench.says(uid + b"u", Progress(7, "", "", 5.0))
    while not bench.heard() and bench.inherited.deadline_s is not None:
        bench.now = bench.inherited.deadline_s
        bench.says(b"wu", Progress(7, "", "", 5.0))  # its process answers, and does nothing
        bench.inherited.tick(bench.now)
    assert bench.now == LIMITS.answering_s
    assert [(type(event), event.worker_id) for event in bench.heard()] == [
        (WorkerHung, 0),
        (WorkerHung, 1),
        (WorkerHung, 4),
    ]


def test_an_answer_goes_to_the_socket_that_listens() -> None:
    assert {who for who, _ in Bench().says(b"wo", ControllerLost(7, 0, wait=True))} == {b"wc"}


def test_one_that_had_ended_before_stays_ended() -> None:
    bench = Bench(over="worker 1 was killed")
    assert bench.says(b"wc", ControllerLost(7, 0)) == [(b"wc", Abort(7, "worker 1 was killed"))]


def test_who_comes_from_another_generation_is_turned_away() -> None:
    bench = Bench()
    [(who, answer)] = bench.says(b"wc", ControllerLost(6, 0))
    assert (who, answer.generation) == (b"wc", 6)
    bench.inherited.replace()
    [(who, answer)] = bench.says(b"wc", ControllerLost(7, 0))
    assert isinstance(answer, Abort)
    assert not bench.inherited.takes(b"wu", SUBMIT)
