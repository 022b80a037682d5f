"""Orders of people to a run: when they are obeyed, refused and answered. The clock is the test's."""

from __future__ import annotations

from typing import final

import pytest

from farandole.control.run_messages import ANSWER_S, RunOrder, RunReply
from farandole.launch.leases.run_orders import STOP_S, Obeyed, RunOrders

SCALE, STOP = RunOrder("scale", 3), RunOrder("stop")


@final
class Desk:
    """The orders of one controller, what was obeyed, with its tag, and who was told what."""

    def __init__(self) -> None:
        self.obeyed: list[tuple[str, bytes]] = []
        self.told: list[tuple[bytes, RunReply]] = []
        self.orders = RunOrders(self._obey, lambda identity, reply: self.told.append((identity, reply)))

    def _obey(self, order: RunOrder, tag: bytes) -> Obeyed:
        self.obeyed.append((order.verb, tag))
        return Obeyed(RunReply(True, f"{order.verb} it is"), is_written=order.verb != "stop")

    def turn(self, now: float, sure_s: float, over: str = "", *, is_read: bool = True) -> list[str]:
        """Verbs that were obeyed in this turn."""
        self.obeyed.clear()
        self.orders.turn(now, sure_s, over, is_read=is_read)
        return [verb for verb, _ in self.obeyed]


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_an_order_is_obeyed_after_a_look_that_is_later_and_answered_when_it_is_on_the_disk(desk: Desk) -> None:
    desk.orders.queue_order(b"a", SCALE, 10.0)
    assert desk.orders.has_new()
    assert not desk.orders.has_new()
    assert desk.turn(10.0, sure_s=9.9) == []
    assert desk.turn(10.1, sure_s=10.05) == ["scale"]
    assert desk.told == []
    desk.orders.written(desk.obeyed[0][1], "")
    assert desk.told == [(b"a", RunReply(True, "scale it is"))]
    assert desk.orders.deadline_s is None


def test_a_lead_that_wakes_as_another_one_leads_obeys_nothing(desk: Desk) -> None:
    for order in (SCALE, STOP):
        desk.orders.queue_order(b"a", order, 10.0)
    assert desk.turn(10.0, sure_s=7.0) == [], "it stood still from 7 on, and its thread has not looked yet"
    assert desk.turn(10.1, sure_s=7.0, over="number 2 has taken over") == []
    assert desk.told == [(b"a", RunReply(False, "number 2 has taken over"))] * 2


@pytest.mark.parametrize(
    ("sure_s", "is_read", "why"),
    [(20.0, False, "its journal cannot be read"), (9.0, True, "whether another leader has taken over")],
)
def test_an_order_that_cannot_be_obeyed_in_time_is_refused_and_never_obeyed(
    sure_s: float, is_read: bool, why: str, desk: Desk
) -> None:
    desk.orders.queue_order(b"a", SCALE, 10.0)
    assert desk.turn(10.0, sure_s, is_read=is_read) == []
    assert desk.orders.deadline_s == 10.0 + ANSWER_S
    assert desk.turn(10.0 + ANSWER_S, sure_s, is_read=is_read) == []
    [(_, reply)] = desk.told
    assert not reply.accepted
    assert why in reply.text
    assert desk.turn(30.0, sure_s=29.0) == []


def test_the_end_waits_for_no_journal_and_not_long_for_a_folder(desk: Desk) -> None:
    desk.orders.queue_order(b"a", STOP, 10.0)
    assert desk.turn(10.1, sure_s=10.05, is_read=False) == ["stop"]
    assert desk.told == [(b"a", RunReply(True, "stop it is"))]
    desk.orders.queue_order(b"b", STOP, 20.0)
    assert desk.turn(20.0, sure_s=10.05, is_read=False) == []
    assert desk.orders.deadline_s == 20.0 + STOP_S
    assert desk.turn(20.0 + STOP_S, sure_s=10.05, is_read=False) == ["stop"]


def test_whoever_gave_an_order_hears_in_time_that_it_is_not_on_the_disk_yet_and_once(desk: Desk) -> None:
    desk.orders.queue_order(b"a", SCALE, 10.0)
    assert desk.turn(10.1, sure_s=10.05) == ["scale"]
    [(_, tag)] = desk.obeyed
    assert desk.orders.deadline_s == 10.1 + ANSWER_S
    desk.turn(10.1 + ANSWER_S, sure_s=15.0)
    [(_, reply)] = desk.told
    assert reply.accepted
    assert reply.text.startswith("scale it is. Give the order again if the controller is replaced")
    assert "not on the disk after 5 s" in reply.text
    desk.orders.written(tag, "")
    assert len(desk.told) == 1


def test_orders_that_wait_when_the_run_ends_are_refused(desk: Desk) -> None:
    desk.orders.queue_order(b"a", SCALE, 10.0)
    desk.orders.close()
    assert desk.told == [(b"a", RunReply(False, "the run is over"))]


def test_who_gave_an_order_that_is_not_on_the_disk_when_the_run_ends_is_told_so(desk: Desk) -> None:
    desk.orders.queue_order(b"a", SCALE, 10.0)
    assert desk.turn(10.1, sure_s=10.05) == ["scale"]
    desk.orders.close()
    [(_, reply)] = desk.told
    assert reply.accepted
    assert "the run is over, and it is not on the disk" in reply.text
    desk.orders.written(desk.obeyed[0][1], "")
    assert len(desk.told) == 1
