"""The log of leads: one order, whoever appends at the same time; and the thread of a controller that keeps to it."""

from __future__ import annotations

import contextlib
import math
import os
import select
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farandole.control.private_file import write_private
from farandole.errors import UsageError
from farandole.launch.hosts.leader_log import LEADS, LeaderEntry, LeaderLog, LeaderMember, SupersededError
from farandole.launch.hosts.run_folder import CONTACT, RunContact, RunFolder
from farandole.launch.job.leader_thread import LeaderThread
from tests.support.patience import PATIENCE_S

DEADLINE_S = PATIENCE_S


def test_a_lead_finds_what_was_formed_last_and_the_one_before_is_fenced_off(tmp_path: Path) -> None:
    first = LeaderLog(tmp_path)
    assert first.last() == LeaderEntry(0)
    assert first.begin_epoch(goes_on=True).epoch == 1
    members = (LeaderMember(0, "a", 0), LeaderMember(3, "b+8_1", 1))
    first.append(LeaderEntry(1, 7, members, next_worker_id=5))
    second = LeaderLog(tmp_path)
    taken = second.begin_epoch(goes_on=True)
    assert (taken.epoch, taken.generation, taken.members, taken.next_worker_id) == (2, 7, members, 5)
    with pytest.raises(SupersededError, match="this one was number 1, and number 2 has taken over"):
        first.append(LeaderEntry(1, 8))
    with pytest.raises(SupersededError):
        first.check(1)
    second.append(LeaderEntry(2, 8))
    assert LeaderLog(tmp_path).last().generation == 8
    assert LeaderLog(tmp_path).begin_epoch(goes_on=False).members == ()
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / LEADS).iterdir()} == {0o600}


@given(st.lists(st.sampled_from(["take 0", "take 1", "take 2", "append 0", "append 1", "append 2"]), max_size=12))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_epochs_never_go_back_in_the_log(tmp_path: Path, moves: list[str]) -> None:
    shutil.rmtree(tmp_path / LEADS, ignore_errors=True)
    logs, epochs, written = [LeaderLog(tmp_path) for _ in range(3)], [0, 0, 0], []
    for serial, move in enumerate(moves, 1):
        verb, who = move.split()
        log = logs[int(who)]
        if verb == "take":
            epochs[int(who)] = log.begin_epoch(goes_on=True).epoch
        elif epochs[int(who)]:
            is_last = epochs[int(who)] == max(epochs)
            try:
                log.append(LeaderEntry(epochs[int(who)], serial))
            except SupersededError:
                assert not is_last
            else:
                assert is_last
                written.append(serial)
    names = sorted((tmp_path / LEADS).iterdir()) if (tmp_path / LEADS).exists() else []
    entries = [LeaderLog(tmp_path)._read(int(name.name)) for name in names]
    found = [entry.epoch for entry in entries if entry is not None]
    assert found == sorted(found)
    assert LeaderLog(tmp_path).last().generation == max(written, default=0)


