"""Every engine passes the contract suite, for 1, 2, 3 and 4 ranks: one launch each, one test per case."""

from __future__ import annotations

import functools

import pytest

from farandole.engines import factory
from farandole.engines.choose import CANDIDATES
from farandole.testing.engine_contract import CASES, run_contract
from farandole.testing.harness import run_ranks
from farandole.testing.rank import Member

LAUNCHES = [("solo", 1), *((engine, size) for engine in ("shm", "gloo") for size in (1, 2, 3, 4))]


def _program(member: Member, engine: str) -> dict[str, str]:
    return run_contract(member, functools.partial(factory.make, engine))


@functools.cache
def _launch(engine: str, size: int) -> list[dict[str, str]]:
    return run_ranks(_program, size, engine, timeout_s=120)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("engine", "size"), LAUNCHES)
def test_engine(engine: str, size: int, case: str) -> None:
    if engine == "gloo" and (lack := CANDIDATES[engine].lack()):
        pytest.skip(lack)
    found = {f"rank {rank}": wrong[case] for rank, wrong in enumerate(_launch(engine, size)) if wrong[case]}
    assert not found, "\n".join(f"{rank}:\n{text}" for rank, text in found.items())
