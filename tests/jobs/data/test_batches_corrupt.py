"""Corrupt samples that are left out: named once, counted, without weight, the same at any size and after a resume."""

from __future__ import annotations

import logging
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from farandole.data.loading.augment import Crop, MixUp
from farandole.data.loading.batches import Batches
from farandole.data.loading.report import input_log, report
from farandole.errors import DataError, UsageError
from farandole.testing.rank import RankContext
from workbench.jobs import run_job

BAD = frozenset([3, 11, 12, 30])


class Numbers:
    """Sample i is i, and those in ``bad`` cannot be decoded."""

    def __init__(self, length: int = 40, bad: Any = BAD) -> None:
        self.length, self.bad, self.reads = length, bad, Counter[int]()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        self.reads[index] += 1
        if index in self.bad:
            raise ValueError("no header")
        return np.full(3, index, np.float64)


@pytest.fixture(autouse=True)
def _fresh_log() -> Any:
    input_log.corrupt.clear()
    yield
    input_log.corrupt.clear()


def values(batches: Any) -> list[list[int]]:
    return [[int(row[0]) for row in batch] for batch in batches]


@pytest.mark.parametrize("how", [{"threads": 1}, {"threads": 3}, {"processes": 2}])
def test_corrupt_samples_are_left_out_named_once_and_counted(how: Any, caplog: pytest.LogCaptureFixture) -> None:
    batches = Batches(Numbers(), 4, shuffle=False, on_corrupt="skip", **how)
    expected = [[i for i in range(first, first + 4) if i not in BAD] for first in range(0, 40, 4)]
    with caplog.at_level(logging.WARNING, "farandole"):
        for epoch in range(2):
            batches.set_epoch(epoch)
            assert values(batches) == expected
            assert len(batches.sampler.cursor.in_flight) == 10
            batches.commit()
            assert batches.state_dict()["left_out"] == batches.sampler.cursor.left_out == len(BAD)
    batches.close()
    told = sorted(said for record in caplog.records if "is left out" in (said := record.getMessage()))
    assert told == sorted(f"sample {i} is left out, because it is corrupt: ValueError: no header" for i in BAD)
    found = report()
    assert found.corrupt == [f"sample {i}" for i in (3, 11, 12, 30)]
    assert str(found).endswith(" 4 corrupt samples were left out: sample 3, sample 11, sample 12, sample 30.")


def test_a_batch_of_corrupt_samples_alone_is_another_sample_of_weight_0() -> None:
    batches = Batches(Numbers(bad={4, 5, 7}), 2, shuffle=False, on_corrupt="skip", threads=2)
    cursor = batches.sampler.cursor
    for step, batch in enumerate(batches):
        assert len(batch) == (1 if step in (2, 3) else 2)
        assert cursor.weigh() == (0.0 if step == 2 else 1.0)
        if step == 2:
            assert int(batch[0, 0]) not in (4, 5, 7)
        batches.commit()
    assert (cursor.position, cursor.left_out) == (40, 3)
    with pytest.raises(DataError, match=r"^sample [01]: ValueError: no header, as all others that were tried$"):
        list(Batches(Numbers(bad=range(40)), 2, shuffle=False, on_corrupt="skip"))


def test_more_than_a_few_raise_because_the_data_set_is_broken() -> None:
    batches = Batches(Numbers(1000, bad=range(0, 1000, 50)), 10, shuffle=False, on_corrupt="skip")
    seen: list[int] = []
    words = r"11 samples of epoch 0 are corrupt, .* leaves out 10 of 1000 at most: .* sample 500: ValueError: no header"

    def train() -> None:
        for batch in batches:
            seen.extend(int(row[0]) for row in batch)
            batches.commit()

    with pytest.raises(DataError, match=words):
        train()
    assert seen == [i for i in range(500) if i % 50]


def test_what_is_no_damage_raises() -> None:
    class Elsewhere(Numbers):
        def __getitem__(self, index: int) -> Any:
            raise FileNotFoundError(2, "No such file or directory", f"/set/{index}")

    with pytest.raises(DataError, match="FileNotFoundError"):
        list(Batches(Elsewhere(), 4, on_corrupt="skip"))
    with pytest.raises(DataError, match=r"Crop\(\(5,\)\) of a sample of shape \(3,\)"):
        list(Batches(Numbers(bad=()), 4, augment=Crop((5,)), on_corrupt="skip"))
    with pytest.raises(DataError, match="sample 3: ValueError: no header"):
        list(Batches(Numbers(), 4, shuffle=False))
    with pytest.raises(UsageError, match="on_corrupt='drop'"):
        Batches(Numbers(), 4, on_corrupt="drop")
    with pytest.raises(UsageError, match="without whole=True"):
        Batches(Numbers(), global_batch_size=4, whole=True, on_corrupt="skip")


