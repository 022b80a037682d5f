"""The calls of Cray's plugin on NumPy's arrays: both phases, both switches, teams, and what is refused."""

from __future__ import annotations

from tests.support.launching import Launch

SCRIPT = """
    import threading
    import dl_comm
    import ml_comm as mc
    import numpy as np
    import farandole.numpy as hvd
    from farandole.errors import UnsupportedError, UsageError

    def drawn(step, rank, dtype="float32"):
        generator = np.random.default_rng(100 * step + rank)
        return [generator.normal(size=shape).astype(dtype) for shape in ((3, 5), (), (41,), (0,), (2, 2, 2))]

    def mean(step, dtype="float32"):
        return [hvd.allreduce(each, name=f"{step}.{i}") for i, each in enumerate(drawn(step, mc.get_rank(), dtype))]

    def same(found, expected):
        for one, other in zip(found, expected, strict=True):
            assert one.shape == other.shape
            assert one.dtype == other.dtype
            assert np.array_equal(one, other), (one, other)

    def zeros():
        return [np.zeros_like(each) for each in drawn(0, 0)]

    before = threading.active_count()
    mc.init_mpi()
    mc.init(2, 2, 100, "numpy")
    assert (mc.get_rank(), mc.get_nranks()) == (hvd.rank(), 2)
    rank = mc.get_rank()

    for dtype in ("float32", "float64"):  # blocks until told otherwise, and gives the bits of allreduce
        for step in range(3):
            same(mc.gradients(drawn(step, rank, dtype), 0), mean(step, dtype))

    mc.config_team(0, 0, 3, 8, 2, 4)
    mc.config_team(1, 0, 0, 8)
    for step in range(8):
        expected = mean(step) if step < 3 else zeros() if step == 3 else mean(step - 1)
        same(mc.gradients(drawn(step, rank), 0), expected)
        same(mc.gradients(drawn(step + 50, rank), 1), mean(step + 49) if step else zeros())

    mc.config_team(0, 0, -3, 8)  # the cool-down of CosmoFlow
    mc.config_team(1, 0, 8, 8)   # the commonest: blocks always
    for step in range(8):
        expected = mean(step) if step >= 5 else mean(step - 1) if step else zeros()
        same(mc.gradients(drawn(step, rank), 0), expected)
        same(mc.gradients(drawn(step, rank), 1), mean(step))

    same(mc.broadcast(drawn(1, rank), 1), drawn(1, 1))
    x = np.full(4, rank + 1.0, np.float32)
    assert mc.average(x) is x and x.tolist() == [1.5] * 4
    assert mc.check_buffers_match([np.ones(3), np.zeros(2)], 1) == 0
    assert mc.check_buffers_match([np.ones(3), np.full(2, float(rank))], 1) == 1
    assert mc.check_buffers_match([np.ones(2)] * (1 + rank)) == 1
    same(mc.gradients(iter(drawn(3, rank)), 0), mean(3))
    mc.barrier()
    for kind, call in (
        (UsageError, lambda: mc.gradients([np.ones(101, np.float32)], 0)),
        (UsageError, lambda: mc.gradients([np.ones(1, np.float32)], 2)),
        (UnsupportedError, lambda: mc.gradients([np.ones(1, np.int32)], 0)),
        (UnsupportedError, lambda: mc.config_team(0, 1, 1, 1)),
        (UsageError, lambda: mc.init(0, 1, 1)),
        (UsageError, lambda: mc.config_team(0, 0, rank, 8)),
        (UsageError, lambda: mc.average([1.0])),
    ):
        try:
            call()
        except kind as error:
            assert "ml_comm" in str(error), error
        else:
            raise AssertionError(kind)
    mc.config_team(0, 0, 0, 9)
    mc.gradients(drawn(0, rank), 0)
    try:
        mc.gradients([np.ones(2, np.float32)], 0)
    except UsageError as error:
        assert "another list" in str(error)
    else:
        raise AssertionError("the average of other tensors")
    mc.finalize()
    assert threading.active_count() == before, threading.enumerate()
    assert dl_comm.gradients is mc.gradients
    print("done")
"""


def test_the_calls_of_crays_plugin(launch: Launch) -> None:
    done = launch(2, SCRIPT, options=["--cray"]).ok()
    assert done.lines().count("done") == 2
    assert "ml_comm: 0 of 2 buffers differ" in done.stdout
    assert "ml_comm: 1 of 2 buffers differ [1]" in done.stdout
    assert "ml_comm: team 0, step 4: waited" in done.stdout
