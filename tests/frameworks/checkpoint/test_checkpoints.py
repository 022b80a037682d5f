"""Checkpoints of one process: whole or refused, whatever happened to them."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from farandole.checkpoint import Checkpoints, folder
from farandole.checkpoint.codec import Codec, put_together, share_out, take_apart
from farandole.errors import CheckpointError, UsageError
from farandole.torch import Checkpoints as TorchCheckpoints
from farandole.torch.checkpoints import TorchCodec

CODEC = TorchCodec()


def state(number: int) -> dict[str, Any]:
    """What training could have: nested, several dtypes, shared and empty storage."""
    whole = torch.arange(12, dtype=torch.float32) + number
    return {
        "model": {"weight": whole.view(3, 4), "row": whole.view(3, 4)[1], "none": torch.empty(0)},
        "optimizer": {"state": {0: {"step": torch.tensor(number), "half": torch.ones(2, dtype=torch.bfloat16)}}},
        "groups": [{"lr": 0.1, "betas": (0.9, 0.999), "name": None, "on": True}],
        "epoch": number,
    }


def same(found: Any, expected: Any) -> bool:
    """Equal, tensors bit by bit."""
    if isinstance(expected, torch.Tensor):
        return found.dtype == expected.dtype and torch.equal(found, expected)
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[key], expected[key]) for key in expected)
    if isinstance(expected, list | tuple):
        return type(found) is type(expected) and all(map(same, found, expected))
    return bool(found == expected)


def written(root: Path, *steps: int, **options: Any) -> None:
    """Save these."""
    with TorchCheckpoints(root, **options) as checkpoints:
        for step in steps:
            checkpoints.save(step, state(step))


def test_what_is_saved_is_restored(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "er"
    with TorchCheckpoints(root) as checkpoints:
        assert checkpoints.restore() is None
        saved = state(1)
        checkpoints.save(1, saved)
        saved["model"]["weight"].zero_()  # what comes after save() is not in it
        found = checkpoints.restore()
    assert found is not None
    assert (found.step, found.refused) == (1, [])
    assert same(found.state, state(1))
    files = [path for path in root.rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert max(path.stat().st_size for path in files) < 10_000, "a view must not drag its storage along"


def test_the_newest_stay_and_a_step_may_be_saved_again(tmp_path: Path) -> None:
    written(tmp_path, 1, 2, 3, 4, keep=2)
    assert folder.steps(tmp_path) == [4, 3]
    with TorchCheckpoints(tmp_path, keep=2) as checkpoints:
        checkpoints.save(4, state(40))
        found = checkpoints.restore()
        older = checkpoints.restore(step=3)
    assert found is not None
    assert same(found.state, state(40))
    assert older is not None
    assert same(older.state, state(3))
    assert list(folder.unfinished(tmp_path)) == []
    written(tmp_path, 5, 6, keep=0)
    assert folder.steps(tmp_path) == [6, 5, 4, 3]


def test_writing_does_not_keep_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    dump = TorchCodec.dump

    def waits(self: TorchCodec, content: dict[str, Any], file: Any) -> None:
        os.read(reader, 1)
        dump(self, content, file)

    monkeypatch.setattr(TorchCodec, "dump", waits)
    with TorchCheckpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state(1))  # returns, although nothing can be written yet
        assert folder.steps(tmp_path) == []
        os.write(writer, b"g")
    assert folder.steps(tmp_path) == [1]
    os.close(reader)
    os.close(writer)


@given(data=st.data())
def test_no_damage_is_restored(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as base:
        root = Path(base)
        written(root, 1, 2)
        files = sorted(path for path in folder.folder_of(root, 2).iterdir())
        target = data.draw(st.sampled_from(files))
        content = bytearray(target.read_bytes())
        kind = data.draw(st.sampled_from(["flip", "truncate", "extend", "remove", "foreign"]))
        at = data.draw(st.integers(0, len(content) - 1))
        if kind == "flip":
            content[at] ^= 1 << data.draw(st.integers(0, 7))
        changed = {"truncate": bytes(content[:at]), "extend": bytes(content) + b"x", "foreign": b"PK\3\4 other"}
        if kind == "remove":
            target.unlink()
        else:
            target.write_bytes(changed.get(kind, bytes(content)))
        with TorchCheckpoints(root) as checkpoints:
            found = checkpoints.restore()
            with pytest.raises(CheckpointError, match="step-000000000002 is not used"):
                checkpoints.restore(step=2)
        assert found is not None
        assert found.step == 1
        assert same(found.state, state(1))
        assert len(found.refused) == 1


def test_what_was_refused_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    written(tmp_path, 1)
    (tmp_path / "step-000000000007").mkdir()
    (tmp_path / "step-other").mkdir()
    with TorchCheckpoints(tmp_path) as checkpoints, pytest.raises(CheckpointError, match="step-000000000009"):
        checkpoints.restore(step=9)
    with TorchCheckpoints(tmp_path) as checkpoints:
        found = checkpoints.restore()
    assert found is not None
    assert found.step == 1
    assert "step-000000000007 is not used: its manifest cannot be read" in caplog.text


def test_a_manifest_of_another_format_is_refused(tmp_path: Path) -> None:
    written(tmp_path, 1)
    writer = folder.folder_of(tmp_path, 1)
    manifest = folder.read_manifest(writer)
    again = folder.CheckpointManifest(2, manifest.shards, "9.9", format=99)
    folder.finish(writer.rename(tmp_path / ".writing-2"), again)
    with TorchCheckpoints(tmp_path) as checkpoints, pytest.raises(CheckpointError, match="format 99"):
        checkpoints.restore(step=2)


def test_objects_are_refused_when_they_are_saved(tmp_path: Path) -> None:
    with TorchCheckpoints(tmp_path) as checkpoints:
        with pytest.raises(UsageError, match=r"state\['a'\]\[1\] is a PosixPath.*state_dict"):
            checkpoints.save(1, {"a": [1, Path()]})
        with pytest.raises(UsageError, match="keys"):
            checkpoints.save(1, {(1, 2): 3})
    with pytest.raises(UsageError, match="keep=-1"):
        TorchCheckpoints(tmp_path, keep=-1)
    with pytest.raises(UsageError, match="on_error='ignore'"):
        Checkpoints(tmp_path, CODEC, on_error="ignore")  # type: ignore[arg-type]


@contextlib.contextmanager
def file_system(options: str, root: Path) -> Iterator[Path]:
    """A small file system of its own."""
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", root], check=False, capture_output=True)
    if done.returncode:
        pytest.skip(f"mounting a file system is not allowed here: {done.stderr.decode().strip()}")
    try:
        yield root
    finally:
        subprocess.run(["umount", root], check=True)


@pytest.mark.parametrize(("options", "text"), [("size=64k", "free some space"), ("ro", "another folder")])
def test_a_full_or_read_only_disk_is_named(
    options: str, text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    big = {"weights": torch.ones(2**16)}
    with file_system(options, tmp_path) as root:
        checkpoints = TorchCheckpoints(root)
        checkpoints.save(1, big)
        with pytest.raises(CheckpointError, match=rf"step 1 in {root} was not written.*{text}"):
            checkpoints.wait()
        checkpoints.close()  # said once
        if options != "ro":
            assert list(root.iterdir()) == [], "what could not be finished must not take the space"
        with TorchCheckpoints(root, on_error="warn") as patient:
            patient.save(2, big)
        assert "training goes on" in caplog.text


SEVERAL = """
    import sys
    import torch
    from farandole.torch import Checkpoints
    print("ready", flush=True)
    for line in sys.stdin:
        with Checkpoints(sys.argv[1]) as checkpoints:
            checkpoints.save(int(line), {"weights": torch.full((20_000,), float(line))})
        print("done", flush=True)
