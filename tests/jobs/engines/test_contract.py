"""Every engine of our own passes the contract suite, on as many ranks as show it; on more in ``tests/nightly``."""

from __future__ import annotations

import pytest

from farandole.testing.engine_contract import CASES
from tests.support.engines.contract import check

LAUNCHES = [("solo", 1), ("shm", 2), ("tcp", 2), ("hybrid", "aba")]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("engine", "members"), LAUNCHES)
def test_engine(engine: str, members: int | str, case: str) -> None:
    check(engine, members, case)
