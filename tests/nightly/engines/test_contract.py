"""Every engine passes the contract suite: one launch for each number of ranks or placement, one test per case."""

from __future__ import annotations

import dataclasses
import functools
import os

import pytest

from farandole.engines import factory
from farandole.engines.engine import Engine, Group, Rendezvous
from farandole.testing.engine_contract import CASES, run_contract
from farandole.testing.harness import run_ranks
from farandole.testing.rank import RankContext

LARGE = bool(os.environ.get("LARGE"))  # see ``make large``
HOSTS = ("aa", "aba", "aabb", *(("ab", "aaab", "abbca") if LARGE else ()))
"""Where the ranks of a hybrid engine are, each letter a host: in numbers that are even or not, in order or not."""
LAUNCHES = [
    ("solo", 1),
    *((engine, size) for engine in ("shm", "tcp") for size in (1, 2, 3, 4) if LARGE or (engine, size) != ("tcp", 2)),
    *(("hybrid", hosts) for hosts in HOSTS),
]


def _lane(group: Group, rendezvous: Rendezvous) -> Engine:
    """TCP on the loopback interface: the hosts are pretended."""
    from farandole.engines.tcp import TcpEngine

    return TcpEngine(dataclasses.replace(group, hosts=("localhost",) * group.size), rendezvous)


def _create(engine: str, group: Group, rendezvous: Rendezvous) -> Engine:
    if engine != "hybrid":
        return factory.make(engine, group, rendezvous)
    from farandole.engines.hybrid.engine import HybridEngine

    return HybridEngine(group, rendezvous, _lane)


def _program(member: RankContext, engine: str) -> dict[str, str]:
    return run_contract(member, functools.partial(_create, engine))


@functools.cache
def _launch(engine: str, members: int | str) -> list[dict[str, str]]:
    if isinstance(members, int):
        return run_ranks(_program, members, engine, timeout_s=120)
    return run_ranks(_program, len(members), engine, timeout_s=180, hosts=members)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("engine", "members"), LAUNCHES)
def test_engine(engine: str, members: int | str, case: str) -> None:
    found = {f"rank {rank}": wrong[case] for rank, wrong in enumerate(_launch(engine, members)) if wrong[case]}
    assert not found, "\n".join(f"{rank}:\n{text}" for rank, text in found.items())
