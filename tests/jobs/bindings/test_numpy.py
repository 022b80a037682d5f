"""NumPy's arrays and numbers: what the contract of bindings does not ask of every framework."""

from __future__ import annotations

import contextlib
import random
import sys
from typing import Any

import numpy as np
import pytest

import farandole.numpy as hvd
from farandole.errors import UnsupportedError, UsageError
from farandole.largebatch.noise import Estimate
from farandole.testing.rank import RankContext
from tests.support.bindings.numpy_under_test import FrozenUnderTest, NumpyUnderTest
from workbench.binding.contract import CASES, run_contract
from workbench.binding.refusals import Act
from workbench.jobs import run_job


def _scalars(member: RankContext) -> None:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    for mine, total in (
        (float(rank), sum(range(size)) * 1.0),
        (rank, sum(range(size))),
        (bool(rank), True),
        (complex(0, rank), complex(0, sum(range(size)))),
        (np.float32(rank), np.float32(sum(range(size)))),
        (np.int64(rank), np.int64(sum(range(size)))),
    ):
        for found in (
            hvd.allreduce(mine, op=hvd.Sum),
            hvd.synchronize(hvd.allreduce_async(mine, op=hvd.Sum)),
            hvd.grouped_allreduce([mine, np.ones(2)], op=hvd.Sum)[0],
        ):
            assert (found, type(found)) == (total, type(mine))
        assert type(hvd.broadcast(mine, root_rank=0)) is type(mine)
    zero = np.array(float(rank))
    assert (hvd.allreduce(zero).shape, type(hvd.allreduce(zero))) == ((), np.ndarray)
    assert hvd.allreduce_(zero, op=hvd.Max) is zero
    assert zero == size - 1
    assert hvd.allgather(rank).tolist() == list(range(size))
    assert type(hvd.allreduce(0.5, compression=hvd.Compression.fp16)) is np.float64
    hvd.shutdown()


def test_numbers_come_back_as_numbers() -> None:
    run_job(_scalars, 2)


def _keys(member: RankContext) -> None:
    hvd.init()
    like: dict[Any, Any] = {0: np.zeros(2), "b": np.zeros(3), (1, 2): np.zeros(1)}
    found = hvd.DistributedGradients(like, op=hvd.Sum)({key: np.ones_like(value) for key, value in like.items()})
    assert {key: value.tolist() for key, value in found.items()} == {
        key: [hvd.size()] * len(value) for key, value in like.items()
    }
    with pytest.raises(UsageError, match="the keys of two arrays both read '0'"):
        hvd.DistributedGradients(like | {"0": np.zeros(3)})
    hvd.shutdown()


def test_keys_of_gradients_may_be_anything_that_reads_apart() -> None:
    run_job(_keys, 2)


def _arrays(member: RankContext) -> None:
    hvd.init()
    big_endian = np.arange(3, dtype=">i4")
    assert hvd.allreduce(big_endian, op=hvd.Sum).tolist() == [0, 2, 4]
    assert hvd.allreduce_(big_endian, op=hvd.Sum).dtype == np.dtype(">i4")
    assert big_endian.tolist() == [0, 2, 4]
    assert hvd.allgather(big_endian).tolist() == [0, 2, 4] * 2
    read_only = np.ones(3)
    read_only.flags.writeable = False
    assert hvd.allreduce(read_only, op=hvd.Sum).tolist() == [2.0] * 3
    assert hvd.allgather(read_only).shape == (6,)
    fresh = hvd.allreduce(np.asmatrix(np.ones((2, 2))))
    assert type(fresh) is np.ndarray
    assert fresh.flags.writeable
    alone = hvd.rank() == 1  # the other is told what this one cannot do
    cases: tuple[tuple[Act, Act, str], ...] = (
        (lambda: hvd.allreduce_(read_only), lambda: hvd.allreduce_(np.ones(3)), r"read-only.*pass x\.copy\(\)"),
        (lambda: hvd.broadcast_(read_only, 0), lambda: hvd.broadcast_(np.ones(3), 0), "read-only"),
        (lambda: hvd.allreduce_(1.0), lambda: hvd.allreduce_(np.array(1.0)), "a float cannot be written in place"),
        (lambda: hvd.allreduce([1.0]), lambda: hvd.allreduce(np.ones(1)), r"a list is neither.*pass np\.asarray"),
        (lambda: hvd.allreduce(2**70), lambda: hvd.allreduce(2), "an array of object does not travel"),
        (lambda: hvd.allreduce(np.ma.ones(1)), lambda: hvd.allreduce(np.ones(1)), r"masked.*x\.filled\(\)"),
        (
            lambda: hvd.allreduce(np.ma.ones(1), compression=hvd.Compression.fp16),
            lambda: hvd.allreduce(np.ones(1)),
            r"masked.*x\.filled\(\)",
        ),
    )
    for wrong, right, text in cases:
        with pytest.raises(ValueError if alone else hvd.HorovodInternalError, match=text):
            (wrong if alone else right)()
    with pytest.raises(ValueError, match="read-only") if alone else pytest.raises(hvd.HorovodInternalError):
        hvd.broadcast_parameters({"w": read_only if alone else np.ones(3)}, root_rank=0)
    assert read_only.tolist() == [1.0] * 3
    hvd.shutdown()


