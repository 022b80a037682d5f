"""One rank of a job that executes plan after plan, each in a generation of its own.

    farandole run -np 2 python -m workbench.differential.frameworks.ranks FOLDER

``FOLDER/plans`` holds the plans; each rank writes the result of each to ``FOLDER/POSITION.RANK``. A rank that misses
the deadline writes the stacks of its threads and goes on waiting: the fuzzer ends the job.
"""

from __future__ import annotations

import faulthandler
import hashlib
import importlib
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any, final

import msgspec
import numpy as np

from farandole.errors import FarandoleError
from workbench.differential.frameworks.plan import FrameworkPlan, Numbers, PlanFailure, RankResult
from workbench.differential.frameworks.planted import planted


@final
class Batch(msgspec.Struct, frozen=True):
    """Plans of one job, and the deadline of each."""

    plans: list[FrameworkPlan]
    deadline_s: float


def main(folder: Path) -> None:
    """Execute the plans of a folder."""
    warnings.simplefilter("ignore")
    given = msgspec.msgpack.decode((folder / "plans").read_bytes(), type=Batch)
    rank = os.environ.get("FARANDOLE_RANK", "0")
    runner = importlib.import_module(f"workbench.differential.frameworks.on_{given.plans[0].framework}")
    for i, plan in enumerate(given.plans):
        faulthandler.dump_traceback_later(max(1.0, given.deadline_s - 2.0))
        with planted(plan.planted, int(rank)):
            result = msgspec.msgpack.encode(perform(plan, runner))
        faulthandler.cancel_dump_traceback_later()
        written = folder / f"{i}.{rank}.part"
        written.write_bytes(result)
        written.rename(folder / f"{i}.{rank}")
    sys.stdout.flush()
    os._exit(0)  # failed programs may have left threads in their framework that do not end


def perform(plan: FrameworkPlan, runner: Any) -> RankResult:
    """Execute one plan; returns its result on this rank."""
    records: dict[str, Numbers] = {}

    def record(name: str, found: Any) -> None:
        array = np.asarray(found)
        digest = hashlib.blake2b(array.tobytes(), digest_size=8).digest()
        records[name] = Numbers(array.astype(np.float64).ravel().tolist(), digest)

    failure = None
    try:
        act = runner.start(plan)
        for i, action in enumerate(plan.actions):
            act(f"{i}.{action.kind}", action, record)
        runner.finish()
    except Exception as error:
        failure = _failure_of(error, runner)
    try:
        runner.stop()
    except FarandoleError as error:
        failure = failure or _failure_of(error, runner)
    return RankResult(records, failure)


def _failure_of(error: Exception, runner: Any) -> PlanFailure:
    found = runner.cause(error)
    text = "".join(traceback.format_exception(error))[-3000:]
    return PlanFailure(type(found).__name__, isinstance(found, FarandoleError), str(found)[:600], text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
