"""Small all-reduces of compiled graphs on ranks: those that meet without Python, and those that do not."""

from __future__ import annotations

from typing import Any

from tests.support.frameworks import lean
from tests.support.paths import SUPPORT


def every_call_has_the_sum_of_all_ranks(launch: Any, size: int, frameworks: list[str], programs: int) -> None:
    """Run generated programs; each rank compares every result, and some calls meet and some do not."""
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **lean(*frameworks)}
    script = SUPPORT / "graphs" / "on_ranks.py"
    job = launch(size, script, arguments=[str(programs), *frameworks], environment=environment, deadline_s=580.0).ok()
    counts = [tuple(map(int, line.split())) for line in job.lines()]
    assert len(counts) == programs
    assert all(met < calls for calls, met in counts)
    assert any(met for _, met in counts) or size == 1
