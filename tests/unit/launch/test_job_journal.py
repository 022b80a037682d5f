"""The journal of a job, and the user's copy of it: whole, and nobody waits for it."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from farandole.errors import UsageError
from farandole.launch.job import job_journal
from farandole.launch.job.job_journal import Journal

DEADLINE_S = 30.0
LINES = [f'{{"line":{number},"text":"a\u2028b"}}\n' for number in range(5_000)]
TEXT = "".join(LINES).encode()


def read(fd: int, size: int) -> bytes:
    """So many bytes of a pipe."""
    text = b""
    while len(text) < size:
        text += os.read(fd, size - len(text))
    return text


def test_lines_are_kept_and_copied(tmp_path: Path) -> None:
    path = tmp_path / "copy"
    path.write_text("of a job before")
    with Journal(str(path)) as journal:
        for line in LINES:
            journal.write(line)
        assert journal.lines() == LINES
    assert path.read_bytes() == TEXT


def test_without_a_path_lines_are_kept() -> None:
    with Journal() as journal:
        journal.write(LINES[0])
        assert journal.lines() == LINES[:1]


def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--elastic-journal .*No such file or directory"):
        Journal(str(tmp_path / "none" / "journal"))


def test_a_pipe_that_nobody_reads_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(job_journal, "LAG_S", 0.0)
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    with Journal(str(path)) as journal, caplog.at_level(logging.WARNING):
        for line in LINES:
            journal.write(line)
        journal.close(0.0)
        assert "takes nothing for 0 s: the job goes on" in caplog.text
        assert "lacks its last" in caplog.text
        assert read(reader, len(TEXT)) == TEXT
        journal.close(DEADLINE_S)
    os.close(reader)


def test_a_file_that_cannot_go_on_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), Journal("/dev/full") as journal:
        journal.write(LINES[0])
        journal.write(LINES[1])
    assert caplog.text.count("/dev/full: No space left on device: it ends here, and the job goes on") == 1
