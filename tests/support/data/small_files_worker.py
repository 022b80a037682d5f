"""A rank that trains for an epoch on many small staged files: ``python small_files_worker.py SET CACHE OUT``.

File ``N`` has the text N 500 times. ``OUT/RANK.json`` then has the samples of the rank.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[3]))  # what lies in tests/

from farandole import data
from farandole.data.loading.batches import Batches
from farandole.data.staging import stage as stage_module
from farandole.data.staging.stage import stage
from farandole.runtime.session.init import current, init, shutdown
from workbench.jobs import NumpyCalls

GLOBAL_BATCH = 500


def write_small_files(folder: Path, files: int) -> int:
    """Write the files; returns their bytes in all."""
    folder.mkdir()
    for number in range(files):
        (folder / f"{number:05}").write_bytes(b"%d" % number * 500)
    return sum(path.stat().st_size for path in folder.iterdir())


def number_in(content: bytes) -> int:
    """The number of which a file is full."""
    text = content[: len(content) // 500]
    assert bytes(content) == text * 500
    return int(text)


def trained(folder: str, cache: str) -> list[int]:
    """Samples of this rank in an epoch, by what is in them."""
    init()
    try:
        staged = stage(data.files(folder, decode=number_in), cache=f"{cache}/{current().topology.host}", limit="1GB")
        batches, mine, total = Batches(staged, global_batch_size=GLOBAL_BATCH, threads=4), [], np.zeros(1)
        for batch in batches:
            own = batches.sampler.cursor.own_indices()
            assert batch.tolist() == own or not own
            total[:] = sum(own)
            NumpyCalls().allreduce("sum", total)
            mine += own
            batches.commit()
        return mine
    finally:
        shutdown()
        stage_module._say_good_bye()


if __name__ == "__main__":
    found = trained(*sys.argv[1:3])
    Path(sys.argv[3], f"{found[0]}.json").write_text(json.dumps(found))
