"""Real files of records, images, rasters and tables: each is read right, or refused by a sentence that names why."""

from __future__ import annotations

import gc
import importlib.util
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

from farandole.data.storage.byte_store import SharedFiles
from farandole.errors import DataError
from tests.support.data.real_files import entries, named, path_of
from tests.support.data.real_records import CHECKS, LIBRARIES, WatchedFiles, opened, same

FORMATS = tuple(CHECKS)


def needs(name: str) -> tuple[Path, dict[str, Any], str]:
    """Path, entry and format of a real file; skips without the library that reads it."""
    kind = entries()[name]["format"]
    library = LIBRARIES.get(kind)
    if library and importlib.util.find_spec(library) is None:
        pytest.skip(f"{library}, which reads {kind}, is not installed")
    return path_of(name), entries()[name]["values"], kind


@pytest.mark.parametrize("name", named(*FORMATS))
def test_it_is_read_right(name: str) -> None:
    path, values, kind = needs(name)
    CHECKS[kind](path, values)
    gc.collect()  # pyarrow's files are closed with their last reference


@pytest.mark.parametrize("name", named(*(kind for kind in FORMATS if kind != "array_record")))
def test_a_sample_needs_the_bytes_that_the_manifest_tells(name: str) -> None:
    path, values, kind = needs(name)
    if "with_checksum" in values:
        return
    source = opened(kind, path)
    for index in {0, len(source) - 1}:
        store = WatchedFiles()
        assert same(source.on(store)[index], source[index])
        told = [(offset, offset + nbytes) for _, offset, nbytes in source.manifest.extents(index)]
        for _, begin, nbytes in store.read_ranges:
            assert any(start <= begin and begin + nbytes <= stop for start, stop in told), (begin, nbytes, told)
    gc.collect()


def test_array_record_reads_files_of_this_machine_alone() -> None:
    for name in [name for name, entry in entries().items() if entry["format"] == "array_record"]:
        source = opened("array_record", needs(name)[0])
        with pytest.raises(DataError, match="stage it first"):
            source.on(WatchedFiles())[0]


@pytest.mark.parametrize("name", named(*FORMATS))
def test_threads_and_pickled_copies_on_another_store_read_the_same(name: str) -> None:
    path, values, kind = needs(name)
    if "with_checksum" in values:
        return
    source = opened(kind, path)
    right = source[0]
    assert same(pickle.loads(pickle.dumps(source))[0], right)
    found: list[Any] = []
    copy = source.on(SharedFiles())
    threads = [threading.Thread(target=lambda: found.append(copy[0])) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert all(same(each, right) for each in found)
    gc.collect()
