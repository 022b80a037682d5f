"""Values decoded by the Climate and Forecast conventions: fill values, valid ranges, scale and offset, time.

    how = decoding_of({"scale_factor": np.float32(0.01), "_FillValue": np.int16(-1)}, np.dtype("<i2"))
    decode(np.array([100, -1], np.int16), how)                              # [1.0, nan]

Rules (CF 1.11, sections 2.5, 4.4 and 8.1) as the netCDF4 package applies them: ``_Unsigned`` first, then missing values
among the stored numbers, then ``values * scale + offset`` in the type of NumPy's promotion. An attribute that the type
of the variable cannot hold is ignored. With ``fill="nan"`` integers without a declared missing value stay integers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, final

import msgspec
import numpy as np

from farandole.data.formats.chunk_codecs import Array
from farandole.data.formats.reading import translated
from farandole.errors import DataError

Fill: TypeAlias = Literal["nan", "mask", "raw"]
Time: TypeAlias = Literal["numbers", "datetime64", "cftime"]

PACKING = ("scale_factor", "add_offset")
MISSING = ("_FillValue", "missing_value", "valid_range", "valid_min", "valid_max")
ATTRIBUTES = (*PACKING, *MISSING, "_Unsigned", "units", "calendar")
DEFAULT_FILLS: dict[str, float] = {
    **{f"i{size}": -(2 ** (8 * size - 1)) + (2 if size == 8 else 1) for size in (1, 2, 4, 8)},
    **{f"u{size}": 2 ** (8 * size) - (2 if size == 8 else 1) for size in (1, 2, 4, 8)},
    **dict.fromkeys(("f4", "f8"), 9.969209968386869e36),
}


@final
class Decoding(msgspec.Struct, frozen=True):
    """Recipe that decodes stored numbers: attributes as dtype and bytes, or as text, and the options of the caller.

    ``defaults``: NetCDF's default fill values are missing values if no ``_FillValue`` is declared.
    """

    attributes: dict[str, tuple[str, bytes] | str]
    scaled: bool = True
    fill: Fill = "nan"
    time: Time = "numbers"
    defaults: bool = True

    def numbers(self, name: str) -> Array | None:
        """An attribute as an array; ``None`` if it is absent or a text."""
        found = self.attributes.get(name)
        return None if found is None or isinstance(found, str) else np.frombuffer(found[1], np.dtype(found[0]))

    def text(self, name: str) -> str:
        """An attribute as a text; empty if it is absent or a number."""
        found = self.attributes.get(name, "")
        return found if isinstance(found, str) else ""


def decoding_of(attributes: Mapping[str, Any], dtype: np.dtype[Any], what: str = "", **asked: Any) -> Decoding | None:
    """Recipe for a variable with these attributes; ``asked`` are fields of ``Decoding``. ``None``: values as stored.

    Raises ``DataError`` for a scale that is no number.
    """
    kept: dict[str, tuple[str, bytes] | str] = {}
    for name in (each for each in ATTRIBUTES if each in attributes):
        value = np.asarray(attributes[name])
        if value.dtype.kind in "iufb":
            kept[name] = value.dtype.str, value.tobytes()
        else:
            first = value.reshape(-1)[0] if value.size else ""
            kept[name] = first.decode("latin-1") if isinstance(first, bytes) else str(first)
    how = Decoding(kept, **asked)
    if dtype.kind not in "iuf" or (not how.scaled and how.fill == "raw" and how.time == "numbers"):
        return None
    if how.scaled and (wrong := [name for name in PACKING if isinstance(kept.get(name), str)]):
        raise DataError(f"{what}: {wrong[0]} is {kept[wrong[0]]!r}, no number: read the numbers as stored (raw=True)")
    return how


def decode(stored: Array, how: Decoding, what: str = "") -> Any:
    """Decode stored numbers: to an array with NaN (``fill="nan"``), a masked array, or times."""
    values = stored.astype(stored.dtype.newbyteorder("="), copy=False)
    signed = values.dtype
    if signed.kind == "i" and how.text("_Unsigned").lower() == "true":
        values = values.view(f"u{signed.itemsize}")
    missing = _missing(values, signed, how) if how.fill != "raw" else np.zeros(values.shape, np.bool_)
    if how.time != "numbers" and re.match(r"\s*\w+\s+since\s", how.text("units")):
        return _times(values, missing, how, what)
    if how.scaled:
        scale, offset = how.numbers("scale_factor"), how.numbers("add_offset")
        if scale is not None and (scale[0] != 1 or (offset is not None and offset[0] != 0)):
            values = np.asarray(values * scale[0])
        if offset is not None and offset[0] != 0:
            values = np.asarray(values + offset[0])
    if how.fill == "mask":
        return np.ma.MaskedArray(values, missing)
    if how.fill == "nan" and values.dtype.kind != "f" and any(how.numbers(name) is not None for name in MISSING):
        values = values.astype(np.float32 if values.dtype.itemsize <= 2 else np.float64)
    if how.fill == "nan" and values.dtype.kind == "f" and missing.any():
        values = np.where(missing, values.dtype.type(np.nan), values)
    return values


def _held(how: Decoding, name: str, signed: np.dtype[Any], like: Array) -> Any:
    """An attribute in the type of the variable; empty if it is absent, or the type cannot hold it."""
    told = how.numbers(name)
    if told is None:
        return ()
    with np.errstate(all="ignore"):
        held = told.astype(signed if told.dtype.kind != "u" else like.dtype)
    return held.view(like.dtype) if ((held == told) | ((held != held) & (told != told))).all() else ()


def _missing(values: Array, signed: np.dtype[Any], how: Decoding) -> Array:
    missing: Array = np.zeros(values.shape, np.bool_)
    fill, span = _held(how, "_FillValue", signed, values), _held(how, "valid_range", signed, values)
    for each in (*fill, *_held(how, "missing_value", signed, values)):
        missing |= (values == each) | ((values != values) & (each != each))
    default = DEFAULT_FILLS.get(signed.str[1:]) if values.dtype.kind == "f" or how.fill == "mask" else None
    if len(fill) == 0 and how.defaults and default is not None:
        missing |= values == np.array(default, signed).view(values.dtype)
    whole = len(span) == 2
    with np.errstate(invalid="ignore"):
        for low in span[:1] if whole else _held(how, "valid_min", signed, values):
            missing |= values < low
        for high in span[1:] if whole else _held(how, "valid_max", signed, values):
            missing |= values > high
    return missing


def _times(values: Array, missing: Array, how: Decoding, what: str) -> Any:
    units, calendar = how.text("units"), how.text("calendar").lower() or "standard"
    missing = missing | ~np.isfinite(values)
    as_dates = how.time == "datetime64"
    with translated(what, "dates", "data-formats"):
        import cftime

        try:
            kept, kind = np.where(missing, 0, values), (not as_dates, as_dates)  # cftime's dates, or Python's
            dates = cftime.num2date(kept, units, calendar, *kind)
        except ValueError as error:
            raise DataError(
                f"{what}: times in {units!r} of the calendar {calendar!r} have no {how.time} ({error}): time='numbers' "
                "reads them as stored, time='cftime' as dates of their calendar"
            ) from error
    found = np.array(dates, "datetime64[us]" if as_dates else object)
    found[missing] = np.datetime64("NaT") if as_dates else None
    return found
