"""``list_files``: the files of a data set from a folder, a pattern, a list or a URL, in the same order on every host.

list_files("/lustre/set", suffixes=(".tfrecord",))
list_files("/lustre/set/train-*.tfrecord")
list_files("s3://bucket/set/")
"""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias, Union

from farandole.errors import DataError

Where: TypeAlias = Union[str, "os.PathLike[str]", Sequence[Union[str, "os.PathLike[str]"]]]
"""A folder, a file, a pattern with ``*``, a URL, or a list of these."""

INDEX_NAME = ".farandole-index"
"""Name of a stored manifest in the folder that it describes."""

NAMED = 4
"""Number of endings that an error lists."""

OURS = ".farandole"
"""Prefix of the names of our own files beside data."""


class FileEntry(NamedTuple):
    """One file of a data set, as listed."""

    path: str
    size: int
    mtime_ns: int


def list_files(what: Where, suffixes: Sequence[str] = (), *, hidden: bool = False) -> list[FileEntry]:
    """Files of a data set, sorted by path.

    Folders give only files with one of the ``suffixes``, if there are any, and ``hidden`` files only on request.
    Raises ``DataError`` if there is no file.
    """
    if isinstance(what, str | os.PathLike):
        try:
            found = list(_entries(os.fspath(what), tuple(suffixes), hidden))
        except OSError as error:
            raise DataError(f"{os.fspath(what)} cannot be listed ({error}): may you read all of it?") from error
        if not found:
            path = os.fspath(what)
            wanted = f" that ends with {_listed([*dict.fromkeys(map(str.lower, suffixes))])}" if suffixes else ""
            there = [each.path for each in _entries(path, (), hidden)] if suffixes else []
            wanted += f", but {endings_of(there)}" if there else ""
            if not ("://" in path or glob.has_magic(path) or os.path.exists(path)):
                raise DataError(f"{path} does not exist: give a folder, a file, a pattern or a URL")
            raise DataError(f"{path}: there is no file{wanted}; give a folder, a file, a pattern or a URL")
        return sorted(found)
    entries = [entry for each in what for entry in list_files(each, suffixes, hidden=hidden)]
    if not entries:
        raise DataError("the list of files is empty: give a folder, a file, a pattern or a URL")
    return entries


def root_of(what: Where) -> str:
    """Folder that holds all files of a data set; the part before the first pattern."""
    if not isinstance(what, str | os.PathLike):  # no stat of each file: there may be millions
        parents = {os.path.dirname(os.path.abspath(each)) for each in what if "://" not in os.fspath(each)}
        return os.path.commonpath(parents) if parents else os.path.dirname(os.fspath(what[0]))
    path = os.fspath(what)
    if "://" in path:
        return path
    while glob.has_magic(path) or not os.path.isdir(path):
        parent = os.path.dirname(path)
        if parent == path:
            break
        path = parent
    return os.path.abspath(path or ".")


def endings_of(paths: Iterable[str]) -> str:
    """Number of files, and the endings of their names, the most frequent first.

    >>> endings_of(["a.npy", "b.npy", "LICENSE"])
    '3 that end with .npy or LICENSE'
    """
    found = Counter(Path(path).suffix or Path(path).name for path in paths)
    count, endings = sum(found.values()), _listed([name for name, _ in found.most_common()])
    return f"{count} that {'ends' if count == 1 else 'end'} with {endings}"


def _listed(names: Sequence[str]) -> str:
    """The first names, and the number of others.

    >>> _listed([".h5", ".hdf5"]), _listed(["a", "b", "c", "d", "e", "f"])
    ('.h5 or .hdf5', 'a, b, c, d or one of 2 others')
    """
    others = len(names) - NAMED
    shown = [*names[:NAMED], f"one of {others} others"] if others > 1 else list(names)
    return " or ".join([*filter(None, [", ".join(shown[:-1])]), shown[-1]])


def _entries(path: str, suffixes: tuple[str, ...], hidden: bool) -> Iterator[FileEntry]:
    if "://" in path:
        yield from _remote(path, suffixes, hidden)
    elif os.path.isdir(path):
        yield from _below(os.path.abspath(path), suffixes, hidden)
    elif glob.has_magic(path) and not os.path.exists(path):
        for found in glob.glob(path, recursive=True):
            if os.path.isfile(found):
                yield _entry(os.path.abspath(found))
    elif os.path.exists(path):
        yield _entry(os.path.abspath(path))


def _entry(path: str) -> FileEntry:
    status = os.stat(path)
    return FileEntry(path, status.st_size, status.st_mtime_ns)


def _below(
    folder: str, suffixes: tuple[str, ...], hidden: bool, links: frozenset[str] = frozenset()
) -> Iterator[FileEntry]:
    """Files below a folder; beside ``stat`` the file server sees only one ``scandir`` per folder."""
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if entry.name.startswith(OURS if hidden else ".") or (entry.is_symlink() and not os.path.exists(entry.path)):
            continue
        if entry.is_dir():
            target = {os.path.realpath(entry.path)} if entry.is_symlink() else set()
            if not any(each in links or f"{os.path.realpath(folder)}/".startswith(f"{each}/") for each in target):
                yield from _below(entry.path, suffixes, hidden, links | target)  # no link to a folder that contains it
        elif entry.is_file() and (not suffixes or entry.name.endswith(suffixes)):
            status = entry.stat()
            yield FileEntry(entry.path, status.st_size, status.st_mtime_ns)


def _remote(url: str, suffixes: tuple[str, ...], hidden: bool) -> Iterator[FileEntry]:
    from farandole.data.storage.url_files import file_system

    system, path = file_system(url)
    try:
        found = system.expand_path(path, recursive=not glob.has_magic(path))
    except FileNotFoundError:
        return
    for each in found:
        info = system.info(each)
        name = Path(each).name
        if (
            info["type"] == "file"
            and not name.startswith(OURS if hidden else ".")
            and (each == path or name.endswith(suffixes or ""))
        ):
            yield FileEntry(str(system.unstrip_protocol(each)), int(info["size"]), _modified_ns(info))


def _modified_ns(info: dict[str, object]) -> int:
    """Time of the last change, if the file system reports it as a number; else 0."""
    told = info.get("mtime")
    return int(told * 1e9) if isinstance(told, int | float) else 0
