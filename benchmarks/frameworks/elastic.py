"""Seconds from kill -9 of one of two workers to the next committed step of the other, in each framework."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.frameworks.start import ONE_THREAD, PEERS, Peer
from benchmarks.job import farandole
from benchmarks.measure import Row, Sample, Table, Verdict

OPTIONS = ("-np", "2", "--min-np", "1", "--max-np", "2", "--blacklist-cooldown-range", "0", "0.2")
JOB_S = 600.0


def run(kills: int, missing: dict[str, str]) -> Table:
    """Jobs of all frameworks that are not ``missing``, each struck ``kills`` times; adds those that fail to these."""
    table = Table("From kill -9 of one of 2 workers to the next committed step", "s")
    for peer in PEERS:
        if not peer.launched or peer.name in missing:
            continue
        try:
            sample = Sample.of(_struck(peer, kills))
        except RuntimeError as error:
            missing[f"{peer.name}, elastic"] = str(error)
        else:
            table.rows.append(Row(peer.name, {"farandole": sample}, (Verdict(max(sample.values), "s at most"),)))
    return table


def _struck(peer: Peer, kills: int) -> list[float]:
    """Seconds from each kill to the survivor's next step, by the files that workers write."""
    module = peer.module.replace("_runs", "_elastic")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        worker = [sys.executable, "-m", f"benchmarks.frameworks.{module}", folder, str(kills)]
        errors = Path(folder) / "errors"
        with errors.open("w") as file:
            process = subprocess.Popen(
                farandole("run", *OPTIONS, *worker),
                env={**os.environ, **ONE_THREAD, **peer.env}, stdout=file, stderr=file,
            )  # fmt: skip
            try:
                code = process.wait(JOB_S)
            except subprocess.TimeoutExpired:
                code = -1
            finally:
                process.terminate()  # it ends its workers
                process.wait()
        if code:
            last = errors.read_text().strip().splitlines() or ["without a word"]
            raise RuntimeError(f"failed: {last[-1]}"[:100])
        return _until_next(Path(folder), kills)


def _until_next(folder: Path, kills: int) -> list[float]:
    struck = [float(line) for line in (folder / "strikes").read_text().splitlines()]
    steps = sorted(float(line) for path in folder.glob("steps-*") for line in path.read_text().splitlines())
    if len(struck) != kills or steps[-1] < struck[-1]:
        raise RuntimeError(f"failed: {len(struck)} of {kills} kills, and no step after the last")
    return [min(step for step in steps if step > at) - at for at in struck]
