"""Reduced gradients written to tensors of the caller, and the count of what is copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from farandole.adapters.numpy import verbs
from farandole.adapters.numpy_tensors import tensors
from farandole.collective import ReduceOp, Reduction
from farandole.errors import UsageError
from farandole.gradients import list_reducer
from farandole.gradients.list_reducer import ListReducer
from farandole.gradients.optimizer_key import Names, OptimizerKey
from farandole.gradients.reduction_options import ReductionOptions
from farandole.runtime.session.init import init, shutdown
from farandole.runtime.session.process_sets import global_process_set
from farandole.testing.rank import RankContext
from workbench.jobs import run_job

COUNTS = (3, 1000, 2**22)
"""Elements; the last gradient has no place in a bucket."""


def reducer_of(params: list[Any]) -> ListReducer[Any]:
    """A reducer of gradients with the shapes of ``params``."""
    names = Names([(str(i), param) for i, param in enumerate(params)], True)
    identity = OptimizerKey(params, names, global_process_set, "copies")
    return ListReducer(tensors, verbs, lambda: params, identity, ReductionOptions(Reduction(ReduceOp.SUM)))


def reduces(member: RankContext) -> list[Any]:
    """Three steps: into other tensors, into those handed in, and into none."""
    init()
    reducer = reducer_of([np.zeros(count, np.float32) for count in COUNTS])
    said: list[Any] = []
    held: list[Any] = []
    for step in range(3):
        given = [np.full(count, step + 10.0 * member.rank, np.float32) for count in COUNTS]
        into = [[np.zeros_like(each) for each in given], given, []][step]
        before = list_reducer.copied.into_bytes, list_reducer.copied.out_bytes
        reduced: Any = reducer.reduce(given, into=into)
        reducer.vote()
        reducer.stepped()
        held.append(reduced)
        said.append([list_reducer.copied.into_bytes - before[0], list_reducer.copied.out_bytes - before[1]])
        said.append([any(one is each for each in into) for one in reduced])
        said.append([float(each[0]) for each in given])
    said.append([[sorted(set(each.tolist())) for each in reduced] for reduced in held])
    with pytest.raises(UsageError, match="2 results for 3 parameters"):
        reducer.reduce(given, into=given[:2])
    shutdown()
    return said


def test_a_gradient_is_copied_into_the_engine_and_to_its_target_and_a_large_one_only_there() -> None:
    one, other = run_job(reduces, 2)
    whole, without_last = 4 * sum(COUNTS), 4 * sum(COUNTS[:-1])
    for rank, said in enumerate((one, other)):
        assert said[0:3] == [[whole, without_last], [True] * 3, [10.0 * rank] * 3]
        assert said[3:6] == [[without_last, without_last], [True] * 3, [12.0] * 3]
        assert said[6:9] == [[whole, without_last], [False] * 3, [2 + 10.0 * rank] * 3]
        assert said[9] == [[[10.0]] * 3, [[12.0]] * 3, [[14.0]] * 3]


def steps(member: RankContext) -> list[Any]:
    """A gradient that no rank has, and one that only the other has."""
    init()
    reducer = reducer_of([np.zeros(4) for _ in range(3)])
    into = [np.full(4, -1.0) for _ in range(3)]
    own = np.full(4, 3.0)
    reduced: Any = reducer.reduce([own, None, own if member.rank else None], into=into)
    reducer.vote()
    reducer.stepped()
    shutdown()
    return [None if each is None else each.tolist() for each in reduced] + [reduced[2] is into[2]]


def test_a_gradient_of_one_rank_goes_into_the_target_of_both() -> None:
    assert run_job(steps, 2) == [[[6.0] * 4, None, [3.0] * 4, True]] * 2