"""


def test_several_that_write_the_same_do_no_harm_to_each_other(tmp_path: Path) -> None:
    """As workers do that are told to end while their job is between two generations, and nobody knows who is rank 0."""
    command = [sys.executable, "-c", textwrap.dedent(SEVERAL), str(tmp_path)]
    pipe = subprocess.PIPE
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe)) for _ in range(3)]
        assert [writer.stdout.readline() for writer in writers if writer.stdout] == [b"ready\n"] * 3
        for step in range(30):
            for writer in writers:
                assert writer.stdin is not None
                writer.stdin.write(b"%d\n" % step)
                writer.stdin.flush()
            assert [writer.stdout.readline() for writer in writers if writer.stdout] == [b"done\n"] * 3
            with TorchCheckpoints(tmp_path) as checkpoints:
                found = checkpoints.restore()
            assert found is not None
            assert (found.step, found.refused) == (step, [])
            assert torch.equal(found.state["weights"], torch.full((20_000,), float(step)))
    assert list(folder.unfinished(tmp_path)) == []


KILLED = """
    import sys
    import torch
    from farandole.torch import Checkpoints
    checkpoints = Checkpoints(sys.argv[1])
    for step in range(10_000):
        checkpoints.save(step, {"weights": torch.full((200_000,), float(step))})
        print(step, flush=True)
