"""Real files by others, with right values by the reference library of each format: ``../shared/data``."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.paths import ROOT

FOLDER = ROOT.parent / "shared" / "data"
REASON = f"the real files are not there: {FOLDER}/manifest.json, beside the checkout"


@cache
def entries() -> dict[str, dict[str, Any]]:
    """What the manifest says of each file, by name; nothing where there is none."""
    file = FOLDER / "manifest.json"
    return {entry["name"]: entry for entry in json.loads(file.read_text())} if file.is_file() else {}


def named(*formats: str) -> list[Any]:
    """Names of the files in these formats, as parameters of a test that skips where there are none."""
    found = [name for name, entry in entries().items() if entry["format"] in formats]
    return found or [pytest.param("", marks=pytest.mark.skip(reason=REASON))]


def path_of(name: str) -> Path:
    """Where a real file lies."""
    return FOLDER / "files" / name


def digest(array: Any) -> str:
    """Digest of an array as the manifest has it: of its bytes in C order, little-endian."""
    stored = np.asarray(array)
    return hashlib.sha256(np.ascontiguousarray(stored, stored.dtype.newbyteorder("<")).tobytes()).hexdigest()[:32]


def finite_sum(array: Any) -> float:
    """Sum of an array over its finite values, in float64."""
    wide = np.asarray(array).astype(np.float64)
    return float(wide[np.isfinite(wide)].sum())
