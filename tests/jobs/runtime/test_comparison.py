"""Comparison of parameters beside the planned lane: what it keeps."""

from __future__ import annotations

import gc
import weakref

import numpy as np

from farandole.adapters.numpy_tensors import tensors
from farandole.gradients.comparison import ParameterComparison
from farandole.runtime.session.init import current, init, shutdown
from farandole.runtime.session.process_sets import global_process_set
from farandole.testing.rank import RankContext
from workbench.jobs import run_job


def _sessions(member: RankContext) -> None:
    comparison = ParameterComparison(tensors, global_process_set, "Adasum")
    for _ in range(2):
        init()
        comparison.compare("compare", lambda: [("w", np.ones(3))])
        session = weakref.ref(current())
        shutdown()
        gc.collect()
        assert session() is None, "a session that is over is kept"


def test_a_comparison_outlives_sessions_and_keeps_none() -> None:
    run_job(_sessions, 2)
