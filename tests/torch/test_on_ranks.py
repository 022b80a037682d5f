"""Every check of ``checks/`` on 1 to 4 ranks, through the real launcher."""

from __future__ import annotations

from collections.abc import Callable


def test_on_ranks(report: Callable[[int], dict[str, dict[int, str]]], size: int, check: str) -> None:
    found = report(size).get(check, {})
    wrong = "\n".join(f"rank {rank}: {text}" for rank, text in sorted(found.items()) if text)
    assert not wrong, wrong
    assert sorted(found) == list(range(size)), "not every rank came to this check: an earlier one failed"
