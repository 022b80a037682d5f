"""The contract suite on every number of ranks, and on hosts of even and uneven numbers, in order or not."""

from __future__ import annotations

import pytest

from farandole.testing.engine_contract import CASES
from tests.support.engines.contract import check

LAUNCHES: list[tuple[str, int | str]] = [
    *((engine, size) for engine in ("shm", "tcp") for size in (1, 2, 4)),
    *(("hybrid", hosts) for hosts in ("aa", "ab", "aabb", "aaab", "abbca")),
]
"""Those of ``tests/jobs`` and these; a letter is the host of a rank."""


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("engine", "members"), LAUNCHES)
def test_engine(engine: str, members: int | str, case: str) -> None:
    check(engine, members, case)
