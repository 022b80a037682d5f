"""Files for other programs, written beside the record of a run: a CSV, and event files of TensorBoard.

    export = CsvExport("runs/a/metrics.csv")
    export.write_record(record)
    export.close()

A row of the CSV is one number: ``time_s,generation,rank,step,samples,name,value``. TensorBoard shows one run for each
rank, ``rank 0`` and so on.
"""

from __future__ import annotations

import csv
import importlib.util
import logging
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, final

from farandole.errors import UsageError
from farandole.monitor.folder import PointRecord, Record

CSV, TENSORBOARD = "metrics.csv", "tensorboard"
COLUMNS = ("time_s", "generation", "rank", "step", "samples", "name", "value")

FLUSH_S = 5
"""Longest time in seconds until TensorBoard can see new numbers."""


class Export(ABC):
    """One kind of file. Both methods raise ``OSError`` if writing fails."""

    @abstractmethod
    def write_record(self, record: Record) -> None:
        """Write the numbers of a record that belong into the file."""

    @abstractmethod
    def close(self) -> None:
        """Complete the files. Idempotent."""


@final
class CsvExport(Export):
    """One CSV of all numbers."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._file = os.fdopen(fd, "w", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file)
        self._writer.writerow(COLUMNS)

    def write_record(self, record: Record) -> None:
        if isinstance(record, PointRecord):
            self._writer.writerows(
                (f"{point.time_s:.3f}", record.generation, record.rank, point.step, point.samples, name, repr(value))
                for point in record.points
                for name, value in point.values.items()
            )
            self._file.flush()

    def close(self) -> None:
        self._file.close()


@final
class TensorBoardExport(Export):
    """Event files, by ``tensorboardX``: it needs neither TensorFlow nor TensorBoard."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        require_tensorboard()
        # The library warns of each number that is not finite, without its name; the curves show where.
        logging.getLogger("tensorboardX.x2num").setLevel(logging.ERROR)
        self._folder = Path(folder)
        self._writers: dict[int, Any] = {}

    def write_record(self, record: Record) -> None:
        if isinstance(record, PointRecord):
            writer = self._writers.get(record.rank) or self._open(record.rank)
            for point in record.points:
                for name, value in point.values.items():
                    writer.add_scalar(name, value, point.step, walltime=point.time_s)

    def close(self) -> None:
        writers, self._writers = self._writers, {}
        for writer in writers.values():
            writer.close()

    def _open(self, rank: int) -> Any:
        from tensorboardX import SummaryWriter

        writer = self._writers[rank] = SummaryWriter(str(self._folder / f"rank {rank}"), flush_secs=FLUSH_S)
        return writer


def require_tensorboard() -> None:
    """Raise ``UsageError`` if the library is missing."""
    if importlib.util.find_spec("tensorboardX") is None:
        raise UsageError("event files of TensorBoard need tensorboardX: pip install 'farandole[tensorboard]'")
