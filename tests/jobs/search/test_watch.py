"""Watching and steering of a search without processes: its record, its orders, and who gets workers meanwhile."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, final

from farandole.cluster.contact import Contact
from farandole.control.addresses import own_host_only
from farandole.control.agent_messages import AGENT, WorkerSpec
from farandole.control.channel import Router
from farandole.control.keys import JobKeys, new_secret
from farandole.control.search_messages import PoolHello
from farandole.control.watch_messages import WATCHER, WatchOrder
from farandole.launch.providers.provider import HostOffered, Provider, ProviderEvent
from farandole.monitor.comparison import trials_told
from farandole.monitor.folder import MarkRecord, RunInfo, RunWriter, TrialRecord, read_records
from farandole.monitor.runs import TRIALS, loaded, trial_curves
from farandole.search.groups import SearchLimits
from farandole.search.loop import SearchLoop
from farandole.search.study import Study
from farandole.search.watch import SearchWatch
from farandole.search.worker import POOL
from farandole.settings import Settings
from farandole.version import __version__
from tests.unit.search.test_study import make

HERE = "a"


@final
class NoProvider(Provider):
    """Provider of so many workers that are played; ``started`` and ``killed`` are their worker ids."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.slots = {HERE: size}
        self.started: list[int] = []
        self.killed: list[int] = []

    def open(self, contact: Contact, send: object) -> None:
        self._news.append(HostOffered(HERE, self.slots[HERE]))

    def start(self, host: str, workers: Sequence[WorkerSpec]) -> None:
        assert host == HERE
        self.started += [worker.worker_id for worker in workers]

    def kill(self, host: str, worker_id: int, number: int = 9) -> None:
        assert (host, number) == (HERE, 9)
        self.killed.append(worker_id)

    def tell(self, *events: ProviderEvent) -> None:
        self._news += events

    def events(
        self, now: float, ready: Collection[int] = (), mail: Sequence[tuple[bytes, Any]] = ()
    ) -> list[ProviderEvent]:
        for identity, event in mail:
            if identity.startswith(AGENT):  # a played one
                self.tell(event)
        return self._told()

    def close(self) -> None: ...


@final
class Orders:
    """A search that notes what it is told."""

    def __init__(self) -> None:
        self.stopped: list[int] = []

    def size(self, number: int) -> int:
        return 1

    def stop(self) -> None: ...

    def stop_trial(self, number: int, why: str) -> None:
        self.stopped.append(number)


@contextmanager
def watched(folder: Path) -> Iterator[tuple[Study, SearchWatch]]:
    if not (folder / "run.json").exists():
        RunWriter.create(folder, RunInfo(1.0, ["search"], search={"trials": 9, "epochs": 9})).close()
    study, log = make(folder)
    watch = SearchWatch(study, folder, lambda *_: True, lambda: 5.0)
    with log, closing(watch):
        yield study, watch


def trials(folder: Path) -> list[TrialRecord]:
    return [each for each in read_records(folder) if isinstance(each, TrialRecord)]


def one(_: int) -> int:
    return 1


def test_a_value_that_is_no_number_is_recorded_once(tmp_path: Path) -> None:
    with watched(tmp_path) as (study, watch):
        study.next()
        study.report(0, 1, math.nan)
        watch.changed("", one)
        before = len(trials(tmp_path))
        for _ in range(10):
            watch.changed("", one)
        assert len(trials(tmp_path)) == before
        study.next()
        study.report(1, 1, 0.5)
        watch.changed("", one)
        assert [each.trial for each in trials(tmp_path)[before:]] == [1], "only what has changed"
    with watched(tmp_path) as (_, watch):
        watch.changed("", one)
    assert sum(bool(each.points) for each in trials(tmp_path)) == 2, "nor by the next call"


def test_metrics_of_trials_are_recorded_once_by_name(tmp_path: Path) -> None:
    with watched(tmp_path) as (study, watch):
        for number in range(2):
            study.next()
            study.report(number, 1, 0.5, {"accuracy": 0.25 if number else math.nan})
            watch.changed("", one)
            watch.changed("", one)
    with watched(tmp_path) as (_, watch):
        watch.changed("", one)
    recorded = [each.metrics for each in trials(tmp_path) if each.metrics]
    assert str(recorded) == "[{'accuracy': [(1, nan)]}, {'accuracy': [(1, 0.25)]}]"
    curves = trial_curves(tmp_path)
    assert {name: list(each) for name, each in curves.items()} == {TRIALS: [0, 1], "accuracy": [0, 1]}
    hub = loaded(tmp_path)
    [told] = [message["trials"] for message in hub.snapshot(()) if message["t"] == "trials"]
    assert [(each[-2], str(each[-1])) for each in told] == [
        ([(1, 0.5)], "{'accuracy': [(1, nan)]}"),
        ([(1, 0.5)], "{'accuracy': [(1, 0.25)]}"),
    ]


