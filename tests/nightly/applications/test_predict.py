"""Prediction from real runs of one and two ranks: what is said of two without input is what such a run takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from farandole.predict.model import fit
from farandole.predict.outlook import Question, outlook
from farandole.predict.sources import hidden_s, read
from tests.support.launching import Launch

TRAIN = """
    import time

    import numpy as np

    import farandole.numpy as hvd
    from farandole import data

    hvd.init()

    class Volumes:
        def __len__(self):
            return 8 * 100 * hvd.size()

        def __getitem__(self, index):
            time.sleep(0.01)  # stands for a disk that is slow
            return np.zeros(16, np.float32)

    weights = np.ones(90_000, np.float32)
    reduce = hvd.DistributedGradients([weights])
    for step, batch in enumerate(data.Batches(Volumes(), global_batch_size=8 * hvd.size(), threads=2)):
        time.sleep(0.02)  # stands for the computing of a step
        reduce([weights])
        hvd.log(samples=8 * step)
"""


def test_a_run_without_input_takes_what_was_said_of_it(launch: Launch, tmp_path: Path) -> None:
    launch(1, TRAIN, options=["--record", "one"]).ok()
    launch(2, TRAIN, options=["--record", "two", "--timeline", "trace.json"]).ok()
    launch(2, TRAIN, options=["--record", "fake", "--input", "fake"]).ok()
    measured = [o for name in ("one", "two") for o in read(str(tmp_path / name)).observations]
    assert {(o.ranks, o.kind, o.batch) for o in measured} >= {(1, "load", 8), (2, "load", 8), (2, "wait", 8)}
    [real] = [o.seconds for o in read(str(tmp_path / "fake")).observations if o.kind == "step"]
    [with_input] = [o.seconds for o in measured if o.kind == "step" and o.ranks == 2]
    model = fit(measured)
    as_it_is, without = (
        outlook(model, Question(ranks=[2], per_host=2, changes=changes)).rows[0].step.middle
        for changes in ({}, {"input": "none"})
    )
    assert as_it_is == pytest.approx(with_input, rel=0.1)
    assert real < 0.8 * with_input  # the computing is half of the loading, so there is something to be foretold
    assert without == pytest.approx(real, rel=0.2)
    assert hidden_s(tmp_path / "trace.json") >= 0
