"""``UrlFiles``: bytes of files behind URLs, by fsspec, which supports S3, HTTP, SSH and others.

    store = UrlFiles()
    store.read("s3://bucket/set/part-0.tfrecord", 0, 12)

fsspec's own thread serves its file systems, so a forked child cannot use its parent's: it makes its own.
"""

from __future__ import annotations

import os
from typing import Any, final

from farandole.data.storage.byte_store import ByteStore
from farandole.data.storage.waits import during
from farandole.errors import DataError


def file_system(url: str) -> tuple[Any, str]:
    """File system of fsspec for a URL, and the path in it. Raises ``DataError`` if a package is missing."""
    try:
        import fsspec
    except ModuleNotFoundError as error:
        raise DataError(f'{url} needs the package fsspec: pip install "farandole[data]"') from error
    try:
        found, path = fsspec.core.url_to_fs(url)
    except Exception as error:  # a file system may raise anything
        raise _outage(f"{url} cannot be opened", error) from error
    return found, str(path)


def _outage(what: str, error: Exception) -> DataError:
    found = DataError(f"{what}: {error}")
    found.is_outage = True  # whatever a file system raises, it is no damage of the sample that was to be read
    return found


@final
class UrlFiles(ByteStore):
    """Files by URL, read range by range through fsspec's synchronous calls."""

    def __init__(self) -> None:
        self._systems: dict[tuple[int, str], Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return UrlFiles, ()

    def size(self, path: str) -> int:
        system, inner = self._system(path)
        try:
            return int(system.size(inner))
        except Exception as error:
            raise _outage(f"{path} cannot be read", error) from error

    def read_into(self, path: str, offset: int, buffer: memoryview) -> None:
        if not len(buffer):
            return
        system, inner = self._system(path)
        with during("shared storage", path, len(buffer)):
            try:
                found = system.cat_file(inner, start=offset, end=offset + len(buffer))
            except Exception as error:
                raise _outage(f"{path} cannot be read at byte {offset}", error) from error
        if len(found) != len(buffer):
            raise DataError(
                f"{path} gives {len(found)} bytes from byte {offset} on, and {len(buffer)} were asked for: it is "
                "truncated, or has changed since it was listed"
            )
        buffer[:] = found

    def close(self) -> None:
        self._systems.clear()

    def _system(self, path: str) -> tuple[Any, str]:
        if "::" in path:
            return file_system(path)
        key = (os.getpid(), "/".join(path.split("/", 3)[:3]))  # a forked child has fsspec's loop without its thread
        if key not in self._systems:
            self._systems[key] = file_system(path)[0]
        system = self._systems[key]
        return system, str(system._strip_protocol(path))
