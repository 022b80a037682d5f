"""Predictions by workers that come, go and die: the bits of one process, and each sample answered once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from zarr.core.sync import cleanup_resources

from farandole.errors import RemoteError
from farandole.inference import Draw, opened, predict
from farandole.inference.outputs import Hdf5Output
from farandole.inference.records import Answer, read_record
from tests.support.inference.predicting import BATCH, BLOCK_BATCHES, LAST, SAMPLES
from tests.support.launching import Finished, Launch, run_to_end
from tests.support.paths import ROOT
from tests.support.patience import PATIENCE_S

PROGRAM = ROOT / "tests" / "support" / "inference" / "predicting.py"
BLOCK = BATCH * BLOCK_BATCHES
FORMATS = pytest.mark.parametrize("name", ["out", "out.zarr", "out.h5"])


@pytest.fixture(autouse=True)
def without_threads_of_zarr() -> Iterator[None]:
    """End the event loop that the package starts."""
    yield
    cleanup_resources()


def run(output: Path, *arguments: str) -> Finished:
    """Run the program to its end, however that is."""
    return run_to_end([sys.executable, str(PROGRAM), str(output), *arguments], output.parent, 120.0)


def reads(folder: Path) -> Counter[int]:
    """How often each sample was read."""
    return Counter(int(line.split()[0]) for line in (folder / "reads").read_text().splitlines())


def recorded(output: Path) -> set[int]:
    """Samples of blocks that have records."""
    folder = output.with_name(f"{output.name}.blocks")
    blocks = [i for i in range(SAMPLES // BLOCK) if read_record(folder / f"block-{i:06d}", Answer) is not None]
    return {sample for block in blocks for sample in range(block * BLOCK, (block + 1) * BLOCK)}


def check(output: Path) -> None:
    """Compare the answers with those of a loop."""
    found = opened(output)
    assert found["twice"][:].tolist() == [2 * i for i in range(SAMPLES)]
    assert found["noise"][:].tolist() == [Draw(7, range(i, i + 1)).rng(i).normal() for i in range(SAMPLES)]
    found.verify()


@FORMATS
def test_workers_give_the_bits_of_one_process(tmp_path: Path, name: str) -> None:
    """Of sums of float32, whose bits depend on how many are added up at once."""
    x = np.random.default_rng(0).normal(size=(500, 40)).astype("float32")
    weights = np.random.default_rng(1).normal(size=(40, 7)).astype("float32")

    def answer(batch: Any, draw: Draw) -> Any:
        return np.tanh(batch @ weights) + np.array([draw.rng(i).normal(size=7) for i in draw.samples], "float32")

    plain = [answer(x[i : i + 16], Draw(3, range(i, min(i + 16, 500)))) for i in range(0, 500, 16)]
    for workers in (None, 1, 2, 3):
        output = tmp_path / f"{workers}" / name
        found = predict(answer, x, output, workers=workers, batch_size=16, block_batches=3, seed=3)
        assert found["prediction"][:].tobytes() == np.concatenate(plain).tobytes()
        found.verify()


@pytest.mark.parametrize(
    ("name", "number"),
    [("out", signal.SIGKILL), ("out.zarr", signal.SIGKILL), ("out.h5", signal.SIGKILL), ("out.zarr", signal.SIGTERM)],
)
def test_a_worker_that_dies_costs_one_block(tmp_path: Path, name: str, number: int) -> None:
    run(tmp_path / name, "--workers", "2", "--end", "worker", "--signal", str(int(number))).ok()
    check(tmp_path / name)
    times = reads(tmp_path)
    assert set(times) == set(range(SAMPLES))
    again = {sample for sample, number in times.items() if number > 1}
    if number == signal.SIGTERM:  # it leaves when its block is done
        assert not again
    else:
        assert LAST in again
        assert {sample // BLOCK for sample in again} == {LAST // BLOCK}
        assert max(times.values()) == 2


@FORMATS
def test_a_job_that_is_killed_goes_on_where_it_was(tmp_path: Path, name: str) -> None:
    output = tmp_path / name
    assert run(output, "--workers", "2", "--end", "job").code == -signal.SIGKILL
    before, done = reads(tmp_path), recorded(output)
    assert 0 < len(done) < SAMPLES
    assert not output.exists() or name != "out.h5"
    run(output, "--workers", "3").ok()
    check(output)
    after = reads(tmp_path) - before
    assert set(after) == set(range(SAMPLES)) - done
    assert set(after.values()) == {1}
    run(output, "--workers", "2").ok()
    assert reads(tmp_path) == before + after


def test_processes_that_know_nothing_of_each_other_share_the_work(tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), str(tmp_path / "out.zarr"), "--read-s", "0.02"]
    others = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    told = {each.communicate(timeout=PATIENCE_S)[0].splitlines()[0] for each in others}
    assert told in ({"answered by 3"}, {"answered by 2"})  # one may have come when all was done
    check(tmp_path / "out.zarr")
    assert set(reads(tmp_path).values()) == {1}


@pytest.mark.parametrize("options", [(), ("--min-np", "1")], ids=["static", "elastic"])
def test_ranks_of_a_job_share_the_work(tmp_path: Path, launch: Launch, options: tuple[str, ...]) -> None:
    arguments = [str(tmp_path / "out.zarr"), "--in-job", *(["--end", "worker"] if options else [])]
    done = launch(2, PROGRAM, options=options, arguments=arguments).ok()
    told = [line for line in done.lines() if line.startswith("answered by")]
    # In the elastic one a worker comes in the place of the other, or too late.
    assert (set(told) <= {"answered by 2", "answered by 3"}) if options else (told == ["answered by 2"] * 2)
    assert told
    check(tmp_path / "out.zarr")
    assert {sample // BLOCK for sample, times in reads(tmp_path).items() if times > 1} == (
        {LAST // BLOCK} if options else set()
    )


def test_what_the_function_raises_is_raised_here_and_the_rest_is_answered(tmp_path: Path) -> None:
    def answer(batch: Any) -> Any:
        if 33 in batch:
            raise ZeroDivisionError("sample 33")
        return batch

    x = np.arange(60)
    with pytest.raises(RemoteError, match="sample 33"):
        predict(answer, x, tmp_path / "out", workers=2, batch_size=3, block_batches=2)
    found = predict(np.copy, x, tmp_path / "out", batch_size=3, block_batches=2)
    assert found["prediction"].tolist() == x.tolist()


def test_a_file_of_parts_is_put_together_again_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class KilledError(BaseException):
        pass

    def killed(_: Hdf5Output) -> None:
        raise KilledError

    monkeypatch.setattr(Hdf5Output, "tidy", killed)
    with pytest.raises(KilledError):
        predict(np.copy, np.arange(60), tmp_path / "out.h5", batch_size=7)
    monkeypatch.undo()
    (tmp_path / "out.h5.blocks" / "finished").write_text('{"samp')  # killed while it was written
    (tmp_path / "out.h5").write_bytes(b"")
    found = predict(np.copy, np.arange(60), tmp_path / "out.h5", batch_size=7)
    assert found["prediction"][:].tolist() == list(range(60))
    assert not (tmp_path / "out.h5.blocks" / "parts").exists()
