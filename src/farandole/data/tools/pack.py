"""Packing of a data set into shards that others read: TFRecord, tar (WebDataset) or Zarr 3, in random order on request.

    pack(source, "/lustre/packed", into="tfrecord", shuffle=True)

Samples are arrays, numbers, strings or bytes, or dicts of them. A shard is written to a temporary file and renamed: a
file under its final name is complete.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from farandole.data.formats.source import Source
from farandole.data.formats.tfrecord import framed
from farandole.data.planning.order import ExactOrder
from farandole.data.staging.progress import Bar
from farandole.data.tools.example_writer import example
from farandole.errors import DataError, UsageError

SHARD_BYTES = 256 * 10**6


def pack(
    source: Source,
    target: str | os.PathLike[str],
    into: str = "tfrecord",
    *,
    shuffle: bool = False,
    seed: int = 0,
    shard_bytes: int = SHARD_BYTES,
) -> list[Path]:
    """Write the samples of ``source`` below ``target``; returns the files, or the Zarr store.

    Shards have about ``shard_bytes`` bytes. ``shuffle``: in the order of ``ExactOrder`` for ``seed``, so that
    neighbours are no more alike than any two samples. Raises ``UsageError`` for an unknown format, ``DataError`` for a
    folder that is not empty, and for samples that the format cannot hold.
    """
    writers: dict[str, Callable[[Source, Sequence[int], Path, int], list[Path]]] = {
        "tfrecord": _tfrecords,
        "tar": _tars,
        "zarr": _zarr,
    }
    if into not in writers:
        raise UsageError(f"pack into {into!r}: there is {', '.join(writers)}")
    folder = Path(target)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise DataError(f"{folder} is not empty: give a folder that is, or is not there yet")
    order: Sequence[int] = ExactOrder(len(source), seed) if shuffle else range(len(source))
    return writers[into](source, order, folder, shard_bytes)


def _tfrecords(source: Source, order: Sequence[int], folder: Path, shard_bytes: int) -> list[Path]:
    def record(index: int) -> bytes:
        sample = source[index]
        return framed(sample if isinstance(sample, bytes) else example(_fields(sample, index)))

    return _sharded(map(record, order), len(order), folder, "tfrecord", shard_bytes)


def _tars(source: Source, order: Sequence[int], folder: Path, shard_bytes: int) -> list[Path]:
    def record(index: int) -> bytes:
        packed = io.BytesIO()
        archive = tarfile.TarFile(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT)
        for name, value in _fields(source[index], index).items():
            suffix, data = _member(name, value, index)
            info = tarfile.TarInfo(f"{index:09}.{suffix}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        return packed.getvalue()  # without the two empty blocks that end an archive

    return _sharded(map(record, order), len(order), folder, "tar", shard_bytes, bytes(2 * tarfile.BLOCKSIZE))


def _sharded(
    records: Iterable[bytes], count: int, folder: Path, suffix: str, shard_bytes: int, end: bytes = b""
) -> list[Path]:
    """Write records, one after the other, to files of about ``shard_bytes`` each, and ``end`` at the end of each."""
    bar, done, written = Bar("packing", "samples"), 0, list[Path]()
    waiting = iter(records)
    record = next(waiting, None)
    while record is not None:
        path = folder / f"part-{len(written):05}.{suffix}"
        aside = path.with_name(f".{path.name}.new")
        with open(aside, "wb") as file:
            while record is not None and (not file.tell() or file.tell() + len(record) <= shard_bytes):
                file.write(record)
                done, record = done + 1, next(waiting, None)
            file.write(end)
        aside.replace(path)
        written.append(path)
        bar.show(done, count)
    bar.close()
    return written


def _zarr(source: Source, order: Sequence[int], folder: Path, shard_bytes: int) -> list[Path]:
    import zarr

    if not hasattr(zarr, "create_array"):
        raise UsageError("packing into Zarr needs zarr 3: pip install 'zarr>=3', or pack into tfrecord or tar")
    first = {name: np.asarray(value) for name, value in _fields(source[order[0]], order[0]).items()}
    group = zarr.open_group(str(folder / "data.zarr"), mode="w-", zarr_format=3)
    per_shard = max(1, min(len(order), shard_bytes // max(1, *(value.nbytes for value in first.values()))))
    stores = {
        name: group.create_array(
            name,
            shape=(len(order), *value.shape),
            shards=(per_shard, *(max(1, n) for n in value.shape)),
            chunks=(1, *(max(1, n) for n in value.shape)),
            dtype=value.dtype,
        )
        for name, value in first.items()
    }
    bar = Bar("packing", "samples")
    for begin in range(0, len(order), per_shard):
        some = [_fields(source[int(index)], int(index)) for index in order[begin : begin + per_shard]]
        for name, store in stores.items():
            rows = [np.asarray(each[name]) for each in some]
            kinds = {f"{row.dtype} {row.shape}" for row in (first[name], *rows)}
            if len(kinds) > 1:
                raise DataError(
                    f"{name} is {' and '.join(sorted(kinds))} in different samples: Zarr holds arrays of one shape; "
                    "pack into tfrecord or tar"
                )
            store[begin : begin + len(some)] = np.stack(rows)
        bar.show(min(len(order), begin + per_shard), len(order))
    bar.close()
    return [folder / "data.zarr"]


def _fields(sample: Any, index: int) -> dict[str, Any]:
    """Parts of a sample by name: items of a dict, elements of a tuple by number, or one part named ``data``."""
    if isinstance(sample, dict):
        return {str(name): value for name, value in sample.items()}
    if isinstance(sample, tuple):
        return {str(number): value for number, value in enumerate(sample)}
    if sample is None:
        raise DataError(f"sample {index} is None: nothing holds that; give decode= that returns arrays or bytes")
    return {"data": sample}


def _member(name: str, value: Any, index: int) -> tuple[str, bytes]:
    """Extension and bytes of a member of a tar archive."""
    if isinstance(value, bytes | bytearray | memoryview):
        return name, bytes(value)
    if isinstance(value, str):
        return f"{name}.txt", value.encode()
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise DataError(f"sample {index}, {name}: {type(value).__name__} cannot be packed; give numbers, text or bytes")
    packed = io.BytesIO()
    np.save(packed, array, allow_pickle=False)
    return f"{name}.npy", packed.getvalue()
