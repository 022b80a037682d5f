"""The checks in ``checks/`` on 1 to 4 ranks (``make large``: up to 16), through the real launcher."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.torch.ranks import checks_in


def test_on_ranks(report: Callable[[str], dict[str, dict[int, str]]], job: str, checks: str) -> None:
    names = checks_in(Path(__file__).parent / "checks" / f"{checks}.py")
    assert names
    found = {name: report(job).get(f"{checks}.{name}", {}) for name in names}
    wrong = [f"{name} on rank {rank}: {text}" for name, by in found.items() for rank, text in by.items() if text]
    assert not wrong, "\n".join(wrong)
    size = int(job.partition("-")[0])
    unfinished = [name for name, by in found.items() if sorted(by) != list(range(size))]
    assert not unfinished, f"an earlier check failed, so these did not run: {unfinished}"
