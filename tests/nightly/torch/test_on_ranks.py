"""The checks in ``checks/`` on 1 to 4 ranks (``make large``: up to 16), through the real launcher."""

from __future__ import annotations

from collections.abc import Callable

from tests.support import on_ranks


def test_on_ranks(report: Callable[[str], on_ranks.Report], job: str, checks: str) -> None:
    found = {name: by for name, by in report(job).items() if name.startswith((f"{checks}.", "loading"))}
    assert any(name.startswith(checks) for name in found), found
    on_ranks.check(found, job)
