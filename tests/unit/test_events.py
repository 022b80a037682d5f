"""Events: who listens gets them all, and cannot disturb who speaks."""

from __future__ import annotations

import pytest

from farandole import events


def test_a_subscriber_that_raises_is_logged_and_nobody_else_notices(caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: events.Event) -> None:
        raise OSError("no disk")

    seen: list[events.Event] = []
    cancels = [events.subscribe(broken), events.subscribe(seen.append)]
    note = events.Note(0.0, 1, "hello")
    events.emit(note)
    for cancel in cancels * 2:
        cancel()
    events.emit(note)
    assert seen == [note]
    (record,) = caplog.records
    assert "a subscriber of Farandole's events raised" in record.getMessage()
    assert record.exc_info is not None
    assert "no disk" in str(record.exc_info[1])
