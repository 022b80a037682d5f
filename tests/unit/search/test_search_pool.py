"""The pool of engines, with a client of IPython Parallel that is played: which of them are interrupted, and when."""

from __future__ import annotations

import logging
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from farandole.cluster.contact import Contact
from farandole.control.keys import new_secret
from farandole.notebook.guard import EngineReport
from farandole.notebook.search_pool import COME_S, HEED_S, NotebookPool
from farandole.search.engine_worker import BEGUN

HERE = socket.gethostname()


class Task:
    """A task that was sent to an engine."""

    def __init__(self, engine: int) -> None:
        self.engine, self.is_done = engine, False
        self.metadata: dict[str, Any] = {"data": {}, "completed": None, "status": "ok"}
        self._told: list[Callable[[object], None]] = []

    def done(self) -> bool:
        return self.is_done

    def exception(self) -> None: ...

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


@pytest.fixture
def client() -> Client:
    return Client(3)


@pytest.fixture
def pool(client: Client) -> Iterator[NotebookPool]:
    engines = {number: EngineReport(HERE, 100 + number, "", "", 1, 0) for number in client.ids}
    with NotebookPool(client, engines) as pool:
        yield pool


def start(pool: NotebookPool) -> None:
    pool.start(Contact([], new_secret()))


def warned(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)


def test_the_end_of_a_search_interrupts_its_own_tasks_alone(pool: NotebookPool, client: Client) -> None:
    start(pool)
    assert pool.came(HERE, 100)
    client.tasks[1].metadata["data"][BEGUN] = True  # it has not said so yet to the search
    pool.end_now()
    assert client.signals == [(0, signal.SIGINT), (1, signal.SIGINT)]
    begun_s = time.monotonic()
    pool.close()
    assert time.monotonic() < begun_s + 2.0, "it waited for a cell"
    assert client.signals[2:] == []
    assert client.aborted == [2]


def test_a_task_that_is_sent_again_waits_as_the_first(pool: NotebookPool, client: Client) -> None:
    start(pool)
    pool.came(HERE, 100)
    client.tasks[0].end()
    pool.attend(pool.fds)
    assert [task.engine for task in client.tasks] == [0, 1, 2, 0]
    pool.end_now()
    assert client.signals == []


def test_engines_that_do_not_come_are_named_once(
    pool: NotebookPool, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    start(pool)
    pool.came(HERE, 101)
    due_s = pool.deadline_s
    assert due_s <= time.monotonic() + COME_S
    for _ in range(2):
        pool.tick(time.monotonic() + COME_S)
    assert warned(caplog).count("have not come to the search") == 1
    assert "engines [0, 2] have not come" in warned(caplog)
    assert pool.deadline_s > due_s


def test_an_engine_that_has_left_its_trial_is_not_killed(
    pool: NotebookPool, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "send_signal", lambda number, **told: client.signals.append((*told["targets"], number)))
    start(pool)
    for pid in (100, 101):
        pool.came(HERE, pid)
        pool.kill(HERE, pid)
    pool.spare(HERE, 100)
    pool.tick(time.monotonic() + HEED_S)
    assert client.signals == [(0, signal.SIGINT), (1, signal.SIGINT), (1, signal.SIGKILL)]
    for task in client.tasks:
        task.end()


def test_an_engine_that_has_just_died_ends_no_search(pool: NotebookPool, client: Client) -> None:
    client.dead = {1}
    start(pool)
    assert pool.size == 2
    assert pool.attend(pool.fds) == []
    for pid in (100, 102):
        pool.came(HERE, pid)
    client.dead = {0, 2}
    pool.end_now()
    assert (client.signals, client.ids) == ([], [])
    for task in client.tasks:
        task.end()


def test_a_process_that_is_no_engine_of_the_search_is_told(
    pool: NotebookPool, caplog: pytest.LogCaptureFixture
) -> None:
    start(pool)
    assert not pool.came("elsewhere", 100)
    assert f"process 100 on elsewhere is none of the engines that the search has asked: 100 on {HERE}" in warned(caplog)
