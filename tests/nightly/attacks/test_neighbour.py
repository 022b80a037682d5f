"""An elastic job whose generations end and form again, on a host where another user does what he can."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.attacks.conditions import neighbour
from workbench.cluster import UnavailableError
from workbench.survival.table import CaseResult


def test_another_user_of_the_host_refuses_and_ends_nobody(tmp_path: Path) -> None:
    """Every second ``init`` of a generation was refused, and so ended the job."""
    try:
        results: list[CaseResult] = neighbour(tmp_path, lambda _: None)
    except UnavailableError as reason:
        pytest.skip(str(reason))
    assert [result.wrong for result in results] == [[], []]
