"""Engines as workers, with a client of IPython Parallel that is played: which of them are interrupted, and when."""

from __future__ import annotations

import logging
import math
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from farandole.cluster.contact import Contact
from farandole.control.agent_messages import WorkerSpec
from farandole.control.keys import new_secret
from farandole.control.search_messages import PoolHello
from farandole.launch.providers.fleet import MOST_EARLY, Fleet, FleetWorker, KillProcess
from farandole.launch.providers.provider import words_of
from farandole.notebook.engine_provider import COME_S, EngineProvider
from farandole.notebook.guard import EngineReport
from farandole.search.engine_worker import BEGUN
from farandole.version import __version__

HERE = socket.gethostname()


class Task:
    """A task that was sent to an engine."""

    def __init__(self, engine: int) -> None:
        self.engine, self.is_done = engine, False
        self.metadata: dict[str, Any] = {"data": {}, "completed": None, "status": "ok"}
        self.error: BaseException | None = None
        self._told: list[Callable[[object], None]] = []

    def begin(self) -> None:
        self.metadata["data"][BEGUN] = True

    def done(self) -> bool:
        return self.is_done

    def exception(self) -> BaseException | None:
        return self.error

    def add_done_callback(self, told: Callable[[object], None]) -> None:
        self._told.append(told)

    def end(self) -> None:
        self.is_done = True
        for told in self._told:
            told(self)


class View:
    """One engine of a client."""

    def __init__(self, client: Client, engine: int) -> None:
        self._client, self._engine = client, engine

    def apply_async(self, *_: object) -> Task:
        self._client.tasks.append(Task(self._engine))
        return self._client.tasks[-1]


class Client:
    """A client of ``size`` engines; what it has sent to each is ``signals`` and ``aborted``."""

    curve_serverkey = None

    def __init__(self, size: int) -> None:
        self.ids = list(range(size))
        self.dead: set[int] = set()  # of which nobody has heard yet
        self.tasks: list[Task] = []
        self.signals: list[tuple[int, int]] = []
        self.aborted: list[int] = []

    def __getitem__(self, engine: int) -> View:
        self._check(engine)
        return View(self, engine)

    def send_signal(self, number: int, targets: list[int], block: bool) -> None:
        assert not block
        for engine in targets:
            self._check(engine)
            self.signals.append((engine, number))
            for task in self.tasks:
                if task.engine == engine:
                    task.end()

    def abort(self, task: Task, targets: list[int], block: bool) -> None:
        assert not block
        assert targets == [task.engine]
        self._check(task.engine)
        self.aborted.append(task.engine)

    def _check(self, engine: int) -> None:
        if engine in self.dead:
            self.ids.remove(engine)
            self.dead.remove(engine)
        if engine not in self.ids:
            raise IndexError(f"No such engine: {engine}")


class Engines:
    """A provider of engines, and its fleet, which is carried out at once."""

    def __init__(self, client: Client) -> None:
        engines = {number: EngineReport(HERE, 100 + number, "", "", 1, 0) for number in client.ids}
        self.provider = EngineProvider(client, engines)
        self.fleet = Fleet(self.provider.slots, self.provider.heed_s)
        self.exits: list[FleetWorker] = []

    def open(self) -> None:
        self.provider.open(Contact([], new_secret()), lambda *_: True)
        self.turn()

    def turn(self, now: float = 0.0) -> None:
        """Handle events until there are none."""
        self.fleet.tick(now)
        while True:
            for order in self.fleet.take_orders():
                if isinstance(order, KillProcess):
                    self.provider.kill(*order)
                else:
                    self.provider.start(order.host, [WorkerSpec(each, [], {}) for each in order.worker_ids])
            if not (events := self.provider.events(now, self.provider.fds if self.rings else ())):
                return
            self.exits += [worker for event in events for worker in self.fleet.on(event)]

    @property
    def rings(self) -> bool:
        return bool(select.select(list(self.provider.fds), [], [], 0)[0])

    def connect(self, worker_id: int) -> FleetWorker:
        worker = self.fleet.connect(worker_id, b"pool-%d" % worker_id, 100 + worker_id)
        assert worker is not None
        hello = PoolHello(HERE, 100 + worker_id, __version__, worker_id)
        assert self.provider.events(0.0, mail=[(worker.identity, hello)]) == []
        return worker

    def end(self) -> None:
        """End the search, which is killed."""
        for worker in self.fleet:
            self.fleet.kill(worker, time.monotonic())
        for order in self.fleet.take_orders():
            assert isinstance(order, KillProcess)
            self.provider.kill(*order)


