"""One writer of a search's log where the file system has no locks: a filter has the kernel refuse ``flock``."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from farandole.control.writer_lock import WriterLock, _place, _started, local_locks
from farandole.errors import UsageError
from farandole.monitor.folder import RunInfo, RunWriter
from tests.support.paths import ROOT
from tests.support.patience import PATIENCE_S
from tests.support.unix_sockets import names_held

NUMBERS = {"x86_64": 73, "aarch64": 32}

pytestmark = pytest.mark.skipif(platform.machine() not in NUMBERS, reason="the number of flock is not known here")

# A filter of the kernel: flock is answered with ENOLCK, as NFS without lockd answers it; all else is allowed.
REFUSE = f"""
import ctypes, errno, struct
def refuse_flock():
    code = [(0x20, 0, 0, 0), (0x15, 0, 1, {NUMBERS.get(platform.machine(), 0)}),
            (0x06, 0, 0, 0x00050000 | errno.ENOLCK), (0x06, 0, 0, 0x7FFF0000)]
    text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in code))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(text)))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
refuse_flock()
"""

HOLD = (
    REFUSE
    + """
import sys
from pathlib import Path
from farandole.errors import UsageError
from farandole.search.trial_log import TrialLog
try:
    log = TrialLog(Path(sys.argv[1]) / "trials.log", "a", minimize=True)
except UsageError as error:
    print("refused:", error, flush=True)
    sys.exit(3)
print("has it", flush=True)
sys.stdin.read()
log.close()
"""
)


RECORD = (
    REFUSE
    + """
import sys
from farandole.errors import UsageError
from farandole.monitor.folder import RunWriter
try:
    writer = RunWriter.open(sys.argv[1])
except UsageError as error:
    print("refused:", error, flush=True)
    sys.exit(3)
print("has it", flush=True)
sys.stdin.read()
writer.close()
"""
)


def holder(folder: Path, code: str = HOLD) -> subprocess.Popen[str]:
    """A process that wants to write, until its standard input ends."""
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code, str(folder)], stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit status, and what was written to standard error."""
    _, errors = process.communicate(timeout=PATIENCE_S)
    return process.returncode, errors


def test_a_second_writer_is_refused_and_a_killed_one_is_followed(tmp_path: Path) -> None:
    first = holder(tmp_path)
    assert said(first) == "has it"
    second = holder(tmp_path)
    assert said(second).startswith(f"refused: another search writes to {tmp_path / 'trials.log'}")
    assert ended(second)[0] == 3
    first.send_signal(signal.SIGKILL)
    assert ended(first)[0] == -signal.SIGKILL
    assert (tmp_path / "trials.log.writer").exists()
    third = holder(tmp_path)
    assert said(third) == "has it"
    code, errors = ended(third)
    assert code == 0
    assert errors.count("without locks") == 1
    assert "No locks available" in errors
    assert not (tmp_path / "trials.log.writer").exists()


def test_of_many_that_follow_a_killed_one_only_one_writes(tmp_path: Path) -> None:
    dead = holder(tmp_path)
    assert said(dead) == "has it"
    dead.kill()
    ended(dead)
    many = [holder(tmp_path) for _ in range(5)]
    words = [said(each) for each in many]
    codes = [ended(each)[0] for each in many]
    assert sorted(word.split(":")[0] for word in words) == ["has it"] + 4 * ["refused"]
    assert sorted(codes) == [0, 3, 3, 3, 3]


def test_the_writer_of_another_host_is_not_followed(tmp_path: Path) -> None:
    other = {"host": "node17", "place": "0-0", "pid": 4711, "since": "2026-01-01 12:00:00"}
    file = tmp_path / "trials.log.writer"
    file.write_text(json.dumps(other))
    refused = holder(tmp_path)
    words = said(refused)
    assert "process 4711 on host node17" in words
    assert f"when it has ended, remove {file}" in words
    assert ended(refused)[0] == 3
    file.unlink()
    last = holder(tmp_path)
    assert said(last) == "has it"
    assert ended(last)[0] == 0


def test_a_second_recording_is_refused_without_locks(tmp_path: Path) -> None:
    RunWriter.create(tmp_path / "run", RunInfo(1.0, ["train"])).close()
    first = holder(tmp_path / "run", RECORD)
    assert said(first) == "has it"
    second = holder(tmp_path / "run", RECORD)
    words = said(second)
    assert "it has a writer already" in words
    assert f"process {first.pid} of this host" in words
    assert (ended(second)[0], ended(first)[0]) == (3, 0)
    assert not (tmp_path / "run" / "metrics.writer").exists()


def locked(path: Path) -> tuple[int, WriterLock]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        return fd, WriterLock(fd, path)
    except BaseException:
        os.close(fd)
        raise


def test_who_has_locks_heeds_a_writer_that_has_none(tmp_path: Path) -> None:
    path, file = tmp_path / "metrics", tmp_path / "metrics.writer"
    without = holder(tmp_path)
    assert said(without) == "has it"
    shutil.copy(tmp_path / "trials.log.writer", file)  # as the same folder under another mount has it
    with pytest.raises(BlockingIOError, match=f"process {without.pid} of this host"):
        locked(path)
    without.kill()
    ended(without)
    fd, lock = locked(path)
    lock.close()
    os.close(fd)
    assert not file.exists()
    file.write_text(json.dumps({"host": "node17", "place": "0-0", "pid": 4711, "since": "2026-01-01 12:00:00"}))
    with pytest.raises(BlockingIOError, match="process 4711 on host node17"):
        locked(path)