"""


def test_a_writer_that_is_killed_leaves_only_whole_ones(tmp_path: Path) -> None:
    for survived in (1, 4, 6):
        root = tmp_path / str(survived)
        command = [sys.executable, "-c", textwrap.dedent(KILLED), str(root)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if int(line) == survived:
                    process.send_signal(signal.SIGKILL)
                    break
        with TorchCheckpoints(root) as checkpoints:
            found = checkpoints.restore()
            assert found is not None
            assert found.refused == []
            assert torch.equal(found.state["weights"], torch.full((200_000,), float(found.step)))
            assert found.step >= survived - 1
            checkpoints.save(found.step, state(0))
        assert list(folder.unfinished(root)) == [], "the next writer tidies up"


def test_what_others_write_now_is_left_alone(tmp_path: Path) -> None:
    """Another job, another thread of this process, workers that leave between two generations."""
    here, own = socket.gethostname(), os.getpid()
    gone = subprocess.Popen(["true"])
    gone.wait()
    marks = (f"{here}-{own}-0123abcd", f"{here}-{os.getppid()}-0123abcd", f"{here}-{gone.pid}-0123abcd",
             "far-away-77-0123abcd", "3", "removed-0123abcd")  # fmt: skip
    made = {mark: folder.writing(tmp_path, 7, mark) for mark in marks}
    for path in made.values():
        path.mkdir()
        (path / "shard-0-of-1").touch()
    now = time.time()

    def abandoned(now: float) -> list[str]:
        return [mark for mark, path in made.items() if folder.is_abandoned(path, now)]

    with folder.in_flight(marks[0]):
        assert abandoned(now) == [marks[2], marks[5]]
        assert abandoned(now + 2 * folder.ABANDONED_S) == list(marks[2:])
        os.utime(made[marks[3]] / "shard-0-of-1", (now + 2 * folder.ABANDONED_S,) * 2)
        assert abandoned(now + 2 * folder.ABANDONED_S) == [marks[2], *marks[4:]], "a large file is written for long"
    assert abandoned(now) == [marks[0], marks[2], marks[5]]
    assert folder.new_mark() != folder.new_mark()


def test_a_folder_is_in_flight_under_whichever_path_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mark = folder.new_mark()
    with folder.in_flight(mark):
        folder.writing(Path("a"), 7, mark).mkdir(parents=True)
        assert [folder.is_abandoned(path, time.time()) for path in folder.unfinished(tmp_path / "a")] == [False]


def test_a_folder_that_cannot_be_looked_into_is_nobodys_to_remove(tmp_path: Path) -> None:
    """Another user's; a file in its place is what even root cannot list."""
    folder.writing(tmp_path, 7, "far-away-77-0123abcd").touch()
    long_after = time.time() + 2 * folder.ABANDONED_S
    assert [folder.is_abandoned(path, long_after) for path in folder.unfinished(tmp_path)] == [False]
    with TorchCheckpoints(tmp_path) as checkpoints:
        checkpoints.save(8, state(8))
    assert folder.steps(tmp_path) == [8]


