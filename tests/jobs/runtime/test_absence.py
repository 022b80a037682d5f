"""A session that the first operation makes, as in the cells of a notebook after one that failed."""

from __future__ import annotations

import numpy as np

import farandole.numpy as hvd
from farandole.runtime.session.init import on_absence, rejoin, takes_part
from farandole.testing.rank import RankContext
from tests.support.patience import PATIENCE_S
from workbench.jobs import run_job


def _revived(member: RankContext) -> tuple[float, bool]:
    """Sum in a session that it has made, and whether this rank takes part in the set of all ranks of another one."""
    hvd.init()
    hvd.shutdown()
    on_absence(rejoin)
    total = float(hvd.allreduce(np.ones(1), op=hvd.Sum)[0])
    hvd.shutdown()
    found = takes_part(hvd.global_process_set, "a reduction")
    on_absence(None)
    hvd.shutdown()
    return total, found


def test_an_operation_that_makes_the_session_takes_part_in_it() -> None:
    assert run_job(_revived, 2, timeout_s=PATIENCE_S) == [(2.0, True)] * 2
