"""Another user of the hosts tries every way that we know against a training on a real Slurm."""

from __future__ import annotations

import pytest

from workbench.attacks.second_user import WAYS, play
from workbench.cluster import UnavailableError


def test_no_way_of_another_user_works_or_fills_the_first_ones_screen() -> None:
    assert len(WAYS) > 20
    try:
        wrong = play(lambda _: None)
    except UnavailableError as reason:
        pytest.skip(str(reason))
    assert wrong == []