def test_what_was_just_written_stays_beside_later_steps_that_are_damaged(tmp_path: Path) -> None:
    written(tmp_path, 1000)
    (folder.folder_of(tmp_path, 1000) / folder.MANIFEST).write_bytes(b"torn")
    with TorchCheckpoints(tmp_path, keep=1) as checkpoints:
        for step in (100, 200):
            checkpoints.save(step, state(step))
        checkpoints.wait()
        found = checkpoints.restore()
    assert found is not None
    assert found.step == 200
    assert folder.steps(tmp_path) == [1000, 200]


def test_a_step_that_is_saved_again_is_never_without_a_checkpoint(tmp_path: Path) -> None:
    written(tmp_path, 5)
    seen: list[bool] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            seen.append((folder.folder_of(tmp_path, 5) / folder.MANIFEST).exists())

    watcher = threading.Thread(target=watch)
    watcher.start()
    with TorchCheckpoints(tmp_path) as checkpoints:
        for _ in range(20):
            checkpoints.save(5, state(5))
    stop.set()
    watcher.join()
    assert all(seen)
    assert folder.steps(tmp_path) == [5]
    assert list(folder.unfinished(tmp_path)) == []


trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.just(torch.ones(2)),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner),
)


@given(trees)
def test_trees_come_apart_and_together(tree: Any) -> None:
    apart, tensors = take_apart(tree, CODEC.adapter)
    assert same(put_together(apart, tensors), tree)


@given(st.lists(st.integers(0, 1000)), st.integers(1, 5))
def test_shares_are_even(sizes: list[int], shares: int) -> None:
    named = {str(number): size for number, size in enumerate(sizes)}
    owned = share_out(named, shares)
    assert sorted(name for each in owned for name in each) == sorted(named)
    assert share_out(dict(reversed(named.items())), shares) == owned
    loads = [sum(named[name] for name in each) for each in owned]
    assert max(loads) - min(loads) <= max(sizes, default=0)


def test_a_save_in_a_handler_on_top_of_a_wait_is_waited_for_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler comes when the wait has looked which thread writes, and before it is through with that one."""
    made: list[Interrupted] = []
    signals, never = iter((True,)), threading.Event()

    class Interrupted(threading.Thread):
        def __init__(self, **how: Any) -> None:
            super().__init__(**how)
            made.append(self)

        def run(self) -> None:
            if len(made) == 2:
                never.wait(0.5)  # slow
            super().run()

        def join(self, timeout: float | None = None) -> None:
            super().join(timeout)
            if next(signals, False):
                checkpoints.save(2, state(2))

    monkeypatch.setattr(threading, "Thread", Interrupted)
    checkpoints = TorchCheckpoints(tmp_path)
    checkpoints.save(1, state(1))
    checkpoints.wait()
    assert [thread.is_alive() for thread in made] == [False, False]
    assert checkpoints.restore(2) is not None


@pytest.mark.parametrize("moment", ["made", "starting", "started"])
def test_a_save_in_a_handler_on_top_of_a_save_does_not_write_beside_it(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler comes when the save below it has waited for the last checkpoint, and makes and starts its thread."""
    at_once: list[int] = []
    signals, never = iter((True,)), threading.Event()

    class Interrupted(threading.Thread):
        def __init__(self, **how: Any) -> None:
            super().__init__(**how)
            self.come("made")

        def come(self, now: str) -> None:
            if now == moment and next(signals, False):
                checkpoints.save(2, state(2))

        def start(self) -> None:
            self.come("starting")
            super().start()
            self.come("started")

    class Slow(Codec):
        def dump(self, content: dict[str, Any], file: BinaryIO) -> None:
            writing.append(1)
            at_once.append(len(writing))
            never.wait(0.2)
            CODEC.dump(content, file)
            writing.pop()

        def load(self, file: BinaryIO) -> dict[str, Any]:
            return CODEC.load(file)

    writing: list[int] = []
    monkeypatch.setattr(threading, "Thread", Interrupted)
    checkpoints = Checkpoints(tmp_path, Slow(CODEC.adapter))
    checkpoints.save(1, state(1))
    checkpoints.wait()
    assert at_once == [1, 1]
    for step in (1, 2):
        assert checkpoints.restore(step) is not None


