"""The lead of a lane: which thread receives, who sleeps, and who is woken."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue

import pytest

from farandole.errors import AbortError
from farandole.runtime.lanes.failure import Failure
from farandole.runtime.lanes.lead import Lead

LIMIT_S = 30.0
OVER = Failure(AbortError, "over")


class Lane:
    """Names that come through a queue, and those that have come; "boom" raises, and "" is an interrupt."""

    def __init__(self) -> None:
        self.names: SimpleQueue[str] = SimpleQueue()
        self.come: dict[str, int] = {}  # by name: the thread that received it
        self.told: SimpleQueue[str] = SimpleQueue()
        self.failed: list[Failure] = []
        self.receiving = threading.Semaphore(0)
        self.lead = Lead(self.receive, lambda: self.names.put(""), self.failed.append)

    def receive(self, limit_s: float | None) -> None:
        self.receiving.release()
        name = self.names.get(timeout=LIMIT_S if limit_s is None else limit_s)
        if name == "boom":
            raise KeyboardInterrupt
        with self.lead.lock:
            self.come[name] = threading.get_ident()
            self.lead.unattended -= name.startswith("unattended")
            if self.lead.asleep:
                self.lead.wake()
        self.told.put(name)

    def awaits(self, name: str) -> Callable[[], bool]:
        return lambda: name in self.come or bool(self.failed)

    def drive_asleep(self, name: str, threads: ThreadPoolExecutor) -> Future[None]:
        """Wait for ``name`` in another thread, which sleeps when this returns, because another one leads."""
        looks = threading.Semaphore(0)
        enough = self.awaits(name)

        def look() -> bool:
            looks.release()
            return enough()

        driven = threads.submit(self.lead.drive, look)
        assert looks.acquire(timeout=LIMIT_S)
        assert looks.acquire(timeout=LIMIT_S)  # with the lock, which it has until it sleeps
        with self.lead.lock:
            assert self.lead.asleep == 1
        return driven


def test_a_thread_that_waits_receives_what_it_waits_for() -> None:
    lane = Lane()
    lane.names.put("x")
    lane.lead.drive(lane.awaits("x"))
    assert lane.come == {"x": threading.get_ident()}
    lane.lead.drive(lane.awaits("x"))  # nothing to do: it would wait for a name in vain


def test_one_leads_and_wakes_the_others_which_lead_in_turn() -> None:
    lane = Lane()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(lane.lead.drive, lane.awaits("x"))
        assert lane.receiving.acquire(timeout=LIMIT_S)
        second = lane.drive_asleep("y", threads)
        lane.names.put("x")
        first.result(LIMIT_S)
        lane.names.put("y")
        second.result(LIMIT_S)
    assert lane.come["x"] != lane.come["y"]


def test_a_leader_that_is_interrupted_gives_up_the_lead() -> None:
    lane = Lane()
    lane.names.put("boom")
    with pytest.raises(KeyboardInterrupt):
        lane.lead.drive(lane.awaits("x"))
    with ThreadPoolExecutor(1) as threads:
        lane.names.put("x")
        threads.submit(lane.lead.drive, lane.awaits("x")).result(LIMIT_S)
    assert lane.lead.await_exit(0.0)


def test_an_end_wakes_the_leader_and_those_that_sleep() -> None:
    lane = Lane()
    with ThreadPoolExecutor(2) as threads:
        leads = threads.submit(lane.lead.drive, lane.awaits("x"))
        assert lane.receiving.acquire(timeout=LIMIT_S)
        waits = [leads, lane.drive_asleep("y", threads)]
        lane.lead.end(OVER)
        lane.lead.end(Failure(AbortError, "again"))
        for each in waits:
            each.result(LIMIT_S)
    assert set(lane.failed) == {OVER}
    assert lane.lead.ended is OVER
    assert lane.lead.await_exit(LIMIT_S)


def test_a_background_thread_leads_while_something_is_unattended() -> None:
    lane = Lane()
    for name in ("unattended 1", "unattended 2"):
        with lane.lead.lock:
            lane.lead.unattended += 1
            lane.lead.wake_background()
        lane.names.put(name)
        assert lane.told.get(timeout=LIMIT_S) == name
    (background,) = set(lane.come.values())
    assert background != threading.get_ident()
    lane.lead.end(OVER)
    lane.lead.close()
    assert background not in {each.ident for each in threading.enumerate()}


def test_progress_leaves_the_lead_to_another() -> None:
    lane = Lane()

    class Pending:
        finished = False

    with ThreadPoolExecutor(1) as threads:
        led = threads.submit(lane.lead.drive, lane.awaits("x"))
        assert lane.receiving.acquire(timeout=LIMIT_S)
        lane.lead.progress(Pending(), LIMIT_S)  # returns at once
        lane.names.put("x")
        led.result(LIMIT_S)
    assert len(lane.come) == 1
