"""State of one run for viewers: curves, membership, marks, output, orders, trials; and the changes of this state.

    hub = Hub(info)
    hub.add_record(MemberRecord(...)); hub.add_record(PointRecord(...))
    hub.snapshot(ranks=())          # the whole state, for a new viewer
    hub.changes()                   # changes since the last call, for current viewers

The state stays small in long runs: series are decimated, and only a tail of the output is kept. Jobs of up to
``MOST_CURVES`` ranks have a curve for each rank; larger jobs have a band over all ranks, and curves of the ranks that a
viewer asks for. Pure: no sockets and no clock.
"""

from __future__ import annotations

import math
import signal
from collections import deque
from collections.abc import Collection, Iterator
from typing import Any, final

import msgspec

from farandole.control.process import exit_status
from farandole.control.watch_messages import OrderNews
from farandole.monitor.decimation import Series, short
from farandole.monitor.folder import MarkRecord, MemberRecord, PointRecord, Record, RunInfo, TrialRecord
from farandole.monitor.importance import ValuesAtFirstRung
from farandole.monitor.latest import Latest
from farandole.monitor.rank_pace import RankPace

MOST_CURVES = 8
BAND = -1
"""Rank number that stands for all ranks."""

STARTING, BETWEEN_CELLS = "starting", "between cells"
"""States of a run: before its workers have joined, and of ranks in a notebook that run no cell."""

TAIL_LINES, TAIL_CHARACTERS = 400, 2000
MOST_MARKS = 500
MOST_POINTS = 1000
"""Most points of a trial's curve; beyond that, every other point is dropped."""

MOST_NAMES = 64
"""Most names of metrics, so that a script that makes new names in a loop does not fill the memory."""

RANK_SERIES = 600
"""Most bins of a rank's own curve in a job with a band."""