def test_that_of_another_host_which_had_a_lock_of_the_server_is_taken_over_by_who_has_it_now(tmp_path: Path) -> None:
    path, file = tmp_path / "metrics", tmp_path / "metrics.writer"
    other = {"host": "node17", "place": "0-0", "pid": 4711, "since": "2026-01-01 12:00:00", "nonce": "abc"}
    file.write_text(json.dumps({**other, "has_lock": True}))
    fd, lock = locked(path)
    assert not file.exists()
    lock.close()
    os.close(fd)
    file.write_text(json.dumps({**other, "has_lock": True}))
    refused = holder(tmp_path)  # another file, as it writes trials.log
    assert (said(refused), ended(refused)[0]) == ("has it", 0)
    file.rename(tmp_path / "trials.log.writer")
    refused = holder(tmp_path)
    assert "process 4711 on host node17" in said(refused)
    assert ended(refused)[0] == 3


def test_a_writer_that_lives_is_not_followed_whatever_its_mount_is_called(tmp_path: Path) -> None:
    first = holder(tmp_path)
    assert said(first) == "has it"
    other = tmp_path / "other"  # another inode, as another device number of the same folder would be
    other.mkdir()
    shutil.copy(tmp_path / "trials.log.writer", other)
    second = holder(other)
    assert said(second).startswith("refused:")
    assert (ended(second)[0], ended(first)[0]) == (3, 0)


def test_a_writer_shows_other_users_no_name_that_they_could_take_when_it_is_dead(tmp_path: Path) -> None:
    """Another user bound it, and so kept everybody away until somebody removed the file."""
    first = holder(tmp_path)
    assert said(first) == "has it"
    assert not names_held(first.pid)
    assert ended(first)[0] == 0


def test_a_number_that_has_passed_to_another_process_keeps_nobody_away(tmp_path: Path) -> None:
    path, file = tmp_path / "metrics", tmp_path / "metrics.writer"
    living = {"host": "here", "place": _place(), "pid": os.getpid(), "since": "2026-01-01 12:00:00", "nonce": "ab"}
    file.write_text(json.dumps({**living, "started": _started(os.getpid())}))
    with pytest.raises(BlockingIOError, match=f"process {os.getpid()} of this host"):
        locked(path)
    file.write_text(json.dumps({**living, "started": 1}))
    fd, lock = locked(path)
    lock.close()
    os.close(fd)
    assert not file.exists()


def test_a_file_that_is_not_ours_stays_and_one_that_is_no_text_is_somebodys(tmp_path: Path) -> None:
    file = tmp_path / "trials.log.writer"
    first = holder(tmp_path)
    assert said(first) == "has it"
    file.write_bytes(b"\xff\xfe")
    second = holder(tmp_path)
    assert "somebody writes there" in said(second)
    assert (ended(second)[0], ended(first)[0]) == (3, 0)
    assert file.read_bytes() == b"\xff\xfe"


def test_a_disk_that_takes_nothing_leaves_no_empty_file(tmp_path: Path) -> None:
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"
    process = holder(tmp_path, HOLD.replace("import sys", f"import sys; {full}", 1))
    code, errors = ended(process)
    assert code not in (0, 3), errors
    assert not (tmp_path / "trials.log.writer").exists()


def test_a_lock_that_is_refused_names_who_has_it(tmp_path: Path) -> None:
    fd, lock = locked(tmp_path / "metrics")
    with pytest.raises(BlockingIOError, match=f"(process {os.getpid()} of this host|another process) writes to"):
        locked(tmp_path / "metrics")
    lock.close()
    os.close(fd)


def test_a_recording_that_cannot_begin_keeps_no_lock(tmp_path: Path) -> None:
    folder, info = tmp_path / "run", RunInfo(1.0, ["train"])
    folder.mkdir()
    (folder / "run.json.new").mkdir()  # what it writes first cannot be written
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(UsageError, match="cannot be recorded"):
        RunWriter.create(folder, info)
    assert len(os.listdir("/proc/self/fd")) == before
    fd, lock = locked(folder / "metrics")
    lock.close()
    os.close(fd)


def test_a_search_says_once_that_there_are_no_locks(tmp_path: Path) -> None:
    code = REFUSE + (
        "import farandole, tests.support.search.objectives as o\n"
        f"farandole.search(o.value_only, {{'x': (0.0, 1.0)}}, 2, 1, 1, folder={str(tmp_path / 'run')!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("without locks") == 1, done.stderr
    assert not list((tmp_path / "run").glob("*.writer"))


MOUNTS = """\
22 1 0:20 / / rw,relatime - ext4 /dev/vda1 rw
36 22 0:52 / /home rw,noatime shared:1 - nfs4 server:/home rw,vers=4.2,local_lock=none,addr=10.0.0.1
37 22 0:53 / /old rw - nfs server:/old rw,vers=3,nolock,local_lock=all
38 22 0:54 / /scratch rw - lustre mgs@tcp:/scratch rw,flock
39 22 0:55 / /quick rw - lustre mgs@tcp:/quick rw,localflock
40 22 0:56 / /bee rw - beegfs beegfs_nodev rw
"""


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("0:20", ""),
        ("0:52", ""),
        ("0:53", "mounted with local_lock=all"),
        ("0:54", ""),
        ("0:55", "mounted with localflock"),
        ("0:56", "of type beegfs"),
        ("9:9", ""),
    ],
)
def test_mounts_whose_locks_are_of_one_host(device: str, words: str) -> None:
    assert local_locks(MOUNTS, device) == words
