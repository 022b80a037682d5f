"""Cases that the ranks of one job play one after the other, as starting a job for each would take long."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence

from farandole.runtime.session.init import current


def play(cases: Mapping[str, Callable[[], object]]) -> dict[str, str]:
    """On one rank: what each case has raised, "" for nothing."""
    found = dict.fromkeys(cases, "not reached")
    for name, case in cases.items():
        try:
            case()
            current().barrier()
            found[name] = ""
        except Exception:
            found[name] = traceback.format_exc()
            break  # out of step with the others, who learn of it by the shutdown
    return found


def require(ranks: Sequence[Mapping[str, str]], case: str) -> None:
    """Fail if ``case`` has raised on any rank."""
    failed = {rank: found[case] for rank, found in enumerate(ranks) if found[case]}
    assert not failed, "\n".join(f"rank {rank}:\n{text}" for rank, text in failed.items())
