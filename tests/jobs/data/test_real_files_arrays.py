"""Real files of arrays: each is read right, whole and by rows, or refused by a sentence that names file and reason."""

from __future__ import annotations

import gc
import importlib.util
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from farandole.data.formats.source import Source
from farandole.data.storage.byte_store import SharedFiles
from tests.support.data.made_arrays import same
from tests.support.data.real_arrays import NEEDED, READERS, arrays_in, check_array, unpacked
from tests.support.data.real_files import entries, named, path_of

FORMATS = ("hdf5", "netcdf", "zarr", "npy", "mat")


def needs(name: str, folder: Path) -> tuple[Path, dict[str, Any], str]:
    """Path, right values and format of a real file; skips without the library that reads it."""
    entry = entries()[name]
    library = NEEDED.get(entry["format"], "numpy")
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library}, which reads {entry['format']}, is not installed")
    return unpacked(path_of(name), folder), entry["values"], entry["format"]


@pytest.mark.parametrize("name", named(*FORMATS))
def test_it_is_read_right_or_refused_by_name(name: str, tmp_path: Path) -> None:
    path, values, kind = needs(name, tmp_path)
    for key, right in arrays_in(values):
        check_array(path, kind, key, right)
    gc.collect()


def readable(path: Path, kind: str, values: dict[str, Any]) -> list[Source]:
    """Sources of the arrays of a file that are read."""
    names = [name for name, right in arrays_in(values) if "error" not in right and "ref_" not in str(name)]
    return [READERS[kind](path, name, per="file") for name in names if name is None or "regionref" not in name]


@pytest.mark.parametrize("name", named(*FORMATS))
def test_threads_and_pickled_copies_on_another_store_read_the_same(name: str, tmp_path: Path) -> None:
    path, values, kind = needs(name, tmp_path)
    for source in readable(path, kind, values):
        right = source[0]
        assert same(pickle.loads(pickle.dumps(source))[0], right)
        copy = source.on(SharedFiles())
        found: list[Any] = []
        threads = [threading.Thread(target=lambda copy=copy, found=found: found.append(copy[0])) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 3
        assert all(same(each, right) for each in found)
    gc.collect()


AFRESH = """
import pickle, sys
from pathlib import Path
here = Path(sys.argv[1])
here.with_suffix(".found").write_bytes(pickle.dumps([source[0] for source in pickle.loads(here.read_bytes())]))
"""


def test_a_process_that_is_started_afresh_reads_the_same(tmp_path: Path) -> None:
    sources: list[Source] = []
    for name in entries():
        kind = entries()[name]["format"]
        if kind in FORMATS and importlib.util.find_spec(NEEDED.get(kind, "numpy")) is not None:
            path, values, _ = needs(name, tmp_path / name)
            sources += readable(path, kind, values)[:2]
    if not sources:
        pytest.skip("the real files are not there, or no library that reads them")
    (tmp_path / "sources").write_bytes(pickle.dumps(sources))
    subprocess.run([sys.executable, "-W", "error", "-c", AFRESH, str(tmp_path / "sources")], check=True)
    found = pickle.loads((tmp_path / "sources.found").read_bytes())
    for source, there in zip(sources, found, strict=True):
        assert same(there, pickle.loads(pickle.dumps(source[0])))  # which makes some byte orders native
    gc.collect()
