"""The user's copy of a journal: whole, and nobody waits for it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from farandole.launch.job import journal_copy
from farandole.launch.job.journal_copy import JournalCopy

DEADLINE_S = 30.0
LINES = b"".join(b'{"line":%d}\n' % number for number in range(100_000))


@pytest.fixture
def journal() -> Iterator[int]:
    """A journal of more bytes than a pipe takes."""
    fd = os.memfd_create("journal")
    os.write(fd, LINES)
    yield fd
    os.close(fd)


def read(fd: int, size: int) -> bytes:
    """So many bytes of a pipe."""
    text = b""
    while len(text) < size:
        text += os.read(fd, size - len(text))
    return text


def test_a_file_is_written_anew_by_each_controller(journal: int, tmp_path: Path) -> None:
    path = tmp_path / "copy"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    for half in (len(LINES) // 2, len(LINES)):
        copy = JournalCopy(str(path), fd, journal)
        copy.begin(0)
        copy.extend(half)
        copy.close(DEADLINE_S)
        assert path.read_bytes() == LINES[:half]
        path.write_bytes(LINES[:half] + b"torn")
    os.close(fd)


def test_a_pipe_that_nobody_reads_holds_up_nobody(
    journal: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(journal_copy, "LAG_S", 0.0)
    reader, writer = os.pipe()
    copy = JournalCopy("pipe", writer, journal)
    with caplog.at_level(logging.WARNING):
        copy.begin(len(LINES))
        copy.extend(len(LINES))
        copy.close(0.0)
    assert "--elastic-journal pipe takes nothing for 0 s: the job goes on" in caplog.text
    assert "lacks its last" in caplog.text
    assert read(reader, len(LINES)) == LINES
    copy.close(DEADLINE_S)
    heir = copy  # in another process, with the same memory
    os.write(journal, b"more\n")
    heir._closing = heir._ended = False
    heir.begin(len(LINES) + 5)
    heir.close(DEADLINE_S)
    assert read(reader, 5) == b"more\n"
    os.close(reader)
    os.close(writer)


def test_a_file_that_cannot_go_on_is_told_once(journal: int, caplog: pytest.LogCaptureFixture) -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    copy = JournalCopy("/dev/full", fd, journal)
    with caplog.at_level(logging.WARNING):
        copy.begin(5)
        copy.extend(10)
        copy.close(DEADLINE_S)
    assert caplog.text.count("/dev/full: No space left on device: it ends here, and the job goes on") == 1
    os.close(fd)
