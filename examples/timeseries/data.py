"""Time series as Zarr stores, and the windows that a forecast is learned from.

write_lorenz96("out/lorenz96", seed=0)
train, test = (read("out/lorenz96", part) for part in ("train", "test"))
windows = Windows(train, Scale.of(train), LORENZ96)
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
from farandole.errors import DataError

TRAINED, TESTED, DAYS = 60, 10, 1000
"""Trajectories of Lorenz-96 to train on and to test on, and the days of each."""
NOISE = 0.05
"""Standard deviation of the error of an observation, in standard deviations of the climate."""
STRETCH = 480
"""Half hours of a stretch of the buoy's record."""
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


# -- written -----------------------------------------------------------------------------------------------------------


def write_lorenz96(folder: Path, seed: int, *, quick: bool = False, zarr_format: int = 3) -> None:
    """Write noisy observations of trajectories, ``train.zarr`` and ``test.zarr``; no trajectory is in both."""
    sizes = (6, 2, 200) if quick else (TRAINED, TESTED, DAYS)
    true = trajectories(sizes[0] + sizes[1], sizes[2], seed)
    seen = true + NOISE * true.std() * np.random.default_rng((seed, 1)).normal(size=true.shape)
    for part, members in (("train", seen[: sizes[0]]), ("test", seen[sizes[0] :])):
        write(folder / f"{part}.zarr", members, zarr_format)


def write_buoy(folder: Path, *, zarr_format: int = 3) -> None:
    """Write the half-hourly temperature of the sea at a buoy, 2016-17: the first 70 % to train on, the rest to test on.

    NERACOOS station B01, as the package ``bokeh-sampledata`` has it, in stretches of ten days without a gap.
    """
    path = files("bokeh_sampledata") / "_data" / "sea_surface_temperature.csv.gz"
    rows = list(csv.reader(gzip.decompress(path.read_bytes()).decode().splitlines()))[1:]
    times = np.array([datetime.fromisoformat(time[:19]) for time, _ in rows], "M8[m]")
    celsius = np.array([float(each) for _, each in rows])
    runs = np.split(celsius, np.flatnonzero(np.diff(times) != np.timedelta64(30, "m")) + 1)
    stretches = np.stack([run[i : i + STRETCH] for run in runs for i in range(0, len(run) - STRETCH + 1, STRETCH)])
    cut = round(0.7 * len(stretches))
    for part, members in (("train", stretches[:cut]), ("test", stretches[cut:])):
        write(folder / f"{part}.zarr", members[..., None], zarr_format)


def write(path: Path, x: Array, zarr_format: int = 3) -> None:
    """Write a store with one array ``x``, of chunks that are a member each."""
    import zarr

    group = zarr.open_group(path, mode="w", zarr_format=zarr_format)
    names = {"dimension_names": ("member", "time", "site")} if zarr_format == 3 else {}
    array = group.create_array("x", shape=x.shape, chunks=(1, *x.shape[1:]), dtype="float32", **names)
    array[:] = x.astype(np.float32)


def has_buoy() -> bool:
    """Whether the package with the record of the buoy is installed."""
    return find_spec("bokeh_sampledata") is not None


# -- read --------------------------------------------------------------------------------------------------------------


def read(folder: Path, part: str, cache: str = "", limit: str | None = None) -> Array:
    """Members x steps x sites of ``train`` or ``test``, out of the hosts' own disks where a cache is asked for."""
    source = staged(data.zarr(folder / f"{part}.zarr", "x"), cache, limit)
    return np.stack([source[member] for member in range(len(source))])


@final
@dataclass(frozen=True)
class Scale:
    """Mean and standard deviation of the climate, which the training data are: errors are in units of it."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, x: Array) -> Scale:
        """Those of a record."""
        return cls(float(x.mean(dtype=np.float64)), float(x.std(dtype=np.float64)))

    def scaled(self, x: Array) -> Array:
        """In standard deviations from the mean."""
        found: Array = ((x - self.mean) / self.deviation).astype(np.float32)
        return found


@final
class Windows:
    """Pairs of what a forecast sees and what comes: lags x sites, and horizons x sites."""

    def __init__(self, x: Array, scale: Scale, task: Task) -> None:
        self.x, self.task = scale.scaled(x), task
        self._ahead = task.lags - 1 + np.array(task.horizons)
        self._each = x.shape[1] - int(self._ahead[-1])
        if self._each < 1:
            raise DataError(
                f"{x.shape[1]} steps are fewer than a window's {int(self._ahead[-1]) + 1}: give longer runs"
            )

    def __len__(self) -> int:
        return int(len(self.x) * self._each)

    def __getitem__(self, index: int) -> tuple[Array, Array]:
        member, begin = divmod(index, self._each)
        return self.x[member, begin : begin + self.task.lags], self.x[member, begin + self._ahead]

    def all(self) -> tuple[Array, Array]:
        """All windows, as two arrays."""
        lags, targets = zip(*(self[index] for index in range(len(self))), strict=True)
        return np.stack(lags), np.stack(targets)
