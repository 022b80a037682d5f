"""Outputs of predictions: a folder of ``.npy`` files, a Zarr store, an HDF5 file.

    out = output_for(Path("out.zarr"), plan)
    out.write(block, {"mean": rows}, heed)         # any block, by any process; again, it is overwritten by the same
    out.finish()                                   # once, when all are there
    out.read("mean")                               # an array of all samples, read where it is sliced

Written rows count only when their block has its record, so a half-written block does no harm.
"""

from __future__ import annotations

import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

import msgspec
import numpy as np
import numpy.typing as npt

from farandole.errors import DataError, UsageError
from farandole.inference.plan import BlockPlan
from farandole.inference.records import awaited, read_record

Array = npt.NDArray[Any]

_NAME = re.compile(r"\w[\w.-]*")


@final
class AnswerField(msgspec.Struct, frozen=True):
    """Field of the answers: its data type, in NumPy's notation, and the shape for one sample."""

    dtype: str
    shape: tuple[int, ...]


@final
class AnswerFields(msgspec.Struct, frozen=True):
    """Fields by name, as in the first block that was answered."""

    by_name: dict[str, AnswerField]


class PredictionOutput(ABC):
    """Arrays of all samples, by field, at ``path``; records lie in ``folder``, beside it."""

    def __init__(self, path: Path, plan: BlockPlan) -> None:
        self.path, self.plan = path, plan
        self.folder = path.with_name(f"{path.name}.blocks")
        """Folder of the plan, the fields and the records of the blocks."""
        self._known: AnswerFields | None = None

    def prepare(self) -> None:  # noqa: B027 (NumPy is there)
        """Load the library of the format, before hours of work; raises ``DataError`` if it is not installed."""

    @property
    def fields(self) -> dict[str, AnswerField]:
        """Fields by name; none before the first block is written."""
        if self._known is None:
            self._known = read_record(self.folder / "fields.json", AnswerFields)
        return {} if self._known is None else self._known.by_name

    @property
    def is_finished(self) -> bool:
        """True when all samples are answered, and the output is complete."""
        return read_record(self.folder / "finished", BlockPlan) is not None

    def write(self, block: int, values: Mapping[str, Array], heed: Callable[[], None]) -> None:
        """Write the rows of a block; raises ``UsageError`` if their form differs from earlier rows."""
        found = {name: AnswerField(rows.dtype.str, rows.shape[1:]) for name, rows in values.items()}
        if not self.fields:
            self._begin(found, heed)
        if found != self.fields:
            raise UsageError(
                f"answers to samples {self.plan.rows(block)} are {_words(found)}, others are {_words(self.fields)}: "
                "the function must give the same fields, data types and shapes for every batch"
            )
        for name, rows in values.items():
            self._put(block, name, rows)

    def _begin(self, found: dict[str, AnswerField], heed: Callable[[], None]) -> None:
        """Make the arrays, unless another process has made them."""
        if wrong := [name for name, field in found.items() if not _NAME.fullmatch(name) or field.dtype[1] in "OV"]:
            raise UsageError(f"the answer {wrong[0]!r} is of {found[wrong[0]].dtype}: give numbers, under a plain name")
        with awaited(self.folder / "fields.json", heed) as lease:
            if lease.read(AnswerFields) is None:
                for name, field in found.items():
                    self._make(name, field)
                lease.write(AnswerFields(found))
        self._known = None

    def _shape(self, field: AnswerField) -> tuple[int, ...]:
        return (self.plan.samples, *field.shape)

    @abstractmethod
    def _make(self, name: str, field: AnswerField) -> None:
        """Make the array of a field."""

    @abstractmethod
    def _put(self, block: int, name: str, rows: Array) -> None:
        """Write rows of a field."""

    def finish(self) -> None:  # noqa: B027 (most have nothing left to do)
        """Make the output from the written blocks; called by one process at a time, after all blocks are written."""

    def tidy(self) -> None:  # noqa: B027 (most have nothing to tidy)
        """Remove the inputs of ``finish``; called when its record is written."""

    @abstractmethod
    def read(self, name: str) -> Any:
        """Array of a field, of all samples, in the type of the format's library."""


