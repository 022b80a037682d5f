"""``elastic.DataLoader`` with threads and processes: the batches of torch's own, in memory that stays right."""

from __future__ import annotations

import gc
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import farandole.torch as hvd
from farandole.data.loading.augment import Flip
from farandole.errors import UsageError
from tests.support.launching import Launch


class Pair(NamedTuple):
    x: Any
    y: Any


class Mixed(torch.utils.data.Dataset[Any]):
    """Samples of all that ``default_collate`` takes."""

    def __len__(self) -> int:
        return 29

    def __getitem__(self, index: int) -> Any:
        tensor = torch.full((2, 3), float(index))
        fields = {"array": np.full(4, index, np.int16), "flag": index % 2 == 0, "text": f"s{index}", "raw": b"x"}
        return tensor, index, 0.5 * index, np.float32(index), fields, [index, tensor], Pair(index, tensor)


def equal(one: Any, other: Any) -> bool:
    """Whether two batches are of the same structure, dtypes and values."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def loader(**how: Any) -> Any:
    dataset = Mixed()
    return hvd.elastic.DataLoader(dataset, 4, sampler=hvd.elastic.ElasticSampler(dataset, seed=2), **how)


@pytest.mark.parametrize("how", [{"threads": 1}, {"threads": 3}, {"processes": 1}])
def test_batches_are_those_of_default_collate(how: dict[str, int]) -> None:
    expected, threaded = [*loader()], loader(**how)
    kept = [*threaded]
    threaded.close()
    assert len(threaded) == 0
    assert len(expected) == len(kept) == 8
    assert all(map(equal, kept, expected))


def test_tensors_that_are_kept_stay_right() -> None:
    threaded = loader(threads=3)
    views = [batch[0][1:].transpose(1, 2) for batch in threaded]
    expected = [batch[0][1:].transpose(1, 2) for batch in loader()]
    gc.collect()
    for epoch in (1, 2):
        threaded.batch_sampler.sampler.set_epoch(epoch)
        for batch in threaded:
            batch[0].zero_()
    assert all(map(torch.equal, views, expected))


def test_augmentation_is_the_same_at_any_number_of_threads() -> None:
    steps = [lambda sample, rng: (sample[0] + float(rng.random()), *sample[1:])]
    one, many = ([batch[0] for batch in loader(threads=n, augment=steps)] for n in (1, 4))
    assert all(map(torch.equal, one, many))


def test_both_ways_of_loading_are_refused_together() -> None:
    with pytest.raises(UsageError, match=r"DataLoader\(threads=\.\.\., num_workers=\.\.\.\)"):
        loader(threads=2, num_workers=2)
    with pytest.raises(UsageError, match="collate_fn is for torch's own processes"):
        loader(processes=2, collate_fn=list)
    with pytest.raises(UsageError, match="give threads=8"):
        loader(augment=Flip())
    with pytest.raises(UsageError, match=r"on_corrupt='skip'.* without threads"):
        loader(on_corrupt="skip")


ELASTIC = """
import torch
import farandole.torch as hvd

hvd.init()
numbers = torch.arange(13.0).reshape(13, 1)
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.constant_(model.weight, 2.0)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0))
sampler = hvd.elastic.ElasticSampler(numbers, seed=1)
loader = hvd.elastic.DataLoader(numbers, 3, sampler=sampler, threads=3)
state = hvd.elastic.TorchState(model, optimizer, sampler=sampler)
state.sync()
steps = 0
for x in loader:
    optimizer.zero_grad()
    model(x).mean().backward()
    [batch] = sampler.cursor.in_flight
    expected = sum(sampler.cursor.indices[batch.start : batch.stop]) / batch.samples
    assert abs(model.weight.grad.item() - expected) < 1e-5
    optimizer.step()
    steps += 1
assert sampler.processed_num == 13
with torch.no_grad():
    sampler.set_epoch(1)
    next(iter(loader))
    assert not sampler.cursor.is_fresh
from farandole.data.loading.report import report
assert report().steps == steps - 1 == 1

class Damaged(torch.utils.data.Dataset):
    bad = {2, 6, 7, 12}  # a row, and all rows of a rank

    def __len__(self):
        return 14

    def __getitem__(self, index):
        assert index not in self.bad
        return torch.tensor([float(index)])

dataset = Damaged()
sampler = hvd.elastic.ElasticSampler(dataset, shuffle=False)
loader = hvd.elastic.DataLoader(dataset, 2, sampler=sampler, threads=3, on_corrupt="skip")
hvd.elastic.TorchState(model, optimizer, sampler=sampler).sync()
seen = []
for x in loader:
    optimizer.zero_grad()
    model(x).mean().backward()
    [batch] = sampler.cursor.in_flight
    left = [i for i in range(batch.start, batch.stop) if i not in dataset.bad]
    assert abs(model.weight.grad.item() - sum(left) / len(left)) < 1e-5
    optimizer.step()
    seen += left
assert (sampler.processed_num, sampler.cursor.left_out, len(seen)) == (14, 4, 10)
assert report().corrupt == [f"sample {i}" for i in (2, 6, 7, 12)]
print("done")
"""


def test_samples_are_weighted_and_counted_in_an_elastic_job(launch: Launch) -> None:
    assert sorted(launch(2, ELASTIC).ok().lines()) == ["done", "done"]
