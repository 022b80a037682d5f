"""The BigEarthNet archive as it is unpacked: a folder per patch, a GeoTIFF per band, a JSON file of labels.

    patches = archive(Path("BigEarthNet-v1.0"), nomenclature=19, pixels=120)
    image, labels = patches[0]                  # (12, 120, 120) float32, (19,) float32: 0 or 1
    patches = data.stage(patches, limit="200GB")

    BigEarthNet-v1.0/S2A_MSIL2A_20170613T101031_0_45/S2A_MSIL2A_20170613T101031_0_45_B01.tif
                                                     ...                             _B12.tif
                                                     ...                             _labels_metadata.json

A patch is 1200 m wide: 120 pixels in the bands of 10 m, 60 in those of 20 m, 20 in those of 60 m. All are resampled to
one grid. Sumbul et al. 2019 (arXiv 1902.06148).
"""

from __future__ import annotations

import glob
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import interpolate

from examples.bigearthnet.bands import BANDS
from examples.bigearthnet.nomenclature import CLASSES, classes_of
from farandole import data

LABELS = "labels_metadata.json"

Floats = npt.NDArray[np.float32]
Scale = Callable[[Floats], Floats]


def archive(
    folder: Path,
    *,
    nomenclature: int = 19,
    pixels: int = 120,
    names: Sequence[str] | None = None,
    scale: Scale | None = None,
) -> data.Source:
    """Patches below a folder, with the labels of a nomenclature, on a grid of ``pixels`` x ``pixels``.

    >>> archive(Path("BigEarthNet-v1.0"), names=split("train.csv"))

    ``names`` chooses patches (default: all, sorted). ``scale`` is applied to every image: see ``scaling.py``. Without
    it images are reflectance x 10,000, as stored. In a job all ranks call this together; rank 0 lists the files, and
    they are read when a sample is asked for. With 19 classes a few patches have no label at all; the published splits
    leave them out.

    Raises ``DataError`` for patches that are not there or lack a file, and from a sample whose files are damaged.
    """
    decode = PatchDecoder(nomenclature, pixels, scale)
    where = Path(glob.escape(str(folder))) / "S2*" / "*" if names is None else [folder / name for name in names]
    return data.geotiff(where, decode, order="as stored", group="folder", bands=(*BANDS, LABELS))


@final
@dataclass(frozen=True)
class PatchDecoder:
    """Image and labels of what the files of a patch hold; threads and processes may call it."""

    nomenclature: int
    pixels: int
    scale: Scale | None = None

    def __post_init__(self) -> None:
        classes_of([], self.nomenclature)
        if self.pixels < 1:
            raise ValueError(f"pixels={self.pixels}: a grid has at least 1 (a patch is 120 pixels of 10 m)")

    def __call__(self, patch: Mapping[str, Any]) -> tuple[Floats, Floats]:
        """All bands, (12, pixels, pixels), and 0 or 1 for each class."""
        image = np.stack([resampled(patch[band], self.pixels, band) for band in BANDS])
        return image if self.scale is None else self.scale(image), self.labels(patch[LABELS])

    def labels(self, text: bytes) -> Floats:
        """What a JSON file of labels says."""
        try:
            named = json.loads(text)["labels"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError('its labels are damaged, not {"labels": ["Pastures", ...]}: unpack it again') from error
        present = classes_of(named, self.nomenclature)
        return np.array([name in present for name in CLASSES[self.nomenclature]], np.float32)


def split(file: Path | str) -> list[str]:
    """The names of patches in a file such as the published ``train.csv``, one to a line, its first column.

    >>> archive(Path("BigEarthNet-v1.0"), names=split("train.csv"))
    """
    names = [line.split(",")[0].strip() for line in Path(file).read_text().splitlines()]
    return [name for name in names if name]


def resampled(band: npt.NDArray[np.uint16], pixels: int, name: str = "a band") -> Floats:
    """A band on a grid of ``pixels`` x ``pixels``: bilinear, and averaging where the grid is coarser."""
    if band.ndim != 2 or len({*band.shape}) > 1 or band.dtype != np.uint16:
        found = f"{' x '.join(map(str, band.shape))} {band.dtype}"
        raise ValueError(
            f"{name} holds {found}, and a square of uint16 is expected: is this a surface product (L2A) of "
            "BigEarthNet, and unpacked without errors?"
        )
    image = torch.from_numpy(band.astype(np.float32))[None, None]
    return np.asarray(interpolate(image, (pixels, pixels), mode="bilinear", antialias=True)[0, 0].numpy())
