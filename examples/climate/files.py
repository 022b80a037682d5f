"""States of the atmosphere in files: HDF5 as DeepCAM has it, or NetCDF; written by the generator, read by the training.

write(folder, train=200, validation=40, seed=0)             # or form="netcdf"
states = load(folder, "train")                              # hvd.data.Source; a folder of the real DeepCAM as well
image, labels = states[0]                                   # (8, 96, 144) float32, (96, 144) int64

folder/stats.h5                     climate/minval, climate/maxval: of each channel
folder/train/data-00000.h5          climate/data (rows, columns, channels) float32, climate/labels_0 (rows, columns)
folder/validation/...               or train.nc, validation.nc: a variable per channel over (time, lat, lon)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from examples.climate.fields import CHANNELS, COLUMNS, LAT, LON, ROWS, Array, weather
from examples.climate.labels import label
from farandole import data

DATA, LABELS = "climate/data", "climate/labels_0"


def write(folder: Path, *, train: int = 200, validation: int = 40, seed: int = 0, form: str = "hdf5") -> None:
    """Make states and labels, and write them; every state has random numbers of its own."""
    lowest, highest = np.full(len(CHANNELS), np.inf), np.full(len(CHANNELS), -np.inf)
    for part, (name, number) in enumerate((("train", train), ("validation", validation))):
        states = made(seed, part, number)
        (write_netcdf if form == "netcdf" else write_hdf5)(folder, name, states)
        if name == "train":
            lowest, highest = np.min(states, (0, 1, 2)), np.max(states, (0, 1, 2))
    write_h5(folder / "stats.h5", {"climate/minval": lowest, "climate/maxval": highest})


def made(seed: int, part: int, number: int, strength: float = 1.0) -> list[Array]:
    """States of a part of a data set: 0 to train on, 1 to validate with, 2 and so on for whatever is to be new."""
    return [weather(np.random.default_rng([seed, part, each]), strength) for each in range(number)]


def write_hdf5(folder: Path, name: str, states: list[Array]) -> None:
    """A file for each state."""
    (folder / name).mkdir(parents=True)
    for number, state in enumerate(states):
        write_h5(folder / name / f"data-{number:05}.h5", {DATA: state, LABELS: label(state).astype(np.uint8)})


def write_h5(path: Path, arrays: Mapping[str, Array]) -> None:
    """Data sets by name."""
    import h5py

    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array


def write_netcdf(folder: Path, name: str, states: list[Array]) -> None:
    """One NetCDF-4 file; by h5netcdf, as the library netCDF4 and h5py crash together on threads."""
    import h5netcdf

    folder.mkdir(parents=True, exist_ok=True)
    with h5netcdf.File(folder / f"{name}.nc", "w") as file:
        file.dimensions = {"time": len(states), "lat": ROWS, "lon": COLUMNS}
        file.create_variable("lat", ("lat",), data=LAT).attrs["units"] = "degrees_north"
        file.create_variable("lon", ("lon",), data=LON).attrs["units"] = "degrees_east"
        for number, channel in enumerate(CHANNELS):
            values = np.stack([state[..., number] for state in states])
            file.create_variable(channel, ("time", "lat", "lon"), data=values)
        file.create_variable("labels", ("time", "lat", "lon"), data=np.stack([*map(label, states)]).astype(np.uint8))


def load(folder: Path, part: str, cache: str = "", limit: str | None = None) -> data.Source:
    """States of a part, scaled to 0..1 by ``stats.h5``; with a ``cache``, out of that folder of each host.

    In a job all ranks call this together. Raises ``DataError`` for files that are not there or have no such data.
    """
    if (folder / part).is_dir():
        states = data.hdf5(folder / part, keys=[DATA, LABELS], per="file")
    else:
        states = data.netcdf(folder / f"{part}.nc", variables=[*CHANNELS, "labels"], along="time")
    if cache:
        states = data.stage(states, cache=cache, limit=limit)
    stats = data.hdf5(folder / "stats.h5", keys=["climate/minval", "climate/maxval"], per="file")[0]
    states.decode = Decoder(stats["climate/minval"].astype(np.float32), stats["climate/maxval"].astype(np.float32))
    return states


@final
@dataclass(frozen=True)
class Decoder:
    """Image and labels of what a file holds; threads and processes may call it."""

    lowest: Array
    highest: Array

    def __call__(self, state: Mapping[str, Array]) -> tuple[Array, Array]:
        """Channels first, each from 0 to 1 over the training set; labels as int64."""
        fields = state[DATA] if DATA in state else np.stack([state[name] for name in CHANNELS], -1)
        scaled = (fields - self.lowest) / (self.highest - self.lowest)
        image = np.ascontiguousarray(scaled.transpose(2, 0, 1), np.float32)
        return image, state[LABELS if LABELS in state else "labels"].astype(np.int64)


def frequencies(states: data.Source, some: int = 64) -> list[float]:
    """Share of the pixels of each class, in some of the states. Of a class that is in none of them, that of a pixel."""
    chosen = range(0, len(states), max(1, len(states) // some))
    labels = np.stack([states[number][1] for number in chosen])
    return [max(1.0, float((labels == number).sum())) / labels.size for number in range(3)]
