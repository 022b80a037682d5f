"""A data set of bytes for tests of staging: files at random, a source of them, and what a stager has done.

source = made(tmp_path / "set", files=6, samples=50, nbytes=20_000)
staged = stage(source, cache=str(tmp_path / "cache"), limit="1GB")
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from farandole.data.formats.source import Source
from farandole.data.staging.protocol import Statistics
from farandole.data.staging.staged_files import StagedFiles
from farandole.data.storage.fields import Field
from farandole.data.storage.listing import list_files
from farandole.data.storage.manifest import Manifest
from tests.support.waiting import until


@final
class Raw(Source):
    """Samples as arrays of bytes."""

    def sample(self, index: int) -> Any:
        return np.frombuffer(self.parts(index)[0], np.uint8)


def write(folder: Path, files: int, samples: int, nbytes: int) -> None:
    """Write files of ``samples`` samples of ``nbytes`` bytes each."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        (folder / f"{number:03}.bin").write_bytes(content_of(number, samples * nbytes))


def source_of(folder: Path, samples: int, nbytes: int) -> Raw:
    """The samples in the files of a folder."""
    entries = list_files(folder)
    same = [nbytes] * len(entries)
    field = Field.regular(range(len(entries)), [samples] * len(entries), [0] * len(entries), same, same)
    return Raw(Manifest.of("raw", str(folder), entries, [field]))


def made(folder: Path, files: int = 6, samples: int = 50, nbytes: int = 20_000) -> Raw:
    """Files at random and their source: by default six of a megabyte, which are two pieces."""
    write(folder, files, samples, nbytes)
    return source_of(folder, samples, nbytes)


def store_of(source: Source) -> StagedFiles:
    """The store of staged data."""
    assert isinstance(source.store, StagedFiles)
    return source.store


def statistics(source: Source) -> Statistics:
    """What the stager of this host has done."""
    return store_of(source).link.statistics()


def same(one: Source, other: Source, indices: Sequence[int] | None = None) -> bool:
    """True if samples are equal."""
    return all(bytes(one[index]) == bytes(other[index]) for index in indices or range(len(one)))


def stagers(below: str | Path) -> set[int]:
    """Processes that stage into a folder, or one below it."""
    found = set()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            line = Path(f"/proc/{name}/cmdline").read_bytes()
            if b"stager_process import main" in line and any(
                os.readlink(link).startswith(str(below)) for link in Path(f"/proc/{name}/fd").iterdir()
            ):
                found.add(int(name))
    return found


def stager_of(source: Source) -> int:
    """The process of the stager of staged data: the one that holds the lock of its folder."""
    folder = statistics(source).folder
    [pid] = [pid for pid in stagers(folder) if folder in links(pid)]
    return pid


def links(pid: int) -> set[str]:
    """What the descriptors of a process are."""
    found = set()
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(os.readlink(link))
    return found


def until_gone(pids: Iterable[int]) -> None:
    """Wait for the end of processes that are none of our children."""
    left = set(pids)
    until(lambda: not any(links(pid) for pid in left), f"for {left} to end")


def end(*sources: Source) -> None:
    """Say good-bye, and wait until the stagers have ended."""
    pids = {stager_of(source) for source in sources}
    for source in sources:
        store_of(source).close()
        store_of(source).link.close()
    until_gone(pids)


@contextlib.contextmanager
def ended(*sources: Source) -> Iterator[None]:
    """End the stagers after a block, however it ends."""
    try:
        yield
    finally:
        end(*sources)


def kill_stager(source: Source) -> None:
    """Kill the stager as the system does that has no memory left."""
    pid = stager_of(source)
    os.kill(pid, signal.SIGKILL)
    until_gone([pid])


def vanish(source: Source) -> None:
    """Disconnect from the stager as a worker does that is killed: without a good-bye."""
    for connection in list(store_of(source).link._all):
        connection.close()


def staged_bytes(index: int, samples: int = 50, nbytes: int = 20_000) -> bytes:
    """The sample that ``made`` writes there."""
    return content_of(index // samples, samples * nbytes)[index % samples * nbytes :][:nbytes]


@functools.lru_cache
def content_of(file: int, nbytes: int) -> bytes:
    """Bytes of a file that ``write`` writes."""
    return np.random.default_rng(file).integers(0, 256, nbytes, np.uint8).tobytes()


def piece_file(source: Raw, piece: int) -> Path:
    """File of a piece in the cache."""
    return Path(statistics(source).folder) / f"{piece:08x}"


def flip(path: Path, offset: int) -> None:
    """Flip a bit of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        value = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([value ^ 8]))
