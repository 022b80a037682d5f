"""A training by the policy alone, on a real Slurm: it grows by advice, is preempted, shrinks by a rule, and ends."""

from __future__ import annotations

import faulthandler
from pathlib import Path

import pytest

from workbench.cluster import SlurmCluster, UnavailableError
from workbench.leases.story_run import EPOCHS, SAMPLES, Story, check, play


def test_a_training_grows_twice_is_preempted_shrinks_and_trains_on_each_sample_once(tmp_path: Path) -> None:
    faulthandler.cancel_dump_traceback_later()  # it is no hang after five minutes
    try:
        slurm = SlurmCluster(4)
    except UnavailableError as reason:
        pytest.skip(str(reason))
    with slurm:
        story = play(slurm, tmp_path)
    assert list(check(story, tmp_path)) == []
    assert story.sizes()[0] == story.sizes()[-1] == 2


def test_the_ledger_of_a_story_finds_what_is_wrong() -> None:
    numbers = list(SAMPLES)
    right = {
        step: [(2, tuple(numbers[: len(numbers) // 2])), (2, tuple(numbers[len(numbers) // 2 :]))]
        for step in range(1, EPOCHS + 1)
    }
    wrong = [
        {step: workers for step, workers in right.items() if step != 3},
        {**right, 3: [(2, right[3][0][1]), (2, right[3][0][1])]},
        {**right, 3: [*right[3], right[3][0]]},
        {**right, 3: [(2, right[3][0][1]), (3, right[3][1][1])]},
    ]
    assert [list(Story([], 0.0, steps, "").mistakes()) for steps in (right,)] == [[]]
    assert all(list(Story([], 0.0, steps, "").mistakes()) for steps in wrong)
