"""The checks in ``checks/`` on 1 to 4 ranks (``make large``: up to 16), through the real launcher."""

from __future__ import annotations

from collections.abc import Callable


def test_on_ranks(report: Callable[[str], dict[str, dict[int, str]]], job: str, checks: str) -> None:
    found = {name: by for name, by in report(job).items() if name.startswith((f"{checks}.", "loading"))}
    assert any(name.startswith(checks) for name in found), found
    wrong = [f"{name} on rank {rank}: {text}" for name, by in found.items() for rank, text in by.items() if text]
    assert not wrong, "\n".join(wrong)
    size = int(job.partition("-")[0])
    unfinished = [name for name, by in found.items() if sorted(by) != list(range(size))]
    assert not unfinished, f"some ranks did not come to these: {unfinished}"