@final
class NpyOutput(PredictionOutput):
    """Folder with a file ``FIELD.npy`` for each field; workers write their rows in place."""

    def _make(self, name: str, field: AnswerField) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        # A file of zeros: they take no space on the disk until they are overwritten.
        np.lib.format.open_memmap(self._file(name), "w+", np.dtype(field.dtype), self._shape(field))

    def _put(self, block: int, name: str, rows: Array) -> None:
        field = self.fields[name]
        with self._file(name).open("r+b") as file:
            np.lib.format.read_magic(file)
            np.lib.format.read_array_header_1_0(file)
            sample_bytes = np.dtype(field.dtype).itemsize * int(np.prod(field.shape, dtype=int))
            file.seek(file.tell() + self.plan.rows(block).start * sample_bytes)
            file.write(np.ascontiguousarray(rows).tobytes())
            file.flush()
            os.fsync(file.fileno())

    def read(self, name: str) -> Array:
        """See ``PredictionOutput``: a read-only memory map."""
        return np.load(self._file(name), mmap_mode="r")  # type: ignore[no-any-return]

    def _file(self, name: str) -> Path:
        return self.path / f"{name}.npy"


@final
class ZarrOutput(PredictionOutput):
    """Zarr store whose chunks are blocks, so that no two workers write the same chunk."""

    def __init__(self, path: Path, plan: BlockPlan) -> None:
        super().__init__(path, plan)
        self._open: dict[str, Any] = {}  # arrays that this process writes

    def prepare(self) -> None:
        """See ``PredictionOutput``."""
        _zarr()

    def _make(self, name: str, field: AnswerField) -> None:
        chunks = (min(self.plan.block_size, self.plan.samples), *field.shape)
        group = _zarr().open_group(self.path, mode="a")
        group.create_array(name, shape=self._shape(field), chunks=chunks, dtype=np.dtype(field.dtype), overwrite=True)

    def _put(self, block: int, name: str, rows: Array) -> None:
        if name not in self._open:
            self._open[name] = _zarr().open_array(self.path / name, mode="r+")
        at = self.plan.rows(block)
        self._open[name][at.start : at.stop] = rows

    def read(self, name: str) -> Any:
        """See ``PredictionOutput``."""
        return _zarr().open_array(self.path / name, mode="r")


@final
class Hdf5Output(PredictionOutput):
    """HDF5 file, which allows one writer: blocks are separate files, from which the last worker makes the output."""

    def prepare(self) -> None:
        """See ``PredictionOutput``."""
        _h5py()

    def _make(self, name: str, field: AnswerField) -> None:
        (self.folder / "parts").mkdir(exist_ok=True)

    def _put(self, block: int, name: str, rows: Array) -> None:
        part = self._part(block, name)
        with part.open("wb") as file:
            np.save(file, rows)
            file.flush()
            os.fsync(file.fileno())

    def finish(self) -> None:
        """Assemble the blocks; the file gets its name when it is complete. Repeated after a kill in the middle."""
        new = self.folder / "output.h5"
        with _h5py().File(new, "w") as file:
            for name, field in self.fields.items():
                chunks = (min(self.plan.block_size, self.plan.samples), *field.shape)
                array = file.create_dataset(name, self._shape(field), np.dtype(field.dtype), chunks=chunks)
                for block in range(self.plan.blocks):
                    at = self.plan.rows(block)
                    array[at.start : at.stop] = np.load(self._part(block, name))
        with new.open("rb") as written:
            os.fsync(written.fileno())
        new.replace(self.path)

    def tidy(self) -> None:
        """See ``PredictionOutput``."""
        shutil.rmtree(self.folder / "parts", ignore_errors=True)

    def read(self, name: str) -> Any:
        """See ``PredictionOutput``: the file is closed when the last of its arrays is dropped."""
        return _h5py().File(self.path, "r")[name]

    def _part(self, block: int, name: str) -> Path:
        return self.folder / "parts" / f"{block:06d}.{name}.npy"


OUTPUTS: dict[str, type[PredictionOutput]] = {
    "": NpyOutput,
    ".zarr": ZarrOutput,
    ".h5": Hdf5Output,
    ".hdf5": Hdf5Output,
}


def output_for(path: Path, plan: BlockPlan) -> PredictionOutput:
    """Output of the format that the suffix of a path names. Raises ``UsageError`` for other suffixes."""
    if path.suffix not in OUTPUTS:
        raise UsageError(f"output={str(path)!r}: name it NAME.zarr, NAME.h5, or NAME for a folder of .npy files")
    return OUTPUTS[path.suffix](path.absolute(), plan)


def _words(fields: Mapping[str, AnswerField]) -> str:
    return ", ".join(f"{name} of {field.dtype}{list(field.shape)}" for name, field in fields.items())


def _zarr() -> Any:
    try:
        import zarr
    except ModuleNotFoundError as error:
        raise DataError("output=NAME.zarr needs the package zarr, 3 or later: pip install 'zarr>=3'") from error
    return zarr


def _h5py() -> Any:
    try:
        import h5py
    except ModuleNotFoundError as error:
        raise DataError("output=NAME.h5 needs the package h5py: pip install h5py") from error
    return h5py
