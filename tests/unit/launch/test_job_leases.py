"""Reports of a script to a controller that has not read its journal yet."""

from __future__ import annotations

from farandole.control.run_messages import AdviceView, Progressed
from farandole.launch.job.job_leases import _joined


def test_reports_that_wait_for_the_journal_are_kept_as_one_with_the_last_word_on_each_thing() -> None:
    told = _joined(None, Progressed({"loss": 3.0, "acc": 0.1}, AdviceView(4), 2.0), 1.0)
    for step in range(2, 1000):
        told = _joined(told, Progressed({"loss": 3.0 / step}), float(step))
    assert told == (Progressed({"loss": 3.0 / 999, "acc": 0.1}, AdviceView(4), 2.0), 1.0), "the time of the advice"
    told = _joined(told, Progressed({}, AdviceView(8), 5.0), 1000.0)
    assert told == (Progressed({"loss": 3.0 / 999, "acc": 0.1}, AdviceView(8), 5.0), 1000.0)
