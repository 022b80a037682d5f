"""Thread that writes the journal of leases, and reads their policy, in a folder whose file system may not answer."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from farandole.errors import SettingsError, UsageError
from farandole.launch.hosts.run_folder import RunFolder
from farandole.launch.leases.ending import arrays_of
from farandole.launch.leases.folder_thread import JOURNAL, FolderThread, last, set_aside
from farandole.launch.leases.job_arrays import POLICY, LeaseSupply, limits_in
from farandole.launch.leases.journal import LeaseRecord, record
from farandole.launch.leases.limits import LeaseLimits
from farandole.launch.leases.observation import LeaseObservation
from farandole.launch.leases.plan_command import dry_run
from farandole.launch.leases.policy_state import LeasePlan
from tests.support.patience import PATIENCE_S
from tests.support.waiting import until
from workbench.scheduler.cluster import FakeCluster
from workbench.scheduler.fake import FakeScheduler

OFTEN_S = 0.01


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run")


@pytest.fixture
def start(folder: RunFolder) -> Iterator[Callable[[], FolderThread]]:
    with contextlib.ExitStack() as held:

        def start() -> FolderThread:
            thread = FolderThread(folder, lambda: limits_in(folder, LeaseSupply("script"), 2, 16), OFTEN_S)
            held.callback(thread.close, PATIENCE_S)
            return thread

        yield start


def told(thread: FolderThread, line: str = "") -> LeaseLimits | str:
    """Wait for news of the policy, while lines come all the time."""
    found: list[LeaseLimits | str] = []

    def has_come() -> bool:
        found.extend(filter(None, [thread.limits()]))
        if line and not found:
            thread.write(line)
        return bool(found)

    until(has_come, "for news of the policy")
    return found[0]


def put(path: Path, text: str) -> None:
    """Write at one stroke: the thread reads all the time."""
    new = path.with_name("new")
    new.write_text(text)
    new.rename(path)


def line(goal: int) -> str:
    return record(LeaseLimits(), LeasePlan(), LeaseObservation(0.0, 1), LeasePlan(goal=goal), [])


def test_lines_are_written_in_their_order_after_one_that_was_torn(folder: RunFolder) -> None:
    path = folder.path / JOURNAL
    path.write_text(line(1) + line(2)[:20])
    found = last(folder)
    assert found is not None
    assert found.after.goal == 1
    thread = FolderThread(folder, LeaseLimits)
    for goal in range(3, 103):
        thread.write(line(goal))
    thread.close(PATIENCE_S)
    lines = path.read_text().splitlines(keepends=True)
    assert lines[0] == line(1)
    assert lines[2:] == [line(goal) for goal in range(3, 103)]
    found = last(folder)
    assert found is not None
    assert found.after.goal == 102


def test_a_folder_that_does_not_answer_blocks_nobody_and_gets_the_lines_later(folder: RunFolder) -> None:
    path = folder.path / POLICY
    os.mkfifo(path)  # to open it waits for somebody who writes, as a file server that is away
    is_reading = threading.Event()

    def read() -> LeaseLimits:
        is_reading.set()
        return limits_in(folder, LeaseSupply("script"), 2, 16)

    thread = FolderThread(folder, read, OFTEN_S)
    assert is_reading.wait(PATIENCE_S)
    begin_s = time.monotonic()
    thread.write("one\n")
    assert thread.limits() is None
    thread.close(OFTEN_S)
    assert time.monotonic() - begin_s < PATIENCE_S / 2
    assert not (folder.path / JOURNAL).exists()
    path.write_text("")
    thread.close(PATIENCE_S)
    assert (folder.path / JOURNAL).read_text() == "one\n"


def until_rung(thread: FolderThread, condition: Callable[[], bool]) -> None:
    """Wait until the descriptor rings, and the condition holds."""
    until_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert select.select([thread.fd], [], [], until_s - time.monotonic())[0]
        thread.heard()


def test_whoever_gives_an_order_hears_when_it_is_on_the_disk_or_cannot_be(folder: RunFolder) -> None:
    path = folder.path / JOURNAL
    thread = FolderThread(folder, LeaseLimits)
    said: list[tuple[bytes, str]] = []

    def written() -> bool:
        said.extend(thread.written())
        return bool(said)

    thread.write("one\n", b"someone")
    until_rung(thread, written)
    assert (said, path.read_text()) == ([(b"someone", "")], "one\n")
    path.unlink()
    path.mkdir()
    said.clear()
    thread.write("two\n", b"another")
    until_rung(thread, written)
    assert said[0][0] == b"another"
    assert "cannot be written: Is a directory" in said[0][1]
    thread.close(PATIENCE_S)


def begun(thread: FolderThread) -> list[LeaseRecord | None]:
    """Wait until the thread has read what the journal ends with."""
    found: list[LeaseRecord | None] = []

    def is_read() -> bool:
        found.extend(thread.begun())
        return bool(found)

    until_rung(thread, is_read)
    return found


def test_the_journal_is_read_by_the_thread_however_long_that_takes(
    folder: RunFolder, start: Callable[[], FolderThread]
) -> None:
    path = folder.path / JOURNAL
    os.mkfifo(path)  # to open it waits for somebody who writes, as a file server that is away
    thread = start()
    assert thread.begun() == []
    with path.open("w"):
        put(path, line(3))
    [found] = begun(thread)
    assert found is not None
    assert found.after.goal == 3


def test_a_journal_that_cannot_be_read_for_a_moment_is_no_empty_one(
    folder: RunFolder, start: Callable[[], FolderThread], caplog: pytest.LogCaptureFixture
) -> None:
    path = folder.path / JOURNAL
    path.symlink_to(path)  # ELOOP, as a file server that fails
    with pytest.raises(OSError, match="symbolic links"):
        last(folder)
    told = f"{JOURNAL} cannot be read: Too many levels of symbolic links; try again"
    with pytest.raises(UsageError, match=told):
        arrays_of(folder, LeaseSupply())
    with contextlib.closing(FakeScheduler(FakeCluster(1))) as scheduler, pytest.raises(UsageError, match=told):
        dry_run(folder, scheduler, 0.0)
    thread = start()
    until_s = time.monotonic() + PATIENCE_S
    while "nothing is decided about leases until it can be" not in caplog.text:
        assert time.monotonic() < until_s
        assert not select.select([thread.fd], [], [], OFTEN_S)[0]
    assert thread.begun() == []
    put(path, line(3))
    [found] = begun(thread)
    assert found is not None
    assert found.after.goal == 3
    assert caplog.text.count("cannot be read") == 1


def test_a_folder_that_is_away_has_no_empty_journal(folder: RunFolder) -> None:
    assert last(folder) is None
    folder.path.rename(folder.path.with_name("away"))
    with pytest.raises(FileNotFoundError):
        last(folder)


def test_a_thread_that_has_read_no_journal_can_be_closed_and_writes_what_it_has(folder: RunFolder) -> None:
    path = folder.path / JOURNAL
    path.mkdir()
    thread = FolderThread(folder, LeaseLimits)
    thread.write("one\n", b"someone")
    thread.close(PATIENCE_S)
    assert thread.begun() == []
    assert [tag for tag, _ in thread.written()] == [b"someone"]


def test_a_policy_that_changes_is_taken_in_also_while_lines_come(
    folder: RunFolder, start: Callable[[], FolderThread]
) -> None:
    path = folder.path / POLICY
    put(path, "max-np = 4\n")
    thread = start()
    found = told(thread, "x")
    assert isinstance(found, LeaseLimits)
    assert found.max_np == 4
    put(path, "max-np = 8\n")
    found = told(thread, "x")
    assert isinstance(found, LeaseLimits)
    assert found.max_np == 8


@pytest.mark.parametrize(
    ("text", "words"),
    [("max-np = ", "is not TOML"), ("max-np = 1\n", "max-np = 1 is below min-np = 2"), ("maxnp = 4\n", "max-np?")],
)
def test_a_policy_that_is_broken_is_told_once_and_its_repair_is_news(
    text: str, words: str, folder: RunFolder, start: Callable[[], FolderThread]
) -> None:
    path = folder.path / POLICY
    put(path, "max-np = 4\n")
    thread = start()
    before = told(thread)
    put(path, text)
    found = told(thread)
    assert isinstance(found, str)
    assert words in found
    put(path, "max-np = 4\n")
    assert told(thread) == before
    assert thread.limits() is None


def test_a_reading_that_fails_is_words(folder: RunFolder) -> None:
    def read() -> LeaseLimits:
        raise SettingsError("no")

    thread = FolderThread(folder, read, OFTEN_S)
    assert told(thread) == "no"
    thread.close(PATIENCE_S)


def test_the_journal_of_an_earlier_run_is_set_aside(folder: RunFolder) -> None:
    set_aside(folder)
    (folder.path / JOURNAL).write_text(line(3))
    set_aside(folder)
    assert last(folder) is None
    assert (folder.path / f"{JOURNAL}.old").read_text() == line(3)
