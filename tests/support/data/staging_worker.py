"""A rank that reads staged data for some epochs: ``python staging_worker.py SET CACHE OUT LIMIT EPOCHS [PATIENCE_S]``.

Files are ``rank N: ...`` lines in ``OUT``, one JSON file for each rank: samples that were wrong, samples by epoch, and
what the stager of the host has done.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import zlib
from pathlib import Path

from farandole.data.staging.progress import await_staged
from farandole.data.staging.stage import _say_good_bye, stage
from farandole.data.storage.manifest import Manifest
from farandole.elastic.worker.epoch_sampler import EpochSampler
from farandole.runtime.collectives.objects import allgather_object
from farandole.runtime.session.init import current, init, shutdown
from tests.support.data.staging_source import Raw, source_of, statistics

SAMPLES, NBYTES = 50, 20_000


def main() -> None:
    """Stage, read, and write what there was."""
    folder, cache, out, limit, epochs, *patience = sys.argv[1:]
    init()
    who = current().topology
    where = Path(cache) / who.host
    if os.environ.get("FULL") == who.host:  # its stager, too, cannot write files that are larger
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    source = Raw(Manifest.load(patience[2])) if len(patience) > 2 else source_of(Path(folder), SAMPLES, NBYTES)
    staged = stage(source, cache=str(where), limit=limit, patience_s=float(patience[0]) if patience else 30.0)
    (Path(out) / f"started-{who.rank}").touch()
    seen: list[list[int]] = []
    sums: dict[int, int] = {}
    sampler = EpochSampler(staged)
    for epoch in range(int(epochs)):
        sampler.set_epoch(epoch)
        seen.append([])
        for batch in list(sampler.cursor.batches(global_batch_size=32)):
            sampler.cursor.hand_out(batch)
            for index in sampler.cursor.own_indices():
                sums[index] = zlib.crc32(bytes(staged[index]))
                seen[-1].append(index)
            sampler.cursor.advance(batch.samples)
            allgather_object(0, name="step")
        if not epoch and len(patience) < 2:
            await_staged(staged)
    allgather_object(0, name="end")
    found = statistics(staged)
    told = {
        "host": who.host, "local_rank": who.local_rank, "seen": seen, "sums": sums, "shared": found.shared_bytes,
        "received": found.received_bytes, "held": found.held_bytes, "healed": found.healed,
    }  # fmt: skip
    (Path(out) / f"{who.rank}.json").write_text(json.dumps(told))
    allgather_object(0, name="written")
    shutdown()
    _say_good_bye()


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    main()