def test_a_corrupt_partner_costs_no_sample() -> None:
    batches = Batches(Numbers(), 4, shuffle=False, on_corrupt="skip", augment=MixUp(0.4))
    mixed = np.concatenate([*batches])[:, 0]
    assert len(mixed) == 40 - len(BAD)
    loose = Batches(Numbers(bad=()), 4, shuffle=False, augment=MixUp(0.4))
    whole = np.delete(np.concatenate([*loose])[:, 0], [*BAD])
    is_same = np.isclose(mixed, whole)
    alone = np.delete(np.arange(40), [*BAD])[~is_same]
    assert len(alone) > 0  # whose partner is corrupt: mixed with themselves
    assert np.allclose(mixed[~is_same], alone)


class Ledger:
    """A training that is stopped anywhere and resumed at another size: what the gradient has seen, and what is done."""

    def __init__(self, sizes: list[int], kills: list[int]) -> None:
        self.seen: list[tuple[list[int], float]] = []
        self.done: list[int] = []
        state: dict[str, Any] | None = None
        for size, steps in zip(sizes, kills, strict=True):
            ranks = [Batches(Numbers(), global_batch_size=7, seed=2, threads=2, on_corrupt="skip") for _ in range(size)]
            for rank, batches in enumerate(ranks):
                batches.sampler.cursor.rearrange(rank, size)
                if state is not None:
                    batches.load_state_dict(state)
            loops = [iter(batches) for batches in ranks]
            for _ in range(steps):
                found = [next(loop, None) for loop in loops]
                if found[0] is not None:
                    self._step(ranks, found)
            for loop in loops:
                next(loop, None)  # a step under way, that is never committed
                loop.close()  # type: ignore[attr-defined]
            state = ranks[0].state_dict()
        self.left_out = state["left_out"] if state else 0

    def _step(self, ranks: list[Batches], found: list[Any]) -> None:
        cursors = [batches.sampler.cursor for batches in ranks]
        left_out = [cursor.in_flight[-1].left_out[0] for cursor in cursors]
        for cursor, mine in zip(cursors, left_out, strict=True):
            cursor.leave_out(mine, sum(left_out))  # what ranks of a job tell each other
        means = [cursor.weigh() * float(batch[:, 0].mean()) for cursor, batch in zip(cursors, found, strict=True)]
        self.done += [i for cursor in cursors for i in cursor.own_indices()]
        rows = [int(i) for batch, cursor in zip(found, cursors, strict=True) if cursor.weigh() for i in batch[:, 0]]
        self.seen.append((rows, sum(means) / len(means)))
        for batches in ranks:
            batches.commit()


def test_gradients_are_means_of_what_is_left_wherever_it_was_stopped() -> None:
    dull = Ledger([1], [6])
    assert sorted(dull.done) == [*range(40)]
    assert sorted(i for rows, _ in dull.seen for i in rows) == sorted({*range(40)} - BAD)
    chance = random.Random(0)
    for _ in range(8):
        sizes = [chance.randint(1, 3) for _ in range(3)]
        kills = [chance.randint(0, 3), chance.randint(0, 3), 6]
        found = Ledger(sizes, kills)
        assert found.done == dull.done, (sizes, kills)
        assert [rows for rows, _ in found.seen] == [rows for rows, _ in dull.seen]
        assert [mean for _, mean in found.seen] == pytest.approx([np.mean(rows) for rows, _ in dull.seen])
        assert found.left_out == dull.left_out == len(BAD)


def on_ranks(member: RankContext, bad: Any, length: int) -> Any:
    import farandole.numpy as hvd

    hvd.init()
    warned: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: warned.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("farandole").addHandler(handler)
    batches = Batches(Numbers(length, bad), global_batch_size=4, shuffle=False, threads=2, on_corrupt="skip")
    means: list[float] = []
    try:
        for batch in batches:
            mine = batches.sampler.cursor.weigh() * batch[:, 0].mean()
            means.append(float(hvd.allreduce(np.array([mine]), name="mean")[0]))
            batches.commit()
    except DataError as error:
        return str(error)
    found = report()
    hvd.shutdown()
    return means, warned, found.corrupt


def test_ranks_tell_each_other_what_they_left_out() -> None:
    """The second batch loses a sample of rank 0, the third all of rank 1, the last its only one, which both load."""
    bad = {4, 10, 11, 20}
    (means, first, every), (others, second, same) = run_job(on_ranks, 2, bad, 21)
    left = [[i for i in range(start, min(21, start + 4)) if i not in bad] for start in range(0, 21, 4)]
    assert means == others == pytest.approx([np.mean(batch) if batch else 0.0 for batch in left])
    assert every == same == ["sample 4", "sample 10", "sample 11", "sample 20"]
    assert [words.split(" is")[0] for words in first + second] == ["sample 4", "sample 20", "sample 10", "sample 11"]
    one, other = run_job(on_ranks, 2, {1, 2, 4, 9, 12, 17}, 20)
    assert one == other
    assert one.startswith("5 samples of epoch 0 are corrupt")
