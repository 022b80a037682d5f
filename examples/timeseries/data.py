"""Time series as Zarr stores, and the windows that a forecast is learned from.

write_lorenz96("out/lorenz96", seed=0)
windows, test = loaded("out/lorenz96", LORENZ96)
lags, targets = windows[0]                # 12 x 8, and what follows after each of the horizons: 8 x 8

An array ``x`` has the axes member, time and site: members are independent runs of one model, or stretches of one record
without a gap. A window never reaches from one into another.
"""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import final

import numpy as np

from examples.common.training import staged
from examples.timeseries.lorenz96 import Array, trajectories
from farandole import data
from farandole.errors import DataError, UsageError

NOISE = 0.05
"""Standard deviation of the error of an observation of Lorenz-96, in standard deviations of the climate."""
HAS_BUOY = find_spec("bokeh_sampledata") is not None
WITHOUT_BUOY = "no buoy: pip install bokeh-sampledata"


@final
@dataclass(frozen=True)
class Task:
    """What a forecast sees, in steps before it, and which steps it is asked for."""

    lags: int
    horizons: tuple[int, ...]


LORENZ96 = Task(12, (1, 2, 3, 4, 6, 8, 12, 16))
BUOY = Task(12, (1, 4, 12, 24, 48))
"""Of half hours: twelve hours are 24."""


def write_lorenz96(folder: Path, seed: int, *, quick: bool = False) -> None:
    """Write noisy observations of trajectories, ``train.zarr`` and ``test.zarr``; no trajectory is in both."""
    trained, tested, days = (6, 2, 200) if quick else (60, 10, 1000)
    true = trajectories(trained + tested, days, seed)
    seen = true + NOISE * true.std() * np.random.default_rng((seed, 1)).normal(size=true.shape)
    write(folder / "train.zarr", seen[:trained])
    write(folder / "test.zarr", seen[trained:])


def write_buoy(folder: Path) -> None:
    """Write the half-hourly temperature of the sea at a buoy, 2016-17: the first 70 % to train on, the rest to test on.

    NERACOOS station B01, as the package ``bokeh-sampledata`` has it, in stretches of ten days without a gap. Raises
    ``UsageError`` where that is not installed.
    """
    if not HAS_BUOY:
        raise UsageError(WITHOUT_BUOY)
    path = files("bokeh_sampledata") / "_data" / "sea_surface_temperature.csv.gz"
    rows = list(csv.reader(gzip.decompress(path.read_bytes()).decode().splitlines()))[1:]
    times = np.array([datetime.fromisoformat(time[:19]) for time, _ in rows], "M8[m]")
    celsius = np.array([float(each) for _, each in rows])
    runs = np.split(celsius, np.flatnonzero(np.diff(times) != np.timedelta64(30, "m")) + 1)
    days = 480  # half hours of a stretch
    stretches = np.stack([run[i : i + days] for run in runs for i in range(0, len(run) - days + 1, days)])
    cut = round(0.7 * len(stretches))
    write(folder / "train.zarr", stretches[:cut, :, None])
    write(folder / "test.zarr", stretches[cut:, :, None])


def write(path: Path, x: Array) -> None:
    """Write a store with one array ``x``, of chunks that are a member each."""
    import zarr

    names, chunks = ("member", "time", "site"), (1, *x.shape[1:])
    zarr.open_group(path, mode="w").create_array("x", data=x.astype(np.float32), chunks=chunks, dimension_names=names)


def read(folder: Path, part: str, cache: str = "", limit: str | None = None) -> Array:
    """Members x steps x sites of ``train`` or ``test``, out of the hosts' own disks where a cache is asked for."""
    source = staged(data.zarr(folder / f"{part}.zarr", "x"), cache, limit)
    return np.stack([source[member] for member in range(len(source))])


@final
class Windows:
    """Pairs of what a forecast sees and what comes, lags x sites and horizons x sites, in units of the climate.

    That has a mean and a standard deviation, those of the windows to train on, which are given to those to test on.
    """

    def __init__(self, x: Array, task: Task, train: Windows | None = None) -> None:
        self.task, self._ahead = task, task.lags - 1 + np.array(task.horizons)
        self.mean: float = train.mean if train else float(x.mean(dtype=np.float64))
        self.deviation: float = train.deviation if train else float(x.std(dtype=np.float64))
        self.x: Array = ((x - self.mean) / self.deviation).astype(np.float32)
        self._each = x.shape[1] - int(self._ahead[-1])
        if self._each < 1:
            raise DataError(f"{x.shape[1]} steps are fewer than a window's {self._ahead[-1] + 1}: give longer runs")

    def __len__(self) -> int:
        return int(len(self.x) * self._each)

    def __getitem__(self, index: int) -> tuple[Array, Array]:
        member, begin = divmod(index, self._each)
        return self.x[member, begin : begin + self.task.lags], self.x[member, begin + self._ahead]

    def all(self) -> tuple[Array, Array]:
        """All windows, as two arrays."""
        lags, targets = zip(*(self[index] for index in range(len(self))), strict=True)
        return np.stack(lags), np.stack(targets)


def loaded(folder: Path, task: Task, cache: str = "", limit: str | None = None) -> tuple[Windows, Windows]:
    """Windows to train on and to test on."""
    windows = Windows(read(folder, "train", cache, limit), task)
    return windows, Windows(read(folder, "test", cache, limit), task, windows)
