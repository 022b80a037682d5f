"""Ranks that leave while gradients are on their way: the others need them in every reduction that they have begun."""

from __future__ import annotations

import threading

import numpy as np

import farandole.numpy as hvd
from farandole.runtime.session.init import current, settle_before_leaving
from farandole.testing.rank import RankContext
from tests.support.launching import Launch
from tests.support.patience import PATIENCE_S
from workbench.jobs import run_job

STEPS, LAG = 5, 2


def _leave_without_a_barrier(member: RankContext) -> list[str]:
    """Rank 1 makes its last step when rank 0 has begun to shut down; returns runs that had not ended at the end."""
    hvd.init()
    average = hvd.DistributedGradients({"w": np.zeros(3)}, lag=LAG)
    for step in range(STEPS):
        if member.rank and step == STEPS - 1:
            member.exchange(b"")
        found = average({"w": np.full(3, step + float(member.rank))})
        assert found is not None
        assert found["w"].tolist() == [max(step - LAG + 0.5, 0) if step >= LAG else 0.0] * 3
    if member.rank == 0:
        settle_before_leaving(lambda: list[bytes].clear(member.exchange(b"")))
    left: list[str] = []
    session = current()
    close = session.close

    def look() -> None:
        left.extend(each.name for each in threading.enumerate() if each.name == "farandole-gradient-lag")
        close()

    session.close = look  # type: ignore[method-assign]
    hvd.shutdown()
    return left


def test_shutdown_waits_for_the_reductions_that_this_rank_has_begun() -> None:
    assert run_job(_leave_without_a_barrier, 2, timeout_s=PATIENCE_S) == [[], []]


ENDS = """
    import os, threading
    import numpy as np
    import farandole.numpy as hvd
    from farandole.runtime.session.init import settle_before_leaving

    hvd.init()
    average = hvd.DistributedGradients({{"w": np.zeros(3)}}, lag=2)
    if hvd.rank() == 0:
        os.mkfifo("left")
    hvd.barrier()
    for step in range(5):
        if hvd.rank() == 1 and step == {last}:
            open("left").read()
            {late}
        average({{"w": np.ones(3)}})

    def tell():
        open("left", "w").close()

    if hvd.rank() == 0:
        {end}
"""


def test_so_does_a_script_that_ends(launch: Launch) -> None:
    done = launch(2, ENDS.format(last=4, late="pass", end="settle_before_leaving(tell)")).ok()
    assert not done.stderr


def test_a_script_that_raises_leaves_at_once(launch: Launch) -> None:
    end = "tell(); raise RuntimeError('as the test wants')"
    late = "hvd.barrier()  # for which rank 0 would have to be there"
    done = launch(2, ENDS.format(last=4, late=late, end=end), options=["--grace-seconds", "30"])
    assert done.code == 1
    assert "RuntimeError: as the test wants" in done.stderr
    assert "terminate called" not in done.stderr


UNEVEN = """
    import numpy as np
    import farandole.numpy as hvd

    hvd.init()
    average = hvd.DistributedGradients({"w": np.zeros(3)}, lag=2)
    for _ in range(3 + hvd.rank()):
        average({"w": np.ones(3)})
    if hvd.rank() == 0:
        try:
            hvd.barrier()
        except hvd.HorovodInternalError as error:
            print(type(error).__name__, error)
"""


def test_a_script_that_ends_a_step_later_than_one_that_waits_for_it_is_told(launch: Launch) -> None:
    [line] = launch(2, UNEVEN).ok().lines()
    assert line.startswith("MismatchError deadlock")
    assert "rank 0 on" in line
    assert ".lag: step 3.0" in line


ALONE = """
    import threading
    import numpy as np
    import farandole.numpy as hvd
    from farandole.gradients.lag import LaggedExchange

    hvd.init()
    average = hvd.DistributedGradients({"w": np.zeros(1)}, lag=1)
    average({"w": np.ones(1)})
    joined, forget = threading.Event(), LaggedExchange.forget

    def late(self):
        joined.wait(2)  # longer than a join takes that does not wait for this
        forget(self)

    LaggedExchange.forget = late
    hvd.join()
    late = [each.name for each in threading.enumerate() if each.name.startswith("farandole-join")]
    joined.set()
    print("late", late)
    LaggedExchange.forget = forget
    print([float(average({"w": np.ones(1)})["w"][0]) for _ in range(2)])
    """


def test_a_join_alone_has_dropped_what_lags_behind_when_it_returns(launch: Launch) -> None:
    assert launch(1, ALONE).ok().lines() == ["[0.0, 1.0]", "late []"]
