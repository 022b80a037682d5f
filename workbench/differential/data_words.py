"""Functions about data: loaders that draw random numbers in processes, infinities, and text that is no UTF-8.

    augmented(hvd, 7, "fork")[0]                # a batch, to which a process of a loader has added its random numbers

The oracle starts no processes: it computes what a loader's process draws from the seed that PyTorch documents.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from workbench.differential.words import Hvd, data, is_oracle

ROWS = 12
"""Rows of a data set: batches of two divide them evenly among one, two and three ranks."""

INFINITIES = (0.0, float("inf"), float("-inf"))


class AugmentedRows(Dataset[torch.Tensor]):
    """Rows to which the global generators of PyTorch and Python add something each time they are loaded."""

    def __init__(self, rows: torch.Tensor) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._rows[index] + torch.rand(()) + random.random()  # noqa: S311 (no secret)


class NoiseRows(Dataset[torch.Tensor]):
    """Rows that are nothing but random numbers, of PyTorch, Python and NumPy."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, _: int) -> torch.Tensor:
        drawn = torch.rand((), dtype=torch.float64), random.random(), np.random.random()  # noqa: S311 (no secret)
        return torch.tensor([float(each) for each in drawn], dtype=torch.float64)


def augmented(hvd: Hvd, number: int, method: str) -> list[torch.Tensor]:
    """Batches of PyTorch's own loader with random augmentation in a process, with a seed of the rank's own."""
    rows = data(number, hvd.rank(), 4)
    source = torch.Generator().manual_seed(1000 * number + hvd.rank())
    if not is_oracle(hvd):
        apart: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": method, "generator": source}
        return list(DataLoader(AugmentedRows(rows), batch_size=2, **apart))
    seed = int(torch.empty((), dtype=torch.int64).random_(generator=source).item())  # plus 0, the process's number
    ours, pythons = torch.Generator().manual_seed(seed), random.Random(seed)  # noqa: S311 (no secret)
    found = torch.stack([row + torch.rand((), generator=ours) + pythons.random() for row in rows])
    return [found[:2], found[2:]]


def different_numbers(hvd: Hvd, number: int, processes: int) -> list[torch.Tensor]:
    """Count of the rows that elastic loaders of all ranks draw in an epoch, and of distinct values in each column."""
    if is_oracle(hvd):
        return [torch.tensor([ROWS] * 4, dtype=torch.float64)]
    sampler = hvd.elastic.ElasticSampler(NoiseRows(), seed=number)
    torch.manual_seed(1000 * number + hvd.rank())
    random.seed(1000 * number + hvd.rank())
    np.random.seed(number + hvd.rank())
    loader = hvd.elastic.DataLoader(NoiseRows(), batch_size=2, sampler=sampler, num_workers=processes)
    drawn = hvd.allgather(torch.cat(list(loader)), name=f"noise {number}")
    counts = [len(drawn), *(len(drawn[:, i].unique()) for i in range(3))]
    return [torch.tensor(counts, dtype=torch.float64)]


def infinities(hvd: Hvd, number: int) -> list[torch.Tensor]:
    """Reductions, by each operation, of values with an infinity in another place on each rank."""
    mine = data(number, hvd.rank(), 2)
    mine[0, hvd.rank() % 4] = INFINITIES[number % 3]
    mine[1, 1] = INFINITIES[(number + hvd.rank()) % 3]  # some ranks have the other one in the same place
    ops = {"average": hvd.Average, "sum": hvd.Sum, "min": hvd.Min, "max": hvd.Max}
    return [hvd.allreduce(mine, name=f"{name} {number}", op=op) for name, op in ops.items()]


def texts(hvd: Hvd, number: int) -> list[torch.Tensor]:
    """Code points of a text that is no UTF-8, and of one that is, which the last rank broadcasts."""
    mine = {"path": f"caf\udce9-{hvd.rank()}", "r\u00e9sum\u00e9": b"\xff\x00", "n": float("-inf")}
    found = hvd.broadcast_object(mine, hvd.size() - 1, name=f"text {number}")
    said = "".join(f"{key}{value!r}{value if isinstance(value, str) else ''}" for key, value in found.items())
    return [torch.tensor([ord(each) for each in said], dtype=torch.float64)]
