"""Batches of a data set: the same at any number of threads and processes, exactly once, in memory that stays right."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from farandole.data.loading.batches import Batches
from farandole.data.loading.report import input_log
from farandole.elastic.worker.epoch_sampler import EpochSampler
from farandole.errors import DataError, UsageError
from tests.support.data.batch_samples import STEPS, Images, plain


class Pair(NamedTuple):
    x: Any
    y: Any


@pytest.fixture(scope="module")
def reference() -> list[Any]:
    return [plain(batch) for batch in Batches(Images(), 8, seed=3, augment=STEPS, threads=1)]


@pytest.mark.parametrize("workers", [{"threads": 2}, {"threads": 3, "ahead": 5}, {"processes": 2}, {"threads": 8}])
def test_batches_are_the_same_at_any_number_of_workers(reference: list[Any], workers: dict[str, Any]) -> None:
    batches = Batches(Images(), 8, seed=3, augment=STEPS, **workers)
    assert len(batches) == len(reference) == 7
    assert [plain(batch) for batch in batches] == reference
    batches.set_epoch(1)
    other = [plain(batch) for batch in batches]
    batches.close()
    assert sorted(n for batch in other for n in batch["label"][1]) == [*range(53)]
    assert other != reference


def test_structures_are_those_of_the_samples() -> None:
    masked = np.ma.MaskedArray([1.0, 2.0], [True, False])
    texts = [{"text": "ab"[i % 2], "raw": b"x", "flag": True, "none": None} for i in range(4)]
    samples = [(np.float16(i), texts[i], [i, 2.5], Pair(masked, np.int8(i))) for i in range(4)]
    [(numbers, fields, both, pair)] = Batches(samples, 4, shuffle=False, threads=3)
    assert plain(numbers) == ("<f2", [0.0, 1.0, 2.0, 3.0])
    assert fields["text"] == ["a", "b", "a", "b"]
    assert (fields["raw"], fields["none"], plain(fields["flag"])) == ([b"x"] * 4, [None] * 4, ("|b1", [True] * 4))
    assert isinstance(both, list)
    assert plain(both[0]) == ("<i8", [0, 1, 2, 3])
    assert isinstance(pair, Pair)
    assert plain(pair.y) == ("|i1", [0, 1, 2, 3])
    assert isinstance(pair.x, np.ma.MaskedArray)
    assert pair.x.mask.tolist() == [[True, False]] * 4


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (np.zeros((3, 2), np.float32), r"float32 \(2, 3\) and float32 \(3, 2\)"),
        (np.zeros((2, 3), np.float64), r"float32 \(2, 3\) and float64 \(2, 3\)"),
    ],
)
def test_samples_of_different_forms_are_refused_with_both_numbers(other: Any, difference: str) -> None:
    samples = [{"x": np.zeros((2, 3), np.float32)}, {"x": np.zeros((2, 3), np.float32)}, {"x": other}]
    with pytest.raises(DataError, match=rf"samples 0 and 2 of one batch differ in \['x'\]: {difference}. .*=Crop"):
        list(Batches(samples, 3, shuffle=False, threads=1))


def test_kept_batches_stay_right_and_memory_is_used_again() -> None:
    batches = Batches(Images(400), 8, shuffle=False, threads=3)
    views = [batch["image"][2:, 1:3].transpose(0, 2, 1, 3) for batch in batches]  # of each batch only a view is kept
    for number, view in enumerate(views):
        assert view[:, 0, 0, 0].tolist() == [*range(8 * number + 2, 8 * number + 8)]
    made = batches._memory.allocated
    assert made == len(views) == 50
    del view, views
    gc.collect()
    for epoch in range(1, 4):
        batches.set_epoch(epoch)
        for number, batch in enumerate(batches):
            assert batch["image"][:, 0, 0, 0].tolist() == [*range(8 * number, 8 * number + 8)]
    assert batches._memory.allocated == made


class Ledger:
    """Training that is stopped anywhere, and resumed at another size: which samples were committed."""

    def __init__(self, length: int, sizes: list[int], kills: list[int]) -> None:
        self.committed: list[int] = []
        state: dict[str, Any] | None = None
        for size, steps in zip(sizes, kills, strict=True):
            ranks = [Batches(range(length), global_batch_size=7, seed=2, threads=2) for _ in range(size)]
            for rank, batches in enumerate(ranks):
                batches.sampler.cursor.rearrange(rank, size)
                if state is not None:
                    batches.load_state_dict(state)
            loops = [iter(batches) for batches in ranks]
            for _ in range(steps):
                if all(next(loop, None) is not None for loop in loops):
                    self.committed += [i for batches in ranks for i in batches.sampler.cursor.own_indices()]
                    for batches in ranks:
                        batches.commit()
            for loop in loops:
                next(loop, None)  # a step under way, that is never committed
                loop.close()  # type: ignore[attr-defined]
            state = ranks[0].state_dict()


def test_the_ledger_is_that_of_one_dull_run_wherever_it_was_stopped() -> None:
    dull = Ledger(40, [1], [6]).committed
    assert sorted(dull) == [*range(40)]
    chance = random.Random(0)
    for _ in range(10):
        sizes = [chance.randint(1, 3) for _ in range(3)]
        kills = [chance.randint(0, 3), chance.randint(0, 3), 6]
        assert Ledger(40, sizes, kills).committed == dull, (sizes, kills)


def test_the_state_of_another_order_or_data_set_is_refused() -> None:
    state = Batches(range(10), 2, shuffle=False).state_dict()
    with pytest.raises(UsageError, match="order 'sequential', and these batches have 'exact-1'"):
        Batches(range(10), 2).load_state_dict(state)
    with pytest.raises(UsageError, match="a data set of 10 samples"):
        Batches(range(11), 2, shuffle=False).load_state_dict(state)


def test_an_epoch_that_is_handed_out_asks_for_the_next() -> None:
    batches = Batches(range(10), 4, threads=2)
    assert sum(map(len, batches)) == 10
    with pytest.raises(UsageError, match=r"call set_epoch\(1\)"):
        next(iter(batches))
    batches.commit()
    assert [*batches] == []  # all of it is done, as a job finds that is resumed there


def test_whole_batches_for_virtual_workers() -> None:
    sampler = EpochSampler(range(10), shuffle=False)
    sampler.cursor.rearrange(1, 2)
    assert [b.tolist() for b in Batches(range(10), global_batch_size=5, sampler=sampler, whole=True)] == [
        [0, 1, 2, 3, 4], [5, 6, 7, 8, 9],
    ]  # fmt: skip


def test_fake_input_repeats_a_batch_of_each_length() -> None:
    fake = Batches(range(14), global_batch_size=4, shuffle=False, fake=True)
    assert [b.tolist() for b in fake] == [[0, 1, 2, 3]] * 3 + [[12, 13]]
    fake.commit()
    assert len(fake) == 0


def test_wrong_arguments_say_what_to_give() -> None:
    with pytest.raises(UsageError, match="give one of them"):
        Batches(range(3))
    with pytest.raises(UsageError, match="the sampler decides"):
        Batches(range(3), 1, sampler=EpochSampler(range(3)), seed=4)
    with pytest.raises(UsageError, match="threads=0"):
        Batches(range(3), 1, threads=0)


class Fields:
    """Samples that are read into arrays which are there already."""

    calls = 0

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return np.full((4, 2), index, np.int16), index

    def read_into(self, index: int, arrays: list[Any]) -> bool:
        image, label = arrays
        image[...], label[...] = index, index
        type(self).calls += 1
        return index % 2 == 0


def test_samples_are_read_into_batch_memory_where_the_data_set_can() -> None:
    for images, labels in Batches(Fields(), 8, shuffle=False, threads=2):
        assert images[:, 0, 0].tolist() == labels.tolist() == images[:, 3, 1].tolist()
    assert Fields.calls >= 64 - 8 * 2
    assert input_log.steps[-1].samples == 8


class Table(Fields):
    """Batches, too, are read by one call."""

    def read_batch(self, indices: Any, columns: list[Any]) -> bool:
        images, labels = columns
        images[...] = np.reshape(indices, (-1, 1, 1))
        labels[...] = indices
        return True


def test_an_epoch_reads_whole_batches_from_the_first_on_if_the_one_before_has_shown_that_it_can() -> None:
    batches = Batches(Table(), 8, threads=2)
    for epoch in range(20):  # a wait of a thread may look like slow storage
        batches.set_epoch(epoch)
        was_fast = batches._concurrency is not None and batches._concurrency.reads_whole
        Fields.calls = 0
        found = []
        for images, labels in batches:
            assert images[:, 0, 0].tolist() == labels.tolist() == images[:, 3, 1].tolist()
            found += labels.tolist()
            batches.commit()
        assert sorted(found) == list(range(64))
        if was_fast and not Fields.calls:
            return
    pytest.fail("rows were read one by one in each epoch")


class Changing(Table):
    """Samples have as many values as ``width_of`` says for them."""

    width_of: Callable[[int], int] = staticmethod(lambda index: 1 + index % 5)

    def __getitem__(self, index: int) -> Any:
        return np.full(self.width_of(index), index, np.int16), index

    def read_into(self, index: int, arrays: list[Any]) -> bool:
        arrays[0][...], arrays[1][...] = index, index
        return bool(arrays[0].shape == (self.width_of(index),))

    def read_batch(self, indices: Any, columns: list[Any]) -> bool:
        columns[0][...], columns[1][...] = np.reshape(indices, (-1, 1)), indices
        return all(columns[0].shape[1:] == (self.width_of(index),) for index in indices)


def _right(batches: Batches, width_of: Callable[[int], int], epochs: range) -> None:
    for epoch in epochs:
        batches.set_epoch(epoch)
        labels = []
        for values, numbers in batches:
            labels += numbers.tolist()
            assert values.shape == (len(numbers), width_of(labels[-1]))
            assert values[:, 0].tolist() == values[:, -1].tolist() == numbers.tolist()
            batches.commit()
        assert sorted(labels) == list(range(64))


def test_a_batch_has_the_form_of_its_samples_and_not_of_those_before() -> None:
    """Within an epoch, and from one to the next."""
    data = Changing()
    _right(Batches(data, 1, threads=2), data.width_of, range(5))
    _right(Batches([data[index] for index in range(64)], 1, threads=2), data.width_of, range(5))
    batches = Batches(data, 8, threads=2)
    for epoch in range(10):
        width = 2 + epoch % 2
        data.width_of = lambda _, width=width: width  # type: ignore[misc]
        _right(batches, data.width_of, range(epoch, epoch + 1))