@pytest.fixture
def client() -> Client:
    return Client(3)


@pytest.fixture
def engines(client: Client) -> Iterator[Engines]:
    engines = Engines(client)
    with engines.provider:
        yield engines


def warned(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)


def test_the_end_of_a_search_interrupts_its_own_tasks_alone(engines: Engines, client: Client) -> None:
    engines.open()
    engines.connect(0)  # its task has not published yet that it has begun
    client.tasks[1].begin()  # its worker has not connected yet
    engines.end()
    assert client.signals == [(0, signal.SIGINT), (1, signal.SIGINT)]
    begun_s = time.monotonic()
    engines.provider.close()
    assert time.monotonic() < begun_s + 2.0, "it waited for a cell"
    assert client.signals[2:] == []
    assert client.aborted == [2]


def test_a_task_that_is_sent_again_waits_as_the_first(engines: Engines, client: Client) -> None:
    engines.open()
    engines.connect(0)
    client.tasks[0].end()
    engines.turn()
    assert [task.engine for task in client.tasks] == [0, 1, 2, 0]
    [gone] = engines.exits
    assert (gone.worker_id, gone.pid, gone.exited and words_of(gone.exited)) == (0, 100, "has left engine 0: it ended")
    engines.end()
    assert client.signals == []
    assert sorted(client.aborted) == [0, 1, 2]


def test_engines_that_do_not_come_are_named_once(
    engines: Engines, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    engines.open()
    engines.connect(1)
    due_s = engines.provider.deadline_s
    assert due_s <= time.monotonic() + COME_S
    for _ in range(2):
        engines.turn(time.monotonic() + COME_S)
    assert warned(caplog).count("have not joined the search") == 1
    assert "engines [0, 2] have not joined the search" in warned(caplog)
    assert engines.provider.deadline_s > due_s


def test_an_engine_that_has_left_its_trial_is_not_killed(
    engines: Engines, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "send_signal", lambda number, **told: client.signals.append((*told["targets"], number)))
    engines.open()
    workers = [engines.connect(worker_id) for worker_id in range(2)]
    for worker in workers:
        engines.fleet.kill(worker, 5.0)
    assert engines.fleet.deadline_s == 5.0 + engines.provider.heed_s
    engines.fleet.spare(workers[0])
    engines.turn(5.0 + engines.provider.heed_s)
    assert client.signals == [(0, signal.SIGINT), (1, signal.SIGINT), (1, signal.SIGKILL)]
    assert engines.fleet.deadline_s == math.inf
    for task in client.tasks:
        task.end()


def test_an_engine_that_has_just_died_ends_no_search(engines: Engines, client: Client) -> None:
    client.dead = {1}
    engines.open()
    assert engines.fleet.size == 2
    assert [each.exited and words_of(each.exited) for each in engines.exits] == [
        "is lost with its engine 1, which has died"
    ]
    engines.turn()
    assert len(engines.exits) == 1
    for worker_id in (0, 2):
        engines.connect(worker_id)
    client.dead = {0, 2}
    engines.end()
    assert (client.signals, client.ids) == ([], [])
    for task in client.tasks:
        task.end()
    engines.turn()
    assert (engines.fleet.slots, list(engines.fleet)) == ({}, [])
    assert not engines.fleet.may_grow
    assert engines.fleet.given_up is None


def test_tasks_that_end_before_they_connect_end_the_search(engines: Engines, client: Client) -> None:
    engines.open()
    while engines.fleet.given_up is None:
        assert len(client.tasks) < 20
        client.tasks[-1].error = RuntimeError("no module")
        client.tasks[-1].end()
        engines.turn()
    assert len(client.tasks) == 3 + MOST_EARLY + 1
    assert engines.provider.explain(engines.fleet.given_up) == ", in engine 2, by RuntimeError: no module"