def test_of_two_that_append_at_once_one_is_first(tmp_path: Path) -> None:
    LeaderLog(tmp_path).begin_epoch(goes_on=False)
    logs = [LeaderLog(tmp_path) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        epochs = sorted(entry.epoch for entry in pool.map(lambda log: log.begin_epoch(goes_on=True), logs))
    assert epochs == list(range(2, 10))
    assert not list((tmp_path / LEADS).glob("*.new"))


@pytest.mark.parametrize("away", ["folder", "entry"])
def test_a_log_that_does_not_show_this_lead_shows_no_other(away: str, tmp_path: Path) -> None:
    epoch = LeaderLog(tmp_path).begin_epoch(goes_on=False).epoch
    path = tmp_path / LEADS if away == "folder" else tmp_path / LEADS / "00000001"
    log = LeaderLog(tmp_path)
    path.rename(tmp_path / "away")
    with pytest.raises(UsageError, match="shows no leader after number 0, and this is number 1"):
        log.check(epoch)
    (tmp_path / "away").rename(path)
    log.append(LeaderEntry(epoch, 1))


def test_a_log_that_goes_away_after_a_look_proves_nothing(tmp_path: Path) -> None:
    log = LeaderLog(tmp_path)
    epoch = log.begin_epoch(goes_on=False).epoch
    log.check(epoch)
    (tmp_path / LEADS).rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        log.check(epoch)
    (tmp_path / "away").rename(tmp_path / LEADS)
    log.check(epoch)


def test_what_is_no_entry_is_told(tmp_path: Path) -> None:
    LeaderLog(tmp_path).begin_epoch(goes_on=False)
    (tmp_path / LEADS / "00000002").write_text("rubbish")
    with pytest.raises(UsageError, match="00000002 is not what a leader writes"):
        LeaderLog(tmp_path).last()


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run")


@pytest.fixture
def lead(folder: RunFolder) -> Iterator[Callable[[], LeaderThread]]:
    """Takes the lead, and starts its thread."""
    with contextlib.ExitStack() as held:

        def start() -> LeaderThread:
            epoch = LeaderLog(folder.path).begin_epoch(goes_on=False).epoch
            thread = LeaderThread(folder, contact_of(epoch), every_s=0.01)
            held.callback(thread.close, DEADLINE_S)
            return thread

        yield start


def contact_of(epoch: int) -> RunContact:
    return RunContact(["tcp://127.0.0.1:9"], "aa" * 32, 1.0, 0.2, epoch=epoch)


def until(thread: LeaderThread, condition: Callable[[], bool]) -> None:
    """Wait for news of the thread until they are these."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        select.select([thread.fd], [], [], 0.01)


def until_claimed(thread: LeaderThread, generations: list[int]) -> None:
    came: list[int] = []

    def have_come() -> bool:
        came.extend(thread.claimed())
        return came == generations

    until(thread, have_come)


def published(folder: RunFolder) -> RunContact | None:
    with contextlib.suppress(UsageError):
        return folder.contact()
    return None


def test_a_thread_claims_in_order_and_sees_another_lead(folder: RunFolder, lead: Callable[[], LeaderThread]) -> None:
    thread = lead()
    for generation in (1, 2):
        thread.claim(LeaderEntry(1, generation))
    until_claimed(thread, [1, 2])
    assert LeaderLog(folder.path).last().generation == 2
    assert not thread.superseded
    LeaderLog(folder.path).begin_epoch(goes_on=True)
    until(thread, lambda: bool(thread.superseded))


def test_a_folder_that_cannot_be_written_holds_claims_back_until_it_can(
    folder: RunFolder, lead: Callable[[], LeaderThread], caplog: pytest.LogCaptureFixture
) -> None:
    thread = lead()
    leads, away = folder.path / LEADS, folder.path / "away"
    leads.rename(away)
    leads.touch()  # no folder: nothing can be made or read there
    thread.claim(LeaderEntry(1, 1))
    until(thread, lambda: "training goes on, but the next generation waits until" in caplog.text)
    assert thread.claimed() == []
    leads.unlink()
    away.rename(leads)
    until_claimed(thread, [1])
    assert caplog.text.count("cannot be used") == 1


def test_a_contact_that_cannot_be_read_holds_no_claim_back_and_is_spoken_of_each_time_once(
    folder: RunFolder, lead: Callable[[], LeaderThread], caplog: pytest.LogCaptureFixture
) -> None:
    thread = lead()
    until(thread, lambda: published(folder) == contact_of(1))
    path = folder.path / CONTACT
    for times in (1, 2):
        (folder.path / "new").symlink_to(path)
        (folder.path / "new").rename(path)  # ELOOP, as a file server that fails: it is not known what stands there
        until(thread, lambda times=times: caplog.text.count("contact of this run cannot be published") == times)  # type: ignore[misc]
        thread.claim(LeaderEntry(1, times))
        until_claimed(thread, [times])
        path.unlink()
        until(thread, lambda: published(folder) == contact_of(1))
    assert path.is_file()
    assert caplog.text.count("cannot be published") == 2


RUBBISH = [b"", b"rubbish", b"\xff", b'{"addresses": ["\xff"]}', b'{"\xff": 1}']


@pytest.mark.parametrize("found", RUBBISH)
def test_a_contact_that_is_none_of_this_lead_is_published_again(
    found: bytes, folder: RunFolder, lead: Callable[[], LeaderThread]
) -> None:
    thread = lead()
    until(thread, lambda: published(folder) == contact_of(1))
    write_private(folder.path / CONTACT, found)
    until(thread, lambda: published(folder) == contact_of(1))
    folder.publish(msgspec.structs.replace(contact_of(1), addresses=["tcp://127.0.0.1:8"]))
    until(thread, lambda: published(folder) == contact_of(1))
    (folder.path / CONTACT).unlink()
    until(thread, lambda: published(folder) == contact_of(1))


@pytest.mark.parametrize("found", RUBBISH)
def test_an_entry_that_is_none_ends_no_thread(
    found: bytes, folder: RunFolder, lead: Callable[[], LeaderThread], caplog: pytest.LogCaptureFixture
) -> None:
    thread = lead()
    path = folder.path / LEADS / "00000002"
    path.write_bytes(found)
    until(thread, lambda: "00000002 is not what a leader writes" in caplog.text)
    thread.claim(LeaderEntry(1, 1))
    path.unlink()
    until_claimed(thread, [1])


def test_a_look_that_is_asked_for_is_later_than_that_and_rings(
    folder: RunFolder, lead: Callable[[], LeaderThread]
) -> None:
    thread = lead()
    until(thread, lambda: published(folder) == contact_of(1))
    thread.claimed()
    asked_s = time.monotonic()
    thread.look()
    assert select.select([thread.fd], [], [], DEADLINE_S)[0]
    assert thread.sure_s >= asked_s


def test_a_thread_that_was_stuck_claims_nothing_once_its_controller_has_been_replaced(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    LeaderLog(folder.path).begin_epoch(goes_on=False)
    thread, stuck, answers = LeaderThread(folder, contact_of(1), every_s=DEADLINE_S), Event(), Event()
    until(thread, lambda: published(folder) == contact_of(1))

    def check(epoch: int) -> None:
        stuck.set()
        assert answers.wait(DEADLINE_S)

    monkeypatch.setattr(thread._log, "check", check)
    thread.claim(LeaderEntry(1, 7))
    assert stuck.wait(DEADLINE_S)
    thread.close(0.0)
    answers.set()
    thread._thread.join(DEADLINE_S)
    assert LeaderLog(folder.path).last().generation == 0


def test_no_lead_is_sure_before_its_first_look(folder: RunFolder) -> None:
    leads = folder.path / LEADS
    leads.mkdir()
    (leads / "00000002").write_bytes(RUBBISH[0])  # which a look at the log stumbles over
    thread = LeaderThread(folder, contact_of(1), every_s=0.01)
    try:
        assert thread.sure_s == -math.inf
        (leads / "00000002").unlink()
        LeaderLog(folder.path).begin_epoch(goes_on=False)
        until(thread, lambda: thread.sure_s > 0)
    finally:
        thread.close(DEADLINE_S)


def test_a_contact_is_never_that_of_an_earlier_lead(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    contact = RunContact(["tcp://127.0.0.1:9"], "aa" * 32, 1.0, 0.2, epoch=2)
    folder.publish(contact)
    with pytest.raises(UsageError, match=r"another leader has .*: number 2, and this is 1"):
        folder.publish(RunContact(["tcp://127.0.0.1:8"], "aa" * 32, 1.0, 0.2, epoch=1))
    folder.withdraw(1)
    assert folder.contact() == contact
    folder.withdraw(2)
    with pytest.raises(UsageError):
        folder.contact()
    assert os.listdir(folder.path) == []