def test_the_best_is_a_number(tmp_path: Path) -> None:
    RunWriter.create(tmp_path / "run", RunInfo(1.0, ["search"], search={"trials": 3})).close()
    with RunWriter.open(tmp_path / "run") as writer:
        for trial, value in enumerate((math.nan, 0.5, -math.inf)):
            writer.append(TrialRecord(1.0, trial, "complete", {}, {"last": value}, 1))
    assert trials_told(tmp_path / "run", RunInfo(1.0, [], search={"trials": 3}))[2] == "0.5 (trial 1)"


def order(watch: SearchWatch, verb: str, trial: int = -1) -> None:
    watch.handle_viewer_message(WATCHER + b"x", WatchOrder(1, verb, trial=trial))
    watch.turn(Orders())


def test_what_rests_is_shown_so_and_a_trial_does_not_go_on_while_the_search_rests(tmp_path: Path) -> None:
    with watched(tmp_path) as (study, watch):
        study.next()
        order(watch, "pause")
        watch.changed("", one)
        assert trials(tmp_path)[-1].state == "pausing"
        assert watch._begin(WatchOrder(2, "resume-trial", trial=0), Orders()) == "resume the search first"
        order(watch, "pause-trial", 0)
        study.released(0)
        watch.changed("", one)
        assert trials(tmp_path)[-1].state == "held"
        watch.abandoned()
        assert (study.is_paused, study.rows[0].is_held, study.next()[0]) == (False, False, 0)
        study.stop(0, "stopped by a user")
        watch.changed("", one)
        assert trials(tmp_path)[-1].state == "stopping", "it still has workers"
        study.released(0)
        watch.changed("", one)
        assert trials(tmp_path)[-1].state == "pruned"
    notes = [each.text for each in read_records(tmp_path) if isinstance(each, MarkRecord)]
    assert not any("-trial" in text for text in notes), notes


@contextmanager
def looped(folder: Path, size: int, most: int) -> Iterator[tuple[SearchLoop, Study, NoProvider]]:
    study, log = make(folder)
    provider = NoProvider(size)
    terms = SearchLimits((1, most), math.inf, folder, b"", Settings(min_np=1, max_np=most))
    with (
        log,
        Router(JobKeys.from_secret(new_secret()), own_host_only()) as router,
        SearchLoop(router, study, provider, terms) as loop,
    ):
        loop.open(Contact([], new_secret()))
        assert provider.started == list(range(size))
        yield loop, study, provider


def test_a_trial_is_repeated_when_it_is_over(tmp_path: Path) -> None:
    with watched(tmp_path) as (study, watch):
        study.next()
        for number in range(2):
            watch.handle_viewer_message(WATCHER, WatchOrder(number, "repeat-trial", trial=0))
            watch.turn(Orders())
            study.failed(0, "its host was lost")
            study.released(0)
        assert [row.again for row in study.rows] == [-1, 0]
    told = [each.text for each in read_records(tmp_path) if isinstance(each, MarkRecord)]
    assert told == ["trial 0 begins again as trial 1"]


def test_a_worker_that_cannot_be_reached_gets_no_trial(tmp_path: Path) -> None:
    with looped(tmp_path, 1, 1) as (loop, study, provider):
        loop._handle_message(POOL + b"x", PoolHello(HERE, 4711, __version__, 0))
        loop._turn(0.0)
        assert study.rows[0].is_active
        assert (loop.fleet.free, provider.killed) == ([], [0])


def test_trials_that_are_to_rest_get_no_more_workers(tmp_path: Path) -> None:
    with looped(tmp_path, 3, 3) as (loop, study, _):
        study.plan = study.plan.__class__(study.plan.space, 1, study.plan.rungs, minimize=True, seed=1)
        number, _ = study.next()
        assert number == 0
        loop._begin(0, "", 0.0)
        [job] = loop.groups
        for pid in (1, 2, 3):
            loop._handle_message(POOL + bytes([pid]), PoolHello(HERE, pid, __version__, pid - 1))
        job.resize({HERE: 1})
        study.hold(0)
        loop._allot(0.0)
        assert job.size == 1
        study.let_go(0)
        loop._allot(0.0)
        assert job.size == 3
