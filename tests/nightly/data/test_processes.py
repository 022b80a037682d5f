"""Processes that decode: the same samples as in threads, errors and deaths by name, nothing left."""

from __future__ import annotations

import gc
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farandole.data.formats.images import images
from farandole.data.loading.batches import Batches
from farandole.errors import DataError, UsageError


class Decoded:
    """Samples that grow, told from one another, and named by the process that decodes them."""

    holds_lock = True

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> Any:
        if index == 25:
            raise KeyError("no such variable")
        return (
            np.arange(index * 1000, dtype=np.int32),
            np.asfortranarray(np.full((2, 3), index)),
            f"{os.getpid()}",
            b"x",
        )

    def path_of(self, index: int) -> str:
        return "/set/all.h5"


@pytest.fixture
def batches() -> Any:
    made = Batches(Decoded(), 1, shuffle=False, processes=2)
    yield made
    made.close()


def test_a_data_set_that_holds_a_lock_is_decoded_in_processes() -> None:
    cpus = len(os.sched_getaffinity(0))
    assert Batches(Decoded(), 1, threads=64).processes == min(64, cpus)
    assert Batches(Decoded(), 1, processes=0).processes == 0
    assert Batches(range(3), 1).processes == 0


def test_samples_are_those_of_threads_and_arrays_lie_in_order(batches: Any) -> None:
    pids: set[str] = set()
    for index, (numbers, matrix, pid, raw) in enumerate(batches.load([[i] for i in range(20)])):
        assert np.array_equal(numbers, [np.arange(index * 1000)])
        assert np.array_equal(matrix, np.full((1, 2, 3), index))
        assert raw == [b"x"]
        pids.add(pid[0])
    assert str(os.getpid()) not in pids
    assert 1 <= len(pids) <= 2
    again = {pid[0] for _, _, pid, _ in batches.load([[1], [2]])}
    assert again <= {str(each._process.pid) for each in batches._decoders[1].loads}  # an epoch starts no others


def test_an_error_comes_with_sample_file_process_and_traceback(batches: Any) -> None:
    with pytest.raises(DataError, match=r"^sample 25 \(/set/all.h5\): KeyError: 'no such variable'$") as caught:
        list(batches.load([[24], [25]]))
    assert "in process" in str(caught.value.__cause__)
    assert "test_processes.py" in str(caught.value.__cause__)
    assert [b[1][0, 0, 0] for b in batches.load([[3], [4]])] == [3, 4]  # the process has survived its error


def test_a_damaged_file_is_told_of_in_a_few_lines(tmp_path: Path) -> None:
    (tmp_path / "0.png").write_bytes(b"\x89PNG\r\n\x1a\nrubbish")
    batches = Batches(images(tmp_path), 1, processes=1)
    with pytest.raises(DataError, match=f"^sample 0: {tmp_path}/0.png cannot be read as an image") as caught:
        next(iter(batches))
    batches.close()
    told = str(caught.value.__cause__)
    assert told.startswith("in process 1 of 1\nUnidentifiedImageError: ")
    assert len(told.splitlines()) == 2


class Dying:
    """The process that gets sample 5 is killed; in the next one it is not."""

    def __init__(self, marker: Any) -> None:
        self.marker = marker

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        if index == 5 and not os.path.exists(self.marker):
            open(self.marker, "x").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return index


def test_a_process_that_dies_is_named_at_once_and_replaced_by_the_next_iteration(tmp_path: Any) -> None:
    batches = Batches(Dying(tmp_path / "died"), 2, shuffle=False, processes=2)
    with pytest.raises(
        DataError, match=r"sample 5: process [12] of 2 that decode has ended \(pid \d+, by SIGKILL; .* fewer"
    ):
        list(batches)
    batches.set_epoch(1)
    assert [n for batch in batches for n in batch] == [*range(10)]
    batches.close()


def test_processes_end_with_their_batches() -> None:
    batches = Batches(range(20), 2, shuffle=False, processes=2)
    assert sum(map(len, batches)) == 20
    pids = [each._process.pid for each in batches._decoders[1].loads]  # type: ignore[index]
    del batches
    gc.collect()
    assert all(not os.path.exists(f"/proc/{pid}") for pid in pids)


def test_what_cannot_be_pickled_says_what_to_type() -> None:
    with pytest.raises(UsageError, match=r"processes=2: list and augment= must be picklable .* threads=2 takes them"):
        list(Batches([threading.Lock()], 1, processes=2))
