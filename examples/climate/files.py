"""States of the atmosphere in files: HDF5 as DeepCAM has it, or NetCDF; written by the generator, read by the training.

write(folder, sizes=(200, 40))                              # or form="netcdf"
image, labels = load(folder, "train")[0]                    # (8, 96, 144) float32, (96, 144) int64

folder/train/data-00000.h5          climate/data (rows, columns, channels), climate/labels_0 (rows, columns)
folder/train.nc                     or this: a variable for each channel, and labels, over (time, lat, lon)
folder/stats.h5                     climate/minval, climate/maxval: of each channel
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import h5netcdf  # not netCDF4, which crashes on threads together with h5py
import h5py
import numpy as np

from examples.climate.weather import CHANNELS, Array, label, weather
from examples.common.training import staged
from farandole import data

STRENGTHS = {"train": 1.0, "validation": 1.0, "weak": 0.5}
"""Parts of a data set, and how strong cyclones are there."""
DATA, LABELS, LOWEST, HIGHEST = (f"climate/{name}" for name in ("data", "labels_0", "minval", "maxval"))


def made(seed: int, part: str, number: int) -> Array:
    """States of a part of a data set; each has random numbers of its own."""
    key = [seed, list(STRENGTHS).index(part)]
    return np.stack([weather(np.random.default_rng([*key, each]), STRENGTHS[part]) for each in range(number)])


def write(folder: Path, sizes: Sequence[int], seed: int = 0, form: str = "hdf5") -> None:
    """Make so many states of each part, label them, and write a file for each, or one of NetCDF for all of a part."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, size in zip(STRENGTHS, sizes, strict=False):
        states = made(seed, part, size)
        labels = np.stack([*map(label, states)]).astype(np.uint8)
        if part == "train":
            with h5py.File(folder / "stats.h5", "w") as file:
                file[LOWEST], file[HIGHEST] = states.min((0, 1, 2)), states.max((0, 1, 2))
        if form == "netcdf":
            with h5netcdf.File(folder / f"{part}.nc", "w") as whole:
                whole.dimensions = dict(zip(("time", "lat", "lon"), labels.shape, strict=True))
                for name, values in zip((*CHANNELS, "labels"), (*np.moveaxis(states, -1, 0), labels), strict=True):
                    whole.create_variable(name, ("time", "lat", "lon"), data=values)
            continue
        (folder / part).mkdir()
        for number, state in enumerate(states):
            with h5py.File(folder / part / f"data-{number:05}.h5", "w") as file:
                file[DATA], file[LABELS] = state, labels[number]


def load(folder: Path, part: str, cache: str = "", limit: str | None = None) -> data.Source:
    """States of a part, scaled to 0..1 by ``stats.h5``; with a ``cache``, all ranks together stage them there."""
    if (folder / part).is_dir():
        states = data.hdf5(folder / part, keys=[DATA, LABELS], per="file")
    else:
        states = data.netcdf(folder / f"{part}.nc", variables=[*CHANNELS, "labels"], along="time")
    stats = data.hdf5(folder / "stats.h5", keys=[LOWEST, HIGHEST], per="file")[0]
    lowest, highest = (stats[name].astype(np.float32) for name in (LOWEST, HIGHEST))

    def decode(state: Mapping[str, Array]) -> tuple[Array, Array]:
        fields = state[DATA] if DATA in state else np.stack([state[name] for name in CHANNELS], -1)
        image = ((fields - lowest) / (highest - lowest)).transpose(2, 0, 1)
        return np.ascontiguousarray(image, np.float32), state[LABELS if LABELS in state else "labels"].astype(np.int64)

    states = staged(states, cache, limit)
    states.decode = decode
    return states
