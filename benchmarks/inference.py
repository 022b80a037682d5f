"""Throughput of predictions against the number of workers, of a function whose cost is waiting: no core is short."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Row, Sample, Table, Verdict
from farandole.inference import predict

BATCH, BATCH_S = 8, 0.05
WORKERS = (1, 2, 4)
LEAST = 0.9
"""Share of workers times the throughput of one."""


def run(quick: bool) -> list[Table]:
    """All tables of this section."""
    batches, rounds = (192, 1) if quick else (512, 5)
    rates: dict[int, list[float]] = {workers: [] for workers in WORKERS}
    for _ in range(rounds):
        for workers in WORKERS:  # in turn, so that all have the same machine
            rates[workers].append(_rate(workers, batches))
    samples = {workers: Sample.of(found) for workers, found in rates.items()}
    one = samples[1].median
    rows = [Row("1 worker", {"farandole": samples[1]})]
    for workers in WORKERS[1:]:
        ratio = Verdict(samples[workers].median / one, "times 1 worker", least=LEAST * workers)
        rows.append(Row(f"{workers} workers", {"farandole": samples[workers]}, (ratio,)))
    limit = Verdict(one * BATCH_S / BATCH, "of what waiting allows", least=LEAST)
    rows[0] = Row(rows[0].what, rows[0].samples, (limit,))
    return [Table(f"Predictions, batches of {1e3 * BATCH_S:g} ms, Zarr", "samples/s", rows=rows)]


def answer(batch: Any) -> dict[str, Any]:
    """Wait as long as a batch takes; the answers are the process, and the times at which it began and was over."""
    begun_s = time.time()
    time.sleep(BATCH_S)
    told = {"pid": os.getpid(), "begun_s": begun_s, "over_s": time.time()}
    return {name: np.full(len(batch), value) for name, value in told.items()}


def _rate(workers: int, batches: int) -> float:
    """Samples in a second while all workers are at it: not while they start, nor after one has found nothing left."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "out.zarr"
        found = predict(answer, np.arange(BATCH * batches), output, workers=workers, batch_size=BATCH)
        pid, begun_s, over_s = (found[name][:] for name in ("pid", "begun_s", "over_s"))
        first_s = max(begun_s[pid == each].min() for each in np.unique(pid))
        last_s = min(over_s[pid == each].max() for each in np.unique(pid))
        return float(((begun_s >= first_s) & (over_s <= last_s)).sum() / (last_s - first_s))