class Failing(Codec):
    """Cannot write what has the step of an error in it."""

    def __init__(self, **errors: BaseException) -> None:
        super().__init__(CODEC.adapter)
        self.errors = errors

    def dump(self, content: dict[str, Any], file: BinaryIO) -> None:
        if error := self.errors.get(content["tree"]["name"]):
            raise error
        CODEC.dump(content, file)

    def load(self, file: BinaryIO) -> dict[str, Any]:
        return CODEC.load(file)


def test_an_error_is_logged_when_it_happens_and_raised_at_the_next_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(tmp_path, Failing(a=OSError(errno.EIO, "broken disk")))
    checkpoints.save(1, {"name": "a"})
    checkpoints._join()
    assert "step 1" in caplog.text
    assert "broken disk" in caplog.text
    with pytest.raises(CheckpointError, match=r"step 1 .*broken disk"):
        checkpoints.save(2, {"name": "b"})
    checkpoints.close()
    assert folder.steps(tmp_path) == [2], "what was saved by the call that raised is written all the same"


def test_an_exit_in_the_writing_thread_is_an_error_like_another(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, Failing(a=SystemExit(3)))
    checkpoints.save(1, {"name": "a"})
    with pytest.raises(CheckpointError, match=r"step 1 .*SystemExit"):
        checkpoints.close()
    assert list(tmp_path.iterdir()) == []


def test_an_error_is_said_also_where_another_one_is_on_its_way(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def train() -> None:
        with Checkpoints(tmp_path, Failing(a=OSError(errno.EIO, "broken disk"))) as checkpoints:
            checkpoints.save(1, {"name": "a"})
            raise KeyError

    with pytest.raises(KeyError):
        train()
    assert "broken disk" in caplog.text


def test_what_each_of_several_could_not_write_is_raised_by_a_call_of_its_own(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, Failing(a=OSError(errno.EIO, "first"), b=OSError(errno.EIO, "second")))
    checkpoints.save(1, {"name": "a"})
    with pytest.raises(CheckpointError, match="first"):
        checkpoints.save(2, {"name": "b"})
    with pytest.raises(CheckpointError, match="second"):
        checkpoints.close()
    checkpoints.close()


@pytest.mark.parametrize("step", [600.0, -1, "7", None, np.float32(3)], ids=repr)
def test_a_step_that_is_no_whole_number_is_refused(step: Any, tmp_path: Path) -> None:
    with TorchCheckpoints(tmp_path) as checkpoints:
        with pytest.raises(UsageError, match=r"step=.*: give a whole number, 0 or more"):
            checkpoints.save(step, state(1))
        if step is not None:
            with pytest.raises(UsageError, match=r"step=.*: give a whole number, 0 or more"):
                checkpoints.restore(step)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", [np.int64(7), torch.tensor(7)], ids=repr)
def test_a_step_may_be_a_whole_number_of_numpy_or_torch(step: Any, tmp_path: Path) -> None:
    with TorchCheckpoints(tmp_path) as checkpoints:
        checkpoints.save(step, state(7))
        for asked in (None, step, 7):
            found = checkpoints.restore(asked)
            assert found is not None
            assert (type(found.step), found.step) == (int, 7)


def test_who_restores_while_another_writes_finds_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another job saves the next step, and removes the one before, when this one has just read the manifest of that."""
    written(tmp_path, 1)
    read, later = folder.read_manifest, iter([2, 3])

    def overtaken(path: Path) -> folder.CheckpointManifest:
        manifest = read(path)
        for step in later:
            written(tmp_path, step, keep=1)
            break
        return manifest

    monkeypatch.setattr(folder, "read_manifest", overtaken)
    with TorchCheckpoints(tmp_path) as checkpoints:
        found = checkpoints.restore()
    assert found is not None
    assert (found.step, found.refused) == (3, [])
    assert same(found.state, state(3))
