"""Predictions by one process: what is written, gone on with, refused, and found damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farandole.errors import DataError, UsageError
from farandole.inference import BlockPlan, Draw, opened, predict
from farandole.inference.records import Answer, awaited, leased, read_record

X = np.arange(60, dtype="float32").reshape(20, 3)
SMALL: dict[str, Any] = {"batch_size": 3, "block_batches": 2}


def noisy(batch: Any, draw: Draw) -> dict[str, Any]:
    return {"twice": 2 * batch, "noise": np.array([draw.rng(i).normal() for i in draw.samples])}


def test_answers_are_those_of_a_loop(tmp_path: Path) -> None:
    found = predict(noisy, X, tmp_path / "out", seed=5, **SMALL)
    assert list(found) == ["twice", "noise"]
    assert (found["twice"][:] == 2 * X).all()
    assert found["noise"][:].tolist() == [Draw(5, range(i, i + 1)).rng(i).normal() for i in range(20)]
    found.verify()
    again = opened(tmp_path / "out")
    assert again.plan == BlockPlan(20, 3, 2, 5)
    assert (again["twice"][7:9] == 2 * X[7:9]).all()
    assert [answer.digests.keys() for answer in again.answers()] == [{"twice", "noise"}] * 4
    with pytest.raises(KeyError, match="twice, noise"):
        again["mean"]


@settings(max_examples=25)
@given(samples=st.integers(1, 30), batch=st.integers(1, 7), blocks=st.integers(1, 4), fails=st.integers(0, 29))
def test_what_failed_goes_on_and_answers_no_block_again(
    tmp_path_factory: pytest.TempPathFactory, samples: int, batch: int, blocks: int, fails: int
) -> None:
    output, asked = tmp_path_factory.mktemp("run") / "out", list[float]()
    fails, size = fails % samples, batch * blocks

    def answer(content: Any) -> Any:
        is_first = fails not in asked
        asked.extend(content)
        if fails in content and is_first:
            raise ZeroDivisionError
        return content

    def call() -> Any:
        return predict(answer, np.arange(samples), output, batch_size=batch, block_batches=blocks)

    with pytest.raises(ZeroDivisionError):
        call()
    with pytest.raises(DataError, match=f"answers to {fails // size * size} of {samples} samples"):
        opened(output)
    for _ in range(2):
        assert call()["prediction"].tolist() == list(range(samples))
    under_way = fails // size * size
    asked_twice = range(under_way, min(samples, fails - (fails - under_way) % batch + batch))
    assert sorted(asked) == sorted([*range(samples), *asked_twice])


def test_another_plan_or_model_is_refused(tmp_path: Path) -> None:
    predict(np.copy, X, tmp_path / "out", key="first", **SMALL)
    with pytest.raises(UsageError, match="seed=0 and not 1, key='first' and not 'second'"):
        predict(np.copy, X, tmp_path / "out", key="second", seed=1, **SMALL)
    for file in (tmp_path / "out").iterdir():
        file.unlink()
    (tmp_path / "out").rmdir()
    with pytest.raises(UsageError, match=r"remove out\.blocks"):
        predict(np.copy, X, tmp_path / "out", key="first", **SMALL)
    with pytest.raises(DataError, match="no predictions"):
        opened(tmp_path / "other")


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda batch: batch[:1], "needs a row for each"),
        (lambda batch: (batch, batch), "dict of arrays by name"),
        (lambda batch: {"a/b": batch}, "under a plain name"),
        (lambda batch: batch.astype(object), "give numbers"),
        (lambda batch: batch if batch[0, 0] < 20 else batch.astype("f8"), "same fields"),
        (lambda batch: {"a" if batch[0, 0] < 5 else "b": batch}, "not always the same"),
    ],
)
def test_answers_of_another_form_are_refused(tmp_path: Path, fn: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        predict(fn, X, tmp_path / "out", **SMALL)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"output": "out.csv"}, r"NAME\.zarr"),
        ({"workers": 0}, "at least 1"),
        ({"hosts": "a:4"}, "give workers="),
        ({"batch_size": 0}, "at least 1"),
    ],
)
def test_arguments_that_cannot_be_are_refused(tmp_path: Path, arguments: dict[str, Any], words: str) -> None:
    arguments = {**arguments, "output": tmp_path / arguments.get("output", "out")}
    with pytest.raises(UsageError, match=words):
        predict(np.copy, X, **arguments)
    assert not list(tmp_path.iterdir())


def test_damage_is_found_and_one_block_made_anew(tmp_path: Path) -> None:
    found, asked = predict(np.copy, X, tmp_path / "out", **SMALL), list[float]()
    array = np.load(tmp_path / "out" / "prediction.npy", mmap_mode="r+")
    array[7, 1] += 1
    array.flush()
    with pytest.raises(DataError, match=r"range\(6, 12\).*remove block-000001 and finished"):
        found.verify()
    for name in ("block-000001", "finished"):
        (tmp_path / "out.blocks" / name).unlink()

    def answer(batch: Any) -> Any:
        asked.extend(batch[:, 0] / 3)
        return batch

    predict(answer, X, tmp_path / "out", **SMALL).verify()
    assert asked == list(range(6, 12))


def test_one_at_a_time_has_a_lease(tmp_path: Path) -> None:
    path, answer = tmp_path / "block", Answer({"mean": "00"}, "host", 1, 0.5)

    def impatient() -> None:
        raise KeyboardInterrupt

    with leased(path) as lease:
        assert lease.read(Answer) is None
        with pytest.raises(BlockingIOError, match="writes to"), leased(path):
            pass
        with pytest.raises(KeyboardInterrupt), awaited(path, impatient):
            pass
        lease.write(answer)
    assert read_record(path, Answer) == answer
    path.write_bytes(path.read_bytes()[:-1])  # its writer was killed before the line was whole
    with leased(path) as lease:
        assert lease.read(Answer) is None
        lease.write(answer)
    assert read_record(path, Answer) == answer
    assert read_record(tmp_path / "none", Answer) is None
