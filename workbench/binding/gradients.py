"""Cases of gradients: reduced to the same values on all ranks, in buckets or in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from farandole.largebatch.noise import Estimate, NoiseEstimator, across_ranks
from workbench.binding.under_test import BindingUnderTest, Values, raises

SHAPES = {"matrix": (5, 3), "bias": (7,), "scalar": (), "large": (2**17 + 3,), "wide": (2, 600)}
"""Shapes of float64 gradients: ``large`` is reduced in place, the others in buckets."""


def averages_of_many_steps(b: BindingUnderTest) -> None:
    """Means over the ranks, of other values in each step; the gradients that were passed in do not change."""
    reduce = b.distributed(_like(b))
    for step in range(4):
        mine = _tensors(b, _gradients(b.rank, step))
        _same(b, reduce(mine), _mean(b, step))
        _same(b, mine, _gradients(b.rank, step))


def every_floating_dtype(b: BindingUnderTest) -> None:
    """Gradients of several dtypes at once, each in its own."""
    dtypes = [dtype for dtype in b.dtypes if "float" in dtype]
    reduce = b.distributed({dtype: b.make(np.zeros(3), dtype) for dtype in dtypes})
    for _ in range(2):
        found = reduce({dtype: b.make(np.full(3, float(b.rank)), dtype) for dtype in dtypes})
        assert found is not None
        for dtype in dtypes:
            assert b.dtype(found[dtype]) == dtype
            assert b.same(found[dtype], np.full(3, (b.size - 1) / 2), 1e-2), dtype


def every_reduction_of_gradients(b: BindingUnderTest) -> None:
    """Sum, Min, Max and Product, and an average that divides before and after."""
    every = np.stack([_gradients(rank, 0)["matrix"] for rank in range(b.size)])
    expected = {"Sum": every.sum(0), "Min": every.min(0), "Max": every.max(0), "Product": every.prod(0)}
    for op, values in expected.items():
        found = b.distributed({"matrix": b.make(np.zeros((5, 3)))}, op=getattr(b.hvd, op))(
            {"matrix": b.make(every[b.rank])}
        )
        _same(b, found, {"matrix": values}, 1e-9)
    split = b.distributed({"matrix": b.make(np.zeros((5, 3)))}, gradient_predivide_factor=2.0)
    _same(b, split({"matrix": b.make(every[b.rank])}), {"matrix": every.mean(0)}, 1e-9)


def gradients_that_some_ranks_lack(b: BindingUnderTest) -> None:
    """Zeros if one rank has none; nothing if no rank has one; and all of them again in the next step."""
    reduce = b.distributed(_like(b))
    for step in range(3):
        _same(b, reduce(_tensors(b, _gradients(b.rank, step))), _mean(b, step))
        mine: dict[str, Any] = dict(_tensors(b, _gradients(b.rank, step)))
        mine["bias"] = None
        if b.rank == b.size - 1:
            mine["large"] = mine["matrix"] = None
        expected: dict[str, Values | None] = dict(_mean(b, step))
        expected["bias"] = None
        for name in ("large", "matrix"):
            expected[name] = sum((_gradients(rank, step)[name] for rank in range(b.size - 1)), np.zeros(SHAPES[name]))
            expected[name] = None if b.size == 1 else np.asarray(expected[name]) / b.size
        _same(b, reduce(mine), expected)


def reduced_gradients_belong_to_the_script(b: BindingUnderTest) -> None:
    """Results that were kept from a step do not change in later steps."""
    reduce = b.distributed(_like(b))
    kept = [reduce(_tensors(b, _gradients(b.rank, step))) for step in range(3)]
    for step, found in enumerate(kept):
        _same(b, found, _mean(b, step))


def gradients_of_a_set_that_is_not_registered_are_refused(b: BindingUnderTest) -> None:
    """Raised on every rank: unreduced gradients would let the ranks drift apart silently."""
    for process_set in (b.hvd.ProcessSet([0]), *_removed(b)):
        with raises(ValueError, "is not registered in this job"):
            b.distributed(_like(b), process_set=process_set)(_tensors(b, _gradients(b.rank, 0)))
        with raises(ValueError, "is not registered in this job"):
            b.hvd.allreduce(b.make(np.ones(2)), process_set=process_set)


def _removed(b: BindingUnderTest) -> list[Any]:
    if b.size == 1:
        return []
    added = b.hvd.add_process_set([0])
    assert b.hvd.remove_process_set(added)
    return [added]


def gradients_that_are_not_finite(b: BindingUnderTest) -> None:
    """Infinities and NaN of one rank reach all ranks, because every rank must see that a step cannot be taken."""
    reduce = b.distributed(_like(b))
    for odd in (np.inf, -np.inf, np.nan):
        mine, mean = _gradients(b.rank, 0), _mean(b, 0)
        for name in ("bias", "large"):  # one in a bucket, one in place
            mean[name].flat[-1] = odd
            if b.rank == b.size - 1:
                mine[name].flat[-1] = odd
        found = reduce(_tensors(b, mine))
        assert found is not None
        for name, values in mean.items():
            np.testing.assert_allclose(b.values(found[name]), values, 1e-12, 1e-12, equal_nan=True)
    _same(b, reduce(_tensors(b, _gradients(b.rank, 1))), _mean(b, 1))


def sums_over_several_passes(b: BindingUnderTest) -> None:
    """One reduction of the sum of three passes, of which the second has no gradient for one parameter."""
    reduce = b.distributed(_like(b), backward_passes_per_step=3)
    for _ in range(2):
        passes = [_gradients(b.rank, step) for step in range(3)]
        second = {name: None if name == "wide" else tensor for name, tensor in _tensors(b, passes[1]).items()}
        assert reduce(_tensors(b, passes[0])) is None
        assert reduce(second) is None
        found = reduce(_tensors(b, passes[2]))
        means = [_mean(b, step) for step in range(3)]
        expected = {name: sum(mean[name] for mean in means) for name in SHAPES}
        expected["wide"] = means[0]["wide"] + means[2]["wide"]
        _same(b, found, expected)  # type: ignore[arg-type] # a sum of arrays is one


def gradients_of_two_steps_ago(b: BindingUnderTest) -> None:
    """Zeros in the first steps, then the means of two steps ago."""
    reduce = b.distributed(_like(b), lag=2)
    for step in range(5):
        expected = {name: np.zeros(shape) for name, shape in SHAPES.items()} if step < 2 else _mean(b, step - 2)
        _same(b, reduce(_tensors(b, _gradients(b.rank, step))), expected)


def names_in_another_order_on_one_rank(b: BindingUnderTest) -> None:
    """Gradients are matched by their names."""
    names = sorted(SHAPES, reverse=b.rank == b.size - 1)
    reduce = b.distributed({name: b.make(np.zeros(SHAPES[name])) for name in names})
    for step in range(2):
        mine = _gradients(b.rank, step)
        _same(b, reduce(_tensors(b, {name: mine[name] for name in names})), _mean(b, step))


def two_at_once_made_in_another_order(b: BindingUnderTest) -> None:
    """Each is matched by the names of its gradients."""
    order = ["generator", "critic"] if b.rank % 2 else ["critic", "generator"]
    made = {name: b.distributed({name: b.make(np.zeros(4))}) for name in order}
    for _ in range(2):
        for i, name in enumerate(("critic", "generator")):
            found = made[name]({name: b.make(np.full(4, float(b.rank + i)))})
            _same(b, found, {name: np.full(4, (b.size - 1) / 2 + i)})


def gradients_of_a_process_set(b: BindingUnderTest) -> None:
    """Reduced among the members; the other ranks do not take part."""
    if b.size < 3:
        return
    tail = b.hvd.add_process_set(list(range(1, b.size)))
    if b.rank:
        reduce = b.distributed({"w": b.make(np.zeros(3))}, process_set=tail)
        for _ in range(2):
            _same(b, reduce({"w": b.make(np.full(3, float(b.rank)))}), {"w": np.full(3, b.size / 2)})
        del reduce
    b.hvd.barrier()
    b.hvd.remove_process_set(tail)


def another_shape_on_one_rank(b: BindingUnderTest) -> None:
    """An error on every rank, and no rank waits."""
    if b.size == 1:
        return
    shape = (4, 3) if b.rank else (3, 4)
    reduce = b.distributed({"w": b.make(np.zeros(shape))})
    for _ in range(2):
        with raises(b.hvd.HorovodInternalError, "same model"):
            reduce({"w": b.make(np.ones(shape))})


def another_dtype_on_one_rank(b: BindingUnderTest) -> None:
    """An error on every rank, about the dtypes or about different models."""
    if b.size == 1:
        return
    dtype = "float32" if b.rank else "float64"
    reduce = b.distributed({"w": b.make(np.zeros(3), dtype)})
    with raises(b.hvd.HorovodInternalError, "same model|different dtypes"):
        reduce({"w": b.make(np.ones(3), dtype)})


def a_noise_scale_of_what_the_ranks_had(b: BindingUnderTest) -> None:
    """The estimate follows from the norms of the ranks' own gradients and of their mean, and is the same on all."""
    observed = b.observed(_like(b))
    if observed is None or b.size == 1:
        return
    reduce, noise = observed
    batches = [4 + rank for rank in range(b.size)]
    apart = NoiseEstimator(horizon_samples=1e12)
    for step in range(10):
        noise.saw(batches[b.rank])
        _same(b, reduce(_tensors(b, _gradients(b.rank, step))), _mean(b, step))
        if step:  # the batch of the first step is not yet known to all
            norms2 = [_squared_norm(_gradients(rank, step)) for rank in range(b.size)]
            pair = across_ranks(batches, norms2, _squared_norm(_mean(b, step)), [1 / b.size] * b.size)
            apart.add(pair, sum(batches))
    found, expected = noise.estimate(), apart.estimate()
    assert isinstance(found, Estimate), str(found)
    assert isinstance(expected, Estimate)
    for mine, wanted in ((found.trace, expected.trace), (found.norm2, expected.norm2)):
        np.testing.assert_allclose(mine, wanted, 1e-9, 1e-9 * expected.trace)
    assert b.hvd.allgather_object((found.trace, found.norm2)) == [(found.trace, found.norm2)] * b.size


