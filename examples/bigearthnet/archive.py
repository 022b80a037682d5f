"""The BigEarthNet archive as it is unpacked: a folder per patch, a GeoTIFF per band, a JSON file of labels.

    archive = Archive(Path("BigEarthNet-v1.0"), nomenclature=19, pixels=120)
    image, labels = archive[0]                  # (12, 120, 120) float32, (19,) float32: 0 or 1

    BigEarthNet-v1.0/S2A_MSIL2A_20170613T101031_0_45/S2A_MSIL2A_20170613T101031_0_45_B01.tif
                                                     ...                             _B12.tif
                                                     ...                             _labels_metadata.json

A patch is 1200 m wide: 120 pixels in the bands of 10 m, 60 in those of 20 m, 20 in those of 60 m. All are resampled to
one grid. Sumbul et al. 2019 (arXiv 1902.06148).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import interpolate
from torch.utils.data import Dataset

from examples.bigearthnet.bands import BANDS, METRES
from examples.bigearthnet.nomenclature import CLASSES, classes_of

PATCH_METRES = 1200
LABELS = "_labels_metadata.json"

Scale = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]


class ArchiveError(ValueError):
    """The archive is not as it should be; the message says what was expected, what was found, and what to do."""


@final
class Archive(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Patches below a folder, with the labels of a nomenclature, on a grid of ``pixels`` x ``pixels``.

    >>> loader = DataLoader(Archive(Path("BigEarthNet-v1.0"), names=split("train.csv")), batch_size=64, num_workers=4)

    ``names`` chooses patches (default: all, sorted). ``scale`` is applied to every image: see ``scaling.py``. Without
    it images are reflectance x 10,000, as stored. Files are read when an item is asked for. With 19 classes a few
    patches have no label at all; the published splits leave them out.

    Raises ``ArchiveError`` here if the folder holds no patches, and from an item if its files are not as they should.
    """

    def __init__(
        self,
        folder: Path,
        *,
        nomenclature: int = 19,
        pixels: int = 120,
        names: Sequence[str] | None = None,
        scale: Scale | None = None,
    ) -> None:
        classes_of([], nomenclature)
        if pixels < 1:
            raise ValueError(f"pixels={pixels}: a grid has at least 1 (a patch is 120 pixels of 10 m)")
        _reader()
        self.folder, self.nomenclature, self.pixels, self.scale = folder, nomenclature, pixels, scale
        self.names = _patches_below(folder) if names is None else list(names)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        patch = self.folder / self.names[index]
        if not patch.is_dir():
            raise ArchiveError(f"there is no patch {patch}: unpack the whole archive, or take it out of the names")
        image = self.image(patch)
        return torch.from_numpy(image if self.scale is None else self.scale(image)), self.labels(patch)

    def image(self, patch: Path) -> npt.NDArray[np.float32]:
        """All bands of the patch in this folder, (12, pixels, pixels), as stored but for the resampling."""
        missing = [band for band in BANDS if not _file(patch, band).is_file()]
        if missing:
            raise ArchiveError(
                f"{patch} lacks {', '.join(missing)}: every patch has a file for each of "
                f"{', '.join(BANDS)}; unpack it again"
            )
        return np.stack([resampled(read_band(_file(patch, band), band), self.pixels) for band in BANDS])

    def labels(self, patch: Path) -> torch.Tensor:
        """What the JSON file of the patch in this folder says, 0 or 1 for each class."""
        file = patch / f"{patch.name}{LABELS}"
        try:
            names = json.loads(file.read_text())["labels"]
            present = classes_of(names, self.nomenclature)
        except FileNotFoundError as error:
            raise ArchiveError(f"{file} is missing: unpack the patch again") from error
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
            raise ArchiveError(f'{file} is damaged, not {{"labels": ["Pastures", ...]}}: unpack it again') from error
        except ValueError as error:
            raise ArchiveError(f"{file}: {error}") from error
        return torch.tensor([float(name in present) for name in CLASSES[self.nomenclature]])


def split(file: Path | str) -> list[str]:
    """The names of patches in a file such as the published ``train.csv``, one to a line, its first column.

    >>> Archive(Path("BigEarthNet-v1.0"), names=split("train.csv"))
    """
    names = [line.split(",")[0].strip() for line in Path(file).read_text().splitlines()]
    return [name for name in names if name]


def read_band(file: Path, band: str) -> npt.NDArray[np.uint16]:
    """The pixels of a GeoTIFF, which must have the size that a patch has in this band.

    >>> read_band(Path(".../S2A_MSIL2A_20170613T101031_0_45_B02.tif"), "B02").shape
    (120, 120)
    """
    try:
        pixels = np.asarray(_reader().imread(file))
    except Exception as error:  # the reader's errors have no common class
        needs_codecs = "imagecodecs" in str(error)
        cure = "pip install imagecodecs" if needs_codecs else "unpack the patch again, or download the archive again"
        raise ArchiveError(f"{file} cannot be read ({type(error).__name__}: {error}): {cure}") from error
    side = PATCH_METRES // METRES[band]
    if pixels.shape != (side, side) or pixels.dtype != np.uint16:
        found = f"{' x '.join(map(str, pixels.shape))} {pixels.dtype}"
        raise ArchiveError(
            f"{file} holds {found}; {band} has {METRES[band]} m pixels, so {side} x {side} uint16 are expected: "
            "is this a surface product (L2A) of BigEarthNet, and unpacked without errors?"
        )
    return pixels


def resampled(band: npt.NDArray[np.uint16], pixels: int) -> npt.NDArray[np.float32]:
    """A band on a grid of ``pixels`` x ``pixels``: bilinear, and averaging where the grid is coarser."""
    image = torch.from_numpy(band.astype(np.float32))[None, None]
    return np.asarray(interpolate(image, (pixels, pixels), mode="bilinear", antialias=True)[0, 0].numpy())


def _file(patch: Path, band: str) -> Path:
    return patch / f"{patch.name}_{band}.tif"


def _patches_below(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise ArchiveError(f"there is no folder {folder}: give the one that unpacking BigEarthNet-S2 made")
    names = sorted(entry.name for entry in folder.iterdir() if (entry / f"{entry.name}{LABELS}").is_file())
    if not names:
        raise ArchiveError(
            f"{folder} holds no patches, which are folders NAME with a file NAME{LABELS}: "
            "give the folder that contains S2A_MSIL2A_... folders"
        )
    return names


def _reader() -> Any:
    try:
        import tifffile
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "reading GeoTIFF needs tifffile, which is not installed here: pip install 'farandole[torch,bigearthnet]'",
            name="tifffile",
        ) from error
    return tifffile
