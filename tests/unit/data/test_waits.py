"""Accounting of a thread's time: nested blocks, sums, what others see, events."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from farandole import events
from farandole.data.storage.waits import Meter, ThreadTimes, during, mine
from farandole.runtime.session import training


def clock(*times: float) -> ThreadTimes:
    ticks: Iterator[float] = iter(times)
    return ThreadTimes(lambda: next(ticks))


def test_a_block_does_not_count_what_blocks_inside_of_it_do() -> None:
    times = clock(0.0, 1.0, 4.0, 5.0, 5.5, 10.0)
    with during("decode", times=times):
        with during("shared storage", "/a", times=times):
            assert times.now() == ("shared storage", "/a")
        with during("peer", times=times):
            pass
        assert times.now() == ("decode", "")
    assert times.now() == ("", "")
    assert times.pop_times() == {"shared storage": 3.0, "peer": 0.5, "decode": 6.5}
    assert times.pop_times() == {}


def test_a_block_counts_when_it_raises() -> None:
    times = clock(0.0, 2.0)
    with pytest.raises(ValueError, match="no"), during("disk", times=times):
        raise ValueError("no")
    assert times.pop_times() == {"disk": 2.0}


def test_time_of_another_process_is_not_counted_twice() -> None:
    times = clock(0.0, 10.0)
    with during("decode", times=times):
        times.add({"shared storage": 3.0, "decode": 6.0}, cpu_s=5.0)
    assert times.pop_times() == {"shared storage": 3.0, "decode": 7.0}  # of which 1 s was the way there and back
    assert times.cpu_s == 5.0


def test_a_timeline_gets_a_phase_for_each_block() -> None:
    seen: list[events.Event] = []
    cancel = events.subscribe(seen.append)
    try:
        with during("peer", "piece 7", nbytes=99, times=clock(1.0, 3.0)):
            pass
    finally:
        cancel()
    assert seen == [events.Phase("input", "piece 7", "input", "fetch", 1.0, 3.0, 99)]
    with during("decode"):
        pass
    assert len(seen) == 1
    mine().pop_times()


def test_the_live_view_gets_seconds_of_a_step_that_waited_for_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "EVERY_S", 0.0)
    seen: list[dict[str, float]] = []

    def hear(event: events.Event) -> None:
        assert isinstance(event, events.Metric)
        seen.append(event.values)

    cancel = events.listen(hear)
    try:
        here = training.Training()
        for step in range(3):
            here.stepped(0)
            if step:
                here.starved(1e-9)
        here.stepped(0)
    finally:
        cancel()
    assert [values.get("input_s") for values in seen] == [None, 1e-9, 1e-9]


def test_a_meter_names_the_largest() -> None:
    meter = Meter()
    assert meter.largest() == ""
    meter.add({"disk": 1.0, "peer": 2.0})
    meter.add({"disk": 1.5})
    assert meter.largest() == "disk"
    assert meter.seconds == {"disk": 2.5, "peer": 2.0}
