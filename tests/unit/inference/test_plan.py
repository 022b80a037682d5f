"""Blocks and batches of a prediction, and random numbers by sample."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.errors import UsageError
from farandole.inference import BlockPlan, Draw

plans = st.builds(
    BlockPlan, samples=st.integers(1, 200), batch_size=st.integers(1, 40), block_batches=st.integers(1, 9)
)


@given(plans)
def test_each_sample_is_in_one_batch_of_one_block(plan: BlockPlan) -> None:
    batches = [batch for block in range(plan.blocks) for batch in plan.batches(block)]
    assert [sample for batch in batches for sample in batch] == list(range(plan.samples))
    assert [sample for block in range(plan.blocks) for sample in plan.rows(block)] == list(range(plan.samples))
    assert all(len(batch) == plan.batch_size for batch in batches[:-1])
    assert all(0 < len(plan.batches(block)) <= plan.block_batches for block in range(plan.blocks))


@given(plans, st.integers(1, 9))
def test_workers_begin_at_different_blocks_and_see_all(plan: BlockPlan, size: int) -> None:
    orders = [plan.order(rank, size) for rank in range(size)]
    assert all(sorted(order) == list(range(plan.blocks)) for order in orders)
    assert len({order[0] for order in orders}) == min(size, plan.blocks)


def test_numbers_that_cannot_be_are_refused() -> None:
    for plan in (BlockPlan(0, 1, 1), BlockPlan(1, 0, 1), BlockPlan(1, 1, 0)):
        with pytest.raises(UsageError, match="at least 1"):
            plan.check()


def test_random_numbers_are_of_the_sample_the_pass_and_the_seed() -> None:
    def of(draw: Draw, sample: int) -> float:
        return float(draw.rng(sample).normal())

    wide, narrow = Draw(3, range(8)), Draw(3, range(5, 6))
    assert of(wide, 5) == of(narrow, 5)
    kinds = [of(Draw(seed, range(9), number), sample) for seed in (0, 1) for number in (0, 1) for sample in (0, 1, 2)]
    assert len(set(kinds)) == len(kinds)
    seeds = [wide.of_pass(number).batch_seed(stream) for number in range(3) for stream in range(3)]
    assert len(set(seeds)) == 9
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_normal_numbers_by_sample_are_normal() -> None:
    drawn = np.array([Draw(0, range(4000)).rng(sample).normal() for sample in range(4000)])
    assert abs(drawn.mean()) < 0.05
    assert abs(drawn.std() - 1) < 0.04
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 0.05