def _shared(member: RankContext) -> None:
    hvd.init()
    for count in (10, 400_000):
        x, y = np.full(count, 1.0 + hvd.rank()), np.ones((2, count))
        hvd.grouped_allreduce_([x, x, y, x[1 : count // 2], y.T, y[0]], op=hvd.Sum)
        assert (np.unique(x).tolist(), np.unique(y).tolist()) == ([3.0], [2.0])
    hvd.shutdown()


def test_arrays_of_a_group_that_share_memory_are_reduced_once() -> None:
    run_job(_shared, 2)


def test_arrays_that_cannot_be_used_as_they_lie() -> None:
    run_job(_arrays, 2)


def _gradients(member: RankContext) -> None:
    hvd.init()
    alone = hvd.rank() == 1
    average = hvd.DistributedGradients([np.zeros(2), np.zeros(())])
    whole = average([np.full(2, hvd.rank()), hvd.rank()])  # their average is none
    assert whole is not None
    assert [each.tolist() for each in whole] == [[0.5, 0.5], 0.5]
    cases: tuple[tuple[Any, str], ...] = (
        ([np.ones(2)], "1 gradients for 2 arrays"),
        ({"0": np.ones(2)}, "a dict where it was made of a list"),
        ([np.ma.ones(2), 1.0], r"masked.*x\.filled"),
        ([np.ones(3), 1.0], r"the shape \(3,\), it was \(2,\)"),
    )
    for wrong, text in cases:
        with pytest.raises(ValueError if alone else hvd.HorovodInternalError, match=text if alone else "raised"):
            average(wrong if alone else [np.ones(2), 1.0])
    other = average([np.arange(2).astype(">f8"), np.array(1, ">f4")])
    assert [each.tolist() for each in other] == [[0.0, 1.0], 1.0]
    passes = hvd.DistributedGradients([np.zeros(2)], backward_passes_per_step=2)
    passes([np.ones(2)])
    with pytest.raises(
        ValueError if alone else hvd.HorovodInternalError, match=r"shape \(1,\) in a pass" if alone else ""
    ):
        passes([np.ones(1 if alone else 2)])
    named = hvd.DistributedGradients({"w": np.zeros(2)}, op=hvd.Sum)
    with pytest.raises(ValueError if alone else hvd.HorovodInternalError, match="'v' is not among" if alone else ""):
        named({"v" if alone else "w": np.ones(2)})
    assert named({"w": np.ones(2)})["w"].tolist() == [2.0, 2.0]
    wrongs: tuple[dict[str, Any], ...] = (
        {"op": hvd.Adasum},
        {"lag": -1},
        {"backward_passes_per_step": 0},
        {"gradient_predivide_factor": 2, "op": 1},
    )
    for arguments in wrongs:
        with pytest.raises(ValueError, match=r"Adasum|start from 1|op=Average"):
            hvd.DistributedGradients([np.zeros(2)], **arguments)
    hvd.shutdown()


def _reused(member: RankContext) -> None:
    hvd.init()
    gradient = np.empty(3)
    whole = hvd.DistributedGradients([np.zeros(3)], backward_passes_per_step=2)
    lagging = hvd.DistributedGradients([np.zeros(2**18)], lag=1)
    for step in range(3):
        gradient[:] = 1 + hvd.rank()
        assert whole([gradient]) is None
        gradient[:] = 10
        assert whole([gradient])[0].tolist() == [11.5] * 3
        large = np.full(2**18, 1.0 + step)
        found = lagging([large])[0]
        large[:] = -1.0
        assert np.all(found == float(step))
    hvd.shutdown()


def test_a_script_may_write_the_next_gradient_where_the_last_one_was() -> None:
    run_job(_reused, 2)


def test_gradients_that_do_not_fit_are_an_error_on_every_rank() -> None:
    run_job(_gradients, 2)


def _noise(member: RankContext, overlap: str) -> None:
    hvd.init(overlap=overlap, bucket_bytes=200)
    CASES["a_noise_scale_of_what_the_ranks_had"](NumpyUnderTest())
    average = hvd.DistributedGradients({"z": np.zeros(3, np.complex64)}, backward_passes_per_step=2)
    noise = hvd.NoiseScale(average, every=1, summed_passes=True)
    assert "no step was measured yet" in str(noise.estimate())
    for _ in range(20):
        for sign in (1, -1):
            noise.saw(2)
            average({"z": np.full(3, 1j + sign * (hvd.rank() + 1))})
    found = noise.estimate()
    assert isinstance(found, Estimate)
    assert found.norm2 + found.trace / 8 == pytest.approx(3.0)  # of the mean over all passes and ranks
    with pytest.raises(ValueError, match="already that reads"):
        hvd.NoiseScale(average)
    with pytest.raises(UnsupportedError, match="virtual_workers"):
        hvd.NoiseScale(hvd.DistributedGradients([np.zeros(2)], virtual_workers=4))
    hvd.shutdown()


@pytest.mark.parametrize("overlap", ["step", "backward"])
def test_the_noise_scale_is_read_however_gradients_are_reduced(overlap: str) -> None:
    run_job(_noise, 2, overlap)


def _shards_that_are_wrong(average: hvd.DistributedGradients, alone: bool) -> None:
    """Errors on every rank, and the next step works; rank 1 has the shards 3 and 4."""
    fine = [np.ones(2), np.ones(())]
    cases: tuple[tuple[list[Any], str], ...] = (
        ([[np.ones(2)]], "1 gradients for 2 arrays"),
        ([[np.ones(3), 1.0]], r"float64 with shape \(3,\)"),
        ([[np.ones(2, np.float32), 1.0]], "a gradient of float32"),
        ([fine, fine], "once for each shard"),
        ([], "has no gradients"),
    )

    def step(of_shard_3: list[Any]) -> None:
        for shard in average.shards(10):
            for given in of_shard_3 if alone and shard.number == 3 else [fine]:
                average.add(given)
        average.total()

    for wrong, text in cases:
        with pytest.raises(ValueError if alone else hvd.HorovodInternalError, match=text if alone else "raised"):
            step(wrong)
    step([fine])
    for call, said in (
        (lambda: average(fine), "takes those of each shard"),
        (lambda: average.add(fine), r"for the loop over shards\(\)"),
        (average.total, "after 0 of this worker's"),
    ):
        with pytest.raises(ValueError, match=said):
            call()


def _virtual(member: RankContext) -> list[float]:
    hvd.init()
    average = hvd.DistributedGradients([np.zeros(2), np.zeros(())], virtual_workers=5)
    drawn = []
    for _ in range(2):
        for shard in average.shards(10):
            drawn.append(random.random())
            given = np.full(2, shard.number)
            average.add([given, None])
            assert given.tolist() == [shard.number] * 2
        total, unused = average.total()
        assert (total.tolist(), unused) == ([2.0, 2.0], None)
    assert average.steps == 2
    before = random.getstate()
    with contextlib.suppress(ZeroDivisionError):
        for _ in average.shards(10):
            1 / 0  # noqa: B018
    assert random.getstate() == before
    _shards_that_are_wrong(average, hvd.rank() == 1)
    wrongs: tuple[dict[str, Any], ...] = (
        {"virtual_workers": 0},
        {"virtual_workers": 4, "lag": 1},
        {"virtual_workers": 4, "op": hvd.Max},
    )
    for options in wrongs:
        with pytest.raises(ValueError, match=r"at least 1|use either|op is Average or Sum"):
            hvd.DistributedGradients([np.zeros(2)], **options)
    with pytest.raises(ValueError, match="needs virtual workers"):
        hvd.DistributedGradients([np.zeros(2)]).shards(3)
    hvd.shutdown()
    return drawn


def test_gradients_of_virtual_workers() -> None:
    every = [value for drawn in run_job(_virtual, 2) for value in drawn]
    assert len(set(every)) == 10, "every shard has a random stream of its own"


def test_bfloat16_without_ml_dtypes_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ValueError, match=r"pip install ml_dtypes.*fp16"):
        hvd.Compression.bf16.compress(np.ones(2))


def _frozen(member: RankContext) -> dict[str, str]:
    hvd.init()
    found = run_contract(FrozenUnderTest())
    hvd.shutdown()
    return found


def test_a_binding_whose_tensors_cannot_be_written_to_keeps_the_contract() -> None:
    for found in run_job(_frozen, 2):
        assert found == dict.fromkeys(CASES, "")
