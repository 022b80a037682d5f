"""A session that is set aside while a task of its own job runs in the same process."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import numpy as np
import pytest

import farandole.numpy as hvd
from farandole.errors import UsageError
from farandole.runtime.session.init import aside, current, session_number
from farandole.testing.rank import RankContext
from tests.support.patience import PATIENCE_S
from workbench.jobs import run_job


def _beside(member: RankContext) -> list[float]:
    """Sums that a thread of the session makes before, beside and after a task."""
    hvd.init()
    session, sums = current(), []
    with ThreadPoolExecutor(1) as pool:

        def total(name: str) -> float:
            return float(hvd.allreduce(np.ones(1), name=name, op=hvd.Sum)[0])

        sums.append(pool.submit(total, "before").result())
        with aside(), patch.dict(os.environ):
            for name in [each for each in os.environ if each.startswith("FARANDOLE_")]:
                del os.environ[name]  # as in an engine, whose seat is in no variables
            hvd.init()
            assert hvd.size() == 1
            assert total("of the task") == 1.0
            with pytest.raises(UsageError, match=r"before the task.*Let the thread end"):
                pool.submit(total, "beside").result()
            young: list[float] = []
            later = threading.Thread(target=lambda: young.append(total("of a thread of the task")))
            later.start()
            later.join()
            assert young == [1.0]
        assert current() is session
        sums.append(pool.submit(total, "after").result())
    hvd.shutdown()
    return sums


def _between(member: RankContext) -> list[float]:
    """Sums of an accumulation of two passes, with a task on one rank between them."""
    hvd.init()
    average = hvd.DistributedGradients([np.zeros(1)], backward_passes_per_step=2)
    assert average([np.full(1, 1.0)]) is None
    if member.rank:
        before = session_number()
        with aside(), patch.dict(os.environ):
            for name in [each for each in os.environ if each.startswith("FARANDOLE_")]:
                del os.environ[name]
            hvd.init()
            [alone] = hvd.DistributedGradients([np.zeros(1)])([np.full(1, 5.0)])
            assert (alone, session_number()) == (5.0, before)
    [found] = average([np.full(1, 2.0 + member.rank)])
    hvd.shutdown()
    return [float(found[0])]


def test_an_accumulation_goes_on_after_a_task() -> None:
    assert run_job(_between, 2, timeout_s=PATIENCE_S) == [[3.5], [3.5]]


def test_a_thread_of_the_session_gets_no_numbers_of_the_task() -> None:
    assert run_job(_beside, 2, timeout_s=PATIENCE_S) == [[2.0, 2.0]] * 2