def unequally_many_steps(b: BindingUnderTest) -> None:
    """Ranks that have joined contribute zeros, and averages stay those of all ranks."""
    reduce = b.distributed(_like(b))
    for step in range(b.rank + 2):
        found = reduce(_tensors(b, _gradients(b.rank, step)))
        there = [_gradients(rank, step) for rank in range(b.size) if rank + 2 > step]
        _same(b, found, {name: np.sum([each[name] for each in there], axis=0) / b.size for name in SHAPES})
    b.hvd.join()
    _same(b, reduce(_tensors(b, _gradients(b.rank, 0))), _mean(b, 0))


def gradients_of_a_session_after_another(b: BindingUnderTest) -> None:
    """An object that was made in one session reduces in the next."""
    reduce = b.distributed(_like(b))
    for turn in range(2):
        for step in range(turn + 1):
            _same(b, reduce(_tensors(b, _gradients(b.rank, step))), _mean(b, step))
        b.hvd.shutdown()
        b.hvd.init()
    _same(b, reduce(_tensors(b, _gradients(b.rank, 7))), _mean(b, 7))


def _like(b: BindingUnderTest) -> dict[str, Any]:
    return {name: b.make(np.zeros(shape)) for name, shape in SHAPES.items()}


def _gradients(rank: int, step: int) -> dict[str, Values]:
    """Whole numbers, whose sums are exact."""
    random = np.random.default_rng(1000 * step + rank)
    return {name: np.asarray(random.integers(-8, 9, shape), np.float64) for name, shape in SHAPES.items()}


def _mean(b: BindingUnderTest, step: int) -> dict[str, Values]:
    every = [_gradients(rank, step) for rank in range(b.size)]
    return {name: np.mean([each[name] for each in every], axis=0) for name in SHAPES}


def _squared_norm(gradients: Mapping[str, Values]) -> float:
    return sum(float((each**2).sum()) for each in gradients.values())


def _tensors(b: BindingUnderTest, values: Mapping[str, Values]) -> dict[str, Any]:
    return {name: b.make(each) for name, each in values.items()}


def _same(
    b: BindingUnderTest,
    found: Mapping[str, Any] | None,
    expected: Mapping[str, Values | None],
    tolerance: float = 1e-12,
) -> None:
    assert found is not None, "nothing was reduced"
    assert sorted(found) == sorted(expected)
    for name, values in expected.items():
        if values is None:
            assert found[name] is None, name
        else:
            assert found[name] is not None, name
            assert b.same(found[name], values, tolerance), f"{name} is {b.values(found[name])}, expected {values}"
