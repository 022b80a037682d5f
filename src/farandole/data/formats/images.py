"""``images``: photographs and masks as arrays, by Pillow.

source = images("/lustre/imagenet/train", mode="RGB", labels="folder")    # (uint8 array of height, width, 3), class
source = images("/lustre/masks")                                          # indices, bools, uint16: as stored
"""

from __future__ import annotations

import io
from typing import Any, ClassVar, final

import numpy as np
import numpy.typing as npt

from farandole.data.formats.files import FilesSource
from farandole.data.formats.reading import Index, translated
from farandole.data.formats.source import Decode
from farandole.data.storage.listing import Where
from farandole.errors import DataError

NAMES = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "ppm", "pgm", "pbm", "jp2", "j2k", "avif")
SUFFIXES = tuple(f".{case(name)}" for name in NAMES for case in (str.lower, str.upper))
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "PPM", "JPEG2000", "AVIF", "TGA", "TIFF")
"""Formats of Pillow that only read pixels: some others start programs."""


@final
class ImagesSource(FilesSource):
    """Images as arrays. Pillow releases the GIL while it decodes."""

    format: ClassVar[str] = "images"
    decodes: ClassVar[bool] = True

    def content(self, data: bytearray, path: str) -> npt.NDArray[Any]:
        return decoded(data, path, **self.options)


def images(
    path: Where,
    decode: Decode | None = None,
    *,
    mode: str | None = None,
    exif: bool = False,
    labels: str | None = None,
    index: Index = None,
) -> ImagesSource:
    """Images as arrays of height x width (x channels), as stored: palettes as indices, 1 bit as bool, 16 as uint16.

        images("/lustre/train", mode="RGB", exif=True, labels="folder")[0]

    ``mode`` is a mode of Pillow (``"RGB"``, ``"L"``, ...), to which every image is converted. Cameras store a rotation
    beside the pixels (EXIF orientation), which is applied only with ``exif=True``. Of several frames the first is read.
    ``labels="folder"``: pairs with the number of the folder below ``path``, as in ``files``.

    Raises ``DataError`` for damaged files, and for 16 bits in several channels, of which Pillow reads only 8.
    """
    return ImagesSource.opened(path, decode, index, SUFFIXES, labels, mode=mode, exif=exif)


def decoded(data: bytes | bytearray, path: str, mode: str | None = None, exif: bool = False) -> npt.NDArray[Any]:
    """Pixels of an encoded image; ``path`` names it in errors."""
    with translated(path, "an image"):
        from PIL import Image, ImageOps

        with Image.open(io.BytesIO(data), formats=FORMATS) as file:
            if mode is None and _is_cut(file, data):
                raise DataError(
                    f"{path} has 16 bits in each of several channels, of which Pillow reads 8: give "
                    f"mode={file.mode!r} to take these, or read it with files(path, decode=...) and imagecodecs"
                )
            image = ImageOps.exif_transpose(file) if exif else file
            pixels = np.array(image.convert(mode) if mode not in (None, image.mode) else image)
            return pixels.astype(pixels.dtype.newbyteorder("="), copy=False)


def _is_cut(image: Any, data: bytes | bytearray) -> bool:
    """True if Pillow would read 8 of 16 bits: the arguments of its decoders show it, for JPEG 2000 the header."""
    if image.mode.startswith(("I", "F")) or not image.tile:
        return False
    if image.format == "JPEG2000":  # bits of the first component in the segment SIZ (ISO/IEC 15444-1, A.5.1)
        siz = data.find(b"\xff\x4f\xff\x51")
        return (data[siz + 42] & 0x7F) + 1 > 8
    told = image.tile[0].args
    words = told if isinstance(told, tuple) else (told,)
    return any(";16" in str(each) or (image.format == "PPM" and isinstance(each, int) and each > 255) for each in words)
