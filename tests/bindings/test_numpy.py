"""NumPy's arrays and numbers: what the contract of bindings does not ask of every framework."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import farandole.numpy as hvd
from farandole.testing.binding.contract import CASES, run_contract
from farandole.testing.binding.refusals import Act
from farandole.testing.jobs import run_job
from farandole.testing.rank import RankContext
from tests.bindings.under_test import NumpyUnderTest


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
    )
    for wrong, right, text in cases:
        with pytest.raises(ValueError if alone else hvd.HorovodInternalError, match=text):
            (wrong if alone else right)()
    with pytest.raises(ValueError, match="read-only") if alone else pytest.raises(hvd.HorovodInternalError):
        hvd.broadcast_parameters({"w": read_only if alone else np.ones(3)}, root_rank=0)
    assert read_only.tolist() == [1.0] * 3
    hvd.shutdown()


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
        ([np.ones(3), 1.0], r"the shape \(3,\), it was \(2,\)"),
    )
    for wrong, text in cases:
        with pytest.raises(ValueError if alone else hvd.HorovodInternalError, match=text if alone else "raised"):
            average(wrong if alone else [np.ones(2), 1.0])
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


def test_gradients_that_do_not_fit_are_an_error_on_every_rank() -> None:
    run_job(_gradients, 2)


def test_bfloat16_without_ml_dtypes_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ValueError, match=r"pip install ml_dtypes.*fp16"):
        hvd.Compression.bf16.compress(np.ones(2))


def _broken(**functions: Callable[..., Any]) -> dict[str, str]:
    """Findings of the contract, alone, over a binding with some functions replaced."""
    under_test = NumpyUnderTest()
    under_test.hvd = SimpleNamespace(**{**{n: getattr(hvd, n) for n in hvd.__all__}, **functions})
    hvd.init()
    try:
        return run_contract(under_test)
    finally:
        hvd.shutdown()


def _unscaled(x: object, *given: object, prescale_factor: float = 1.0, **named: object) -> object:
    return hvd.allreduce(x, *given, **named)  # type: ignore[arg-type]


def _uncounted(x: object, splits: object = None) -> object:
    return hvd.alltoall(x)


BROKEN: dict[str, dict[str, Callable[..., Any]]] = {
    "every_reduction": {"allreduce": _unscaled},
    "shapes_and_strides": {"allreduce_": hvd.allreduce},
    "in_place_and_asynchronous_variants": {"poll": lambda *_: True},
    "grouped_allreduce": {"grouped_allreduce_": hvd.grouped_allreduce},
    "alltoall": {"alltoall": _uncounted},
    "parameters_in_all_forms": {"broadcast_parameters": lambda *_, **__: None},
    "what_cannot_be_right_raises_at_once": {"broadcast": lambda x, *_, **__: x},
    "the_topology_and_the_probes": {"local_size": lambda: 2},
    "a_session_after_another": {"shutdown": lambda: None},
}
"""Case that has to find it, and what is wrong."""


@pytest.mark.parametrize("case", BROKEN)
def test_the_contract_finds_a_binding_that_is_wrong(case: str) -> None:
    found = _broken(**BROKEN[case])
    assert [name for name, wrong in found.items() if wrong] == [case]


def test_a_binding_alone_keeps_the_contract() -> None:
    assert _broken() == dict.fromkeys(CASES, "")
