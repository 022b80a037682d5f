"""The contract suite on every number of ranks, and on hosts of even and uneven numbers, in order or not."""

from __future__ import annotations

import pytest

from farandole.testing.engine_contract import CASES
from tests.support.engines.contract import check, fake_passes

LAUNCHES: list[tuple[str, int | str]] = [
    *((engine, size) for engine in ("shm", "tcp") for size in (1, 3, 4)),
    *(("hybrid", hosts) for hosts in ("aa", "ab", "aabb", "aaab", "abbca")),
]
"""Those of ``tests/jobs`` and these; a letter is the host of a rank."""


def test_the_fake_passes_with_three_threads() -> None:
    fake_passes(3)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("engine", "members"), LAUNCHES)
def test_engine(engine: str, members: int | str, case: str) -> None:
    check(engine, members, case)
