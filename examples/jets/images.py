"""Events as files of HDF5, in the layout of the public RPV examples, and as what the network reads.

    make("out/jets-0", Plan(events=9000, seed=0))
    source = images("out/jets-0", "train")              # of the real data set: the folder with its train.h5

``all_events/hist`` are the towers in GeV (events x 64 x 64 float32), ``y`` is 1 for gluinos, ``weight`` is 1, ``ht`` is
in GeV (the real data set lacks it). A set is one file or several, whose names begin with its own. A file follows from
the seed and its name alone, so that any number of processes makes the same files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

import h5py
import numpy as np

from examples.jets.collisions import FLAT_JETS, GLUINOS, JETS, PIXELS, Array, Process, collide, toy
from farandole import data
from farandole.errors import DataError

PART = 500
CHECKS = {"mass1200": (Process(1200.0), JETS), "mass1600": (Process(1600.0), JETS), "flat": (GLUINOS, FLAT_JETS)}
"""Sets beside training, validation and test: gluinos of other masses, and QCD of every H_T."""
SYMMETRIES = (data.augment.Flip((0, 1)), data.augment.Roll((1,)))
"""The same event seen from behind, in a mirror, and in a detector that was turned about the beam."""


@final
@dataclass(frozen=True)
class Plan:
    """How many events: two thirds to train, a ninth to validate, two ninths to test, and ``checks`` of each check."""

    events: int = 9000
    checks: int = 1500
    seed: int = 0

    @property
    def name(self) -> str:
        """Where the files lie in ``out/``."""
        return f"jets/{generator().replace(' ', '-')}-{self.events}-{self.seed}"

    def parts(self) -> dict[str, tuple[Process, Process, int]]:
        """Signal, background and number of events of each file, by its name."""
        found, sizes = {}, {"train": self.events // 9 * 6, "val": self.events // 9, "test": self.events // 9 * 2}
        sets = {name: (GLUINOS, JETS, size) for name, size in sizes.items()}
        sets |= {name: (*kinds, self.checks) for name, kinds in CHECKS.items()}
        for name, (signal, background, number) in sets.items():
            for part, begin in enumerate(range(0, number, PART)):
                found[f"{name}-{part:03}"] = signal, background, min(PART, number - begin)
        return found


def generator() -> str:
    """What makes the events here."""
    return "Pythia 8" if find_spec("pythia8mc") else "the toy"


def make(folder: Path, plan: Plan, rank: int = 0, size: int = 1) -> None:
    """Write every file that is not there, as one of ``size`` processes."""
    folder.mkdir(parents=True, exist_ok=True)
    events = collide if generator() == "Pythia 8" else toy
    for place, (name, (signal, background, number)) in enumerate(plan.parts().items()):
        target = folder / f"{name}.h5"
        if place % size != rank or target.exists():
            continue
        seed = int(np.random.SeedSequence([plan.seed, *name.encode()]).generate_state(1)[0])
        kinds = [events(signal, seed, number // 2), events(background, seed + 1, number - number // 2)]
        order = np.random.default_rng(seed).permutation(number)
        hist, ht = (np.concatenate(each) for each in zip(*kinds, strict=True))
        y = np.repeat([1.0, 0.0], [len(each) for _, each in kinds]).astype(np.float32)
        half = target.with_suffix(f".{os.getpid()}")
        with h5py.File(half, "w") as file:
            file.attrs["generator"] = generator()
            group = file.create_group("all_events")
            # An image is a chunk, so that shuffled reading decodes no other.
            group.create_dataset("hist", data=hist[order], chunks=(1, PIXELS, PIXELS), compression="gzip")
            group["y"], group["weight"], group["ht"] = y[order], np.ones_like(y), ht[order]
        half.rename(target)


def images(folder: Path | str, name: str) -> data.Source:
    """Source of (image, label) of a set: the logarithm of the towers, 64 x 64 x 1 float32, and 0 or 1."""
    return data.hdf5(f"{folder}/{name}*.h5", ["all_events/hist", "all_events/y"], _scaled)


def _scaled(sample: Mapping[str, Any]) -> tuple[Array, Any]:
    image = np.log1p(sample["all_events/hist"].astype(np.float32))[..., None] / np.float32(4)
    return image, np.float32(sample["all_events/y"])


def columns(folder: Path | str, name: str) -> tuple[Array, Array, Array]:
    """Towers in GeV, labels and H_T of a set, all at once; H_T of the real data set is the sum of its towers."""
    hist, y = (_column(folder, name, key) for key in ("hist", "y"))
    try:
        return hist, y, _column(folder, name, "ht")
    except DataError:
        return hist, y, hist.sum((1, 2))


def _column(folder: Path | str, name: str, key: str) -> Array:
    return np.array([*data.hdf5(f"{folder}/{name}*.h5", f"all_events/{key}")])
