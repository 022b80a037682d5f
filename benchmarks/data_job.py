"""One rank of a job that stages a folder and takes some epochs of it; see ``data_staging``.

RESULT FOLDER CACHE LIMIT WINDOW ROWS EPOCHS: by ``farandole run``, one rank for each host
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import xxhash

import farandole.numpy as hvd
from farandole.data import arrays, stage
from farandole.data.loading.batches import Batches
from farandole.elastic.worker.epoch_sampler import EpochSampler

LOOK_AGAIN_S = 0.02


def staged_s(source: Any, begin_s: float) -> float:
    """Seconds until this host has all that it is to hold."""
    while True:
        found = source.store.link.statistics()
        if found.error:
            raise RuntimeError(found.error)
        if found.wanted_bytes and found.held_bytes == found.wanted_bytes:
            return time.monotonic() - begin_s
        time.sleep(LOOK_AGAIN_S)


def rest(batches: Batches, first: bool) -> int:
    """Take an epoch, or what is left of it, in steps of all ranks together; returns samples of this rank."""
    taken = 0
    for batch in batches:
        hvd.allreduce(0.0, name="step")
        batches.commit()
        taken += len(batch)
        if first:
            break
    return taken


def digest(source: Any) -> str:
    """Digest of all files as this host has them."""
    found, store, manifest = xxhash.xxh3_128(), source.store, source.manifest
    for path in manifest.paths:
        found.update(store.read(path))
    return found.hexdigest()


def main() -> None:
    """Measure, and have the first rank write the sum of it."""
    result, folder, cache, limit, window, rows, epochs = sys.argv[1:]
    hvd.init()
    hvd.allreduce(0.0, name="begin")
    begin_s = time.monotonic()
    source: Any = stage(arrays(folder), cache=cache, limit=int(limit) or None, window=int(window))
    sampler = EpochSampler(source, seed=1)
    batches = Batches(source, global_batch_size=int(rows) * hvd.size(), sampler=sampler)
    begun = rest(batches, first=True)
    first_s = time.monotonic() - begin_s
    fits = not int(limit) or int(limit) * hvd.size() > source.manifest.nbytes
    all_s = staged_s(source, begin_s) if fits else 0.0  # else pieces come and go with the epoch
    taken = [begun + rest(batches, first=False)]
    before = source.store.link.statistics().received_bytes
    for epoch in range(1, int(epochs)):
        hvd.allreduce(0.0, name="epoch")
        sampler.set_epoch(epoch)
        taken.append(rest(batches, first=False))
    received = (source.store.link.statistics().received_bytes - before) / (int(epochs) - 1)
    summed = digest(source) if fits else ""  # which would read the rest once more, and be counted
    mine = {"first_s": first_s, "all_s": all_s, "received": received, "samples": taken, "sum": summed}
    everybody = hvd.allgather_object(mine)
    if hvd.rank() == 0:
        Path(result).write_text(json.dumps({"ranks": everybody, "pieces": source.store.pieces.sizes.tolist()}))


if __name__ == "__main__":
    main()