@final
class Hub:
    """State of one run, and its changes since ``changes`` was last called.

    ``record``: the folder from which the run can be opened when its page has ended.
    """

    def __init__(self, info: RunInfo, state: str = STARTING, record: str = "") -> None:
        self.info, self.state, self._record = info, state, record
        self.words = ""
        self.members: list[MemberRecord] = []
        self.resizable = False
        self.stays_until_s = 0.0
        """Time at which the page of a run that has ended closes; 0: with the run."""
        self.runs: dict[str, Any] = {}
        """On a page that compares runs, where ranks stand for runs: names of the runs, and a table of differences."""
        self.lost = 0
        """Number of messages of workers that were too many, and were dropped."""
        self._series: dict[tuple[str, int], Series] = {}
        self._names: dict[str, None] = {}
        self._latest, self._pace = Latest(), RankPace()
        self._marks: deque[dict[str, Any]] = deque(maxlen=MOST_MARKS)
        self._tail: deque[dict[str, Any]] = deque(maxlen=TAIL_LINES)
        self._trials: dict[int, TrialRecord] = {}
        self._points: dict[int, dict[str, dict[int, float]]] = {}  # by trial and name, "" for its value
        self._orders: dict[int, OrderNews] = {}
        self._news: list[dict[str, Any]] = []
        self._not_finite: set[str] = set()
        self._step = self._samples = 0
        self._told = ""

    @property
    def size(self) -> int:
        """Number of ranks of the latest generation."""
        return len(self.members[-1].hosts) if self.members else 0

    @property
    def step(self) -> int:
        """The highest step of any rank."""
        return self._step

    # -- events -------------------------------------------------------------------------------------------------------

    def add_record(self, record: Record) -> None:
        """Add a record."""
        self._latest.add_record(record)
        self._pace.add_record(record)
        if isinstance(record, PointRecord):
            self._take_points(record)
        elif isinstance(record, MemberRecord):
            self.members.append(record)
            self.state = "running" if self.state in (STARTING, "re-forming") else self.state
            self._publish({"t": "members", "members": [self._member(record)]})
        elif isinstance(record, MarkRecord):
            self._mark(record)
        else:
            self._take_trial(record)

    def print(self, time_s: float, stream: int, lines: Collection[str]) -> None:
        """Add lines of the output."""
        told = [{"time": time_s, "stream": stream, "line": line[:TAIL_CHARACTERS]} for line in lines]
        told = told[-TAIL_LINES:]
        self._tail.extend(told)
        self._publish({"t": "output", "lines": told})

    def order(self, news: OrderNews) -> None:
        """Add news of an order."""
        self._orders[news.number] = news
        self._orders = dict(list(self._orders.items())[-20:])
        if news.state == "acted":
            self._step = max(self._step, news.step)
            if self.state != BETWEEN_CELLS:  # the cell may have ended meanwhile
                self._obeyed(news.verb)
        elif news.state == "taken" and news.verb == "pause" and self.info.search:
            self.state = "pausing"
        self._publish({"t": "order", "order": msgspec.to_builtins(news)})

    def _obeyed(self, verb: str) -> None:
        following = {"pause": "paused", "resume": "running", "stop": "stopping", "end": "stopping"}
        self.state = following.get(verb, self.state)

    def cell(self, is_running: bool) -> None:
        """Note whether the ranks of a notebook run a cell."""
        self.state = "running" if is_running else BETWEEN_CELLS

    def interrupted(self) -> None:
        """Note that a generation has ended."""
        self.state = "re-forming" if self.state in ("running", "paused") else self.state

    def end(self, status: int | None, words: str, time_s: float) -> None:
        """Note that the job has ended or, if ``status`` is ``None``, that its record has no end."""
        is_stopped = self.state == "stopping" and status in (0, exit_status(-signal.SIGTERM)) and not self.info.search
        self.info.stopped |= is_stopped
        self.state, self.words = "ended", words
        self.info.status, self.info.words, self.info.ended_s = status, words, time_s

    # -- messages for viewers -----------------------------------------------------------------------------------------

    def snapshot(self, ranks: Collection[int]) -> Iterator[dict[str, Any]]:
        """The whole state, in several messages; with the curves of ``ranks`` if not all ranks are shown."""
        yield {"t": "run", "info": self._info(), **self._state()}
        yield {"t": "members", "members": [self._member(each) for each in self.members]}
        yield {"t": "marks", "marks": list(self._marks)}
        yield {"t": "trials", "trials": [msgspec.to_builtins(self._whole(each)) for each in self._trials.values()]}
        for order in self._orders.values():
            yield {"t": "order", "order": msgspec.to_builtins(order)}
        for key in self.shown(ranks):
            yield self._columns(key, 0)
        yield {"t": "output", "lines": list(self._tail)}

    def curves_of(self, rank: int) -> Iterator[dict[str, Any]]:
        """Curves of one rank, for a viewer that asks for it."""
        for key in self._series:
            if key[1] == rank:
                yield self._columns(key, 0)

    def changes(self) -> tuple[list[dict[str, Any]], dict[tuple[str, int], dict[str, Any]]]:
        """Changes since the last call: messages for all viewers, and messages of curves, by name and rank."""
        news, self._news = self._news, []
        state = self._state()
        if str(state) != self._told:
            self._told = str(state)
            news.insert(0, {"t": "state", **state})
        curves = {}
        for key, series in self._series.items():
            if series.changed < len(series):
                curves[key] = self._columns(key, series.changed)
                series.changed = len(series)
        return news, curves

    def is_shown(self, rank: int, ranks: Collection[int]) -> bool:
        """True if a viewer that has asked for ``ranks`` gets the curves of ``rank``."""
        is_banded = (0 if rank == BAND else 1) if self._most_ranks <= MOST_CURVES else (rank == BAND or rank in ranks)
        return bool(is_banded)

    def shown(self, ranks: Collection[int]) -> list[tuple[str, int]]:
        """Names and ranks of the curves that a viewer gets."""
        return [key for key in self._series if self.is_shown(key[1], ranks)]

    # -- inside -------------------------------------------------------------------------------------------------------

    @property
    def _most_ranks(self) -> int:
        return max((len(each.hosts) for each in self.members), default=0)

    def _take_points(self, record: PointRecord) -> None:
        self.lost += record.dropped
        for point in record.points:
            self._step = max(self._step, point.step)
            self._samples = max(self._samples, point.samples)
            for name, value in point.values.items():
                if name not in self._names and len(self._names) >= MOST_NAMES:
                    continue
                self._names[name] = None
                if not math.isfinite(value) and name not in self._not_finite:
                    self._not_finite.add(name)
                    text = f"{name} is {value} on rank {record.rank}"
                    self._mark(MarkRecord(point.time_s, "fault", text, point.step))
                for rank in (record.rank, BAND):
                    key = name, rank
                    if key not in self._series:
                        self._series[key] = Series() if rank == BAND or rank < MOST_CURVES else Series(RANK_SERIES)
                    self._series[key].add(point.step, point.time_s, value)

    def _take_trial(self, record: TrialRecord) -> None:
        self._trials[record.trial] = record
        own = self._points.setdefault(record.trial, {"": {}})
        for name, points in {"": record.points, **record.metrics}.items():
            if name not in own and len(own) > MOST_NAMES:
                continue
            known = own.setdefault(name, {})
            known.update(points)
            if len(known) > MOST_POINTS:
                for epoch in sorted(known)[1:-1:2]:
                    del known[epoch]
        if self.info.search and self.state == STARTING:
            self.state = "running"
        self._publish({"t": "trials", "trials": [msgspec.to_builtins(record)]})

    def _whole(self, record: TrialRecord) -> TrialRecord:
        """The last record of a trial, with all its known points."""
        points = {name: sorted(known.items()) for name, known in self._points[record.trial].items()}
        return msgspec.structs.replace(record, points=points.pop(""), metrics=points)

    def _mark(self, record: MarkRecord) -> None:
        step = record.step if record.step >= 0 else self._step
        self._step = max(self._step, step)
        mark = {"time": record.time_s, "kind": record.kind, "text": record.text, "step": step}
        self._marks.append(mark)
        self._publish({"t": "marks", "marks": [mark]})

    def _publish(self, message: dict[str, Any]) -> None:
        self._news.append(message)

    def _columns(self, key: tuple[str, int], begin: int) -> dict[str, Any]:
        name, rank = key
        if rank == BAND:
            value, count = self._latest.mean(name)
            now = {"now": short(value), "of": count}
        else:
            formed, value = self._latest.of(name, rank)
            now = {"now": short(value), "formed": formed}
        return {"t": "curve", "name": name, "rank": rank, "from": begin, **now, **self._series[key].columns(begin)}

    def _member(self, record: MemberRecord) -> dict[str, Any]:
        hosts = list(dict.fromkeys(record.hosts))
        return {"time": record.time_s, "generation": record.generation, "size": len(record.hosts), "hosts": hosts}

    def _info(self) -> dict[str, Any]:
        info = self.info
        told: dict[str, Any] = {"command": info.command, "folder": info.folder, "host": info.host, "git": info.git}
        told["record"] = self._record
        if self.runs:
            told["runs"] = self.runs
        return {**told, "began": info.began_s, "versions": info.versions, "seeds": info.seeds} | (
            {"search": info.search, "space": self._space} if info.search else {}
        )

    @property
    def _space(self) -> dict[str, Any]:
        """Hyper-parameters of a search, by their names."""
        found: dict[str, Any] = self.info.asked.get("space", {}).get("parameters", {})
        return found

    def at_first_rung(self) -> ValuesAtFirstRung:
        """Trials of a search that have reached the first rung, with their values at this rung."""
        epoch = int(self.info.asked.get("rungs", {}).get("levels", [1])[0])
        trials = []
        for number, record in self._trials.items():
            known = self._points[number][""]
            if there := [each for each in known if each >= epoch]:
                trials.append((dict(record.params), known[min(there)]))
        return ValuesAtFirstRung(self._space, epoch, bool(self.info.search.get("minimize", True)), trials)

    def _goal(self) -> dict[str, float] | None:
        """Epochs done and epochs of the whole training, if a script has logged both; means over the ranks."""
        done, whole = (self._latest.mean(name).value for name in ("epoch", "epochs"))
        return {"done": done, "whole": whole} if 0 <= done <= whole and 0 < whole < math.inf else None

    def _state(self) -> dict[str, Any]:
        info = self.info
        told: dict[str, Any] = {"state": self.state, "step": self._step, "size": self.size, "resizable": self.resizable}
        if (slowest := self._pace.slowest()) and self.state == "running":
            told["slow"] = {"rank": slowest.rank, "times": round(slowest.times, 1)}
        if (goal := self._goal()) is not None:
            told["goal"] = goal
        ended = {"status": info.status, "words": info.words, "ended": info.ended_s, "until": self.stays_until_s}
        ended["stopped"] = info.stopped
        ended = ended if self.state == "ended" else {}
        return {**told, "samples": self._samples, "lost": self.lost, **ended}
