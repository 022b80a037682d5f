"""A worker of an elastic job that trains on staged data: ``staging_elastic_worker.py SET CACHE OUT [LIMIT]``.

Each has a ledger in ``OUT``. Worker 1 kills itself in step 4, once. With a ``LIMIT``, of a cache for each host, no
worker does, and epochs go on until there is ``OUT/end``.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[3]))  # what lies in tests/

from farandole.collective import ReduceOp
from farandole.data.staging.stage import stage
from farandole.elastic.worker.epoch_sampler import EpochSampler
from farandole.elastic.worker.run import run
from farandole.elastic.worker.state import ObjectState
from farandole.runtime.session.init import current, init, shutdown
from farandole.testing.ledger import Ledger
from tests.support.data.staging_source import source_of, staged_bytes, statistics
from workbench.jobs import NumpyCalls

EPOCHS = 2


class Progress(ObjectState):
    """Epoch, step and sampler."""

    epoch: int
    step: int
    sampler: EpochSampler


def main() -> None:
    """Train."""
    folder, cache, out, *limit = sys.argv[1:]
    init()
    cache = str(Path(cache) / current().topology.host) if limit else cache
    source = source_of(Path(folder), 50, 20_000)
    staged = stage(source, cache=cache, limit=limit[0] if limit else "1GB")
    ends = np.zeros(16, np.int64)

    @run
    def train(state: Progress) -> None:
        worker = os.environ["FARANDOLE_WORKER_ID"]
        while not ends[0] if limit else state.epoch < EPOCHS:
            state.sampler.set_epoch(state.epoch)
            for batch in list(state.sampler.cursor.batches(global_batch_size=24)):
                state.sampler.cursor.hand_out(batch)
                mine = state.sampler.cursor.own_indices()
                ledger.brought("sampler", state.epoch, mine)
                for index in mine:
                    assert bytes(staged[index]) == staged_bytes(index)
                mark = Path(out) / "killed"
                if worker == "1" and state.step == 4 and not mark.exists() and not limit:
                    mark.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                ends[:] = (Path(out) / "end").exists()
                NumpyCalls().allreduce("step", ends, ReduceOp.SUM)
                state.sampler.cursor.advance(batch.samples)
                state.step += 1
                state.commit()
                if limit and ends[0]:
                    return
            state.epoch += 1

    progress = Progress(epoch=0, step=0, sampler=EpochSampler(staged))
    ledger = Ledger(out, progress)
    train(progress)
    ledger.close()
    print(f"rank {current().topology.rank} of {current().topology.size}: {statistics(staged).shared_bytes}")
    shutdown()


if __name__ == "__main__":
    main()
