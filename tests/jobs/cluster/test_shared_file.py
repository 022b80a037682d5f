"""The file by which ranks meet: whole, private, waited for, and never somebody else's."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from farandole.cluster.contact import Contact
from farandole.cluster.shared_file import SharedFile
from farandole.errors import StartError
from tests.support.patience import PATIENCE_S

CONTACT = Contact(["tcp://10.0.0.1:7000", "tcp://[fd77::1]:7000"], "secret")
DEADLINE_S = PATIENCE_S


def test_who_waits_gets_what_is_written_as_soon_as_it_is_there(tmp_path: Path) -> None:
    file = SharedFile(str(tmp_path), "job")
    writer = threading.Timer(0.05, file.share, (CONTACT, DEADLINE_S))
    writer.start()
    assert SharedFile(str(tmp_path), "job").share(None, DEADLINE_S) == CONTACT
    writer.join()
    assert file.path.stat().st_mode & 0o777 == 0o600


def test_what_an_earlier_rank_0_has_left_is_replaced_even_if_it_was_killed_while_writing(tmp_path: Path) -> None:
    file = SharedFile(str(tmp_path), "job")
    file.share(Contact(["tcp://10.0.0.9:1"], "old"), DEADLINE_S)
    file.paths[1].write_text("half")
    file.share(CONTACT, DEADLINE_S)
    assert file.share(None, DEADLINE_S) == CONTACT
    assert sorted(tmp_path.iterdir()) == [file.path]


def test_a_file_that_never_comes_is_missed_with_what_to_type(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        file = SharedFile(str(folder), "job")
        says = rf"rank 0 has not written {file.path} within 0.05 s\..*FARANDOLE_RENDEZVOUS_DIR.*--start-timeout"
        with pytest.raises(StartError, match=says):
            file.share(None, 0.05)


def test_a_folder_that_takes_no_file_is_named_with_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"cannot publish its address in .*nowhere.*export FARANDOLE_RENDEZVOUS_DIR="):
        SharedFile(str(tmp_path / "nowhere"), "job").share(CONTACT, DEADLINE_S)


def test_what_others_could_have_written_is_not_believed(tmp_path: Path) -> None:
    file = SharedFile(str(tmp_path), "job")
    file.share(CONTACT, DEADLINE_S)
    file.path.chmod(0o666)
    with pytest.raises(StartError, match=r"not from rank 0: it belongs to user .* with mode 666"):
        file.share(None, DEADLINE_S)
    file.path.rename(tmp_path / "elsewhere")
    file.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StartError, match="cannot be read"):
        file.share(None, DEADLINE_S)


@pytest.mark.parametrize(("make", "kind"), [(os.mkfifo, "FIFO"), (os.mkdir, "folder")])
def test_what_is_no_file_is_refused_at_once(make: Callable[[Path], None], kind: str, tmp_path: Path) -> None:
    file = SharedFile(str(tmp_path), "job")
    make(file.path)
    begin_s = time.monotonic()
    with pytest.raises(StartError, match=f"not from rank 0: it is no file, but a {kind} of user {os.geteuid()}. Remov"):
        file.share(None, DEADLINE_S)
    assert time.monotonic() < begin_s + DEADLINE_S


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_not_believed(tmp_path: Path) -> None:
    file = SharedFile(str(tmp_path), "job")
    file.share(CONTACT, DEADLINE_S)
    os.chown(file.path, 12345, -1)
    with pytest.raises(StartError, match="belongs to user 12345"):
        file.share(None, DEADLINE_S)


def test_what_says_nothing_of_a_controller_is_refused(tmp_path: Path) -> None:
    file = SharedFile(str(tmp_path), "job")
    file.write(b"[1, 2")
    with pytest.raises(StartError, match=re.escape("names no controller")):
        file.share(None, DEADLINE_S)
