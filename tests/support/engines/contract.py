"""The contract suite over an engine of ours: one launch for each number of ranks or placement."""

from __future__ import annotations

import dataclasses
import functools

from farandole.engines import factory
from farandole.engines.engine import Engine, Group, Rendezvous
from farandole.testing.engine_contract import CASES, run_contract
from farandole.testing.harness import run_ranks
from farandole.testing.rank import RankContext
from farandole.testing.thread_engine import ThreadWorld, run_threads
from tests.support.patience import PATIENCE_S

CASES_OF_THREADS = {name: case for name, case in CASES.items() if "leaves_nothing" not in name}
"""All but the one that counts the threads of the process: here, the other members."""


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
def launched(engine: str, members: int | str) -> list[dict[str, str]]:
    """Per rank, what went wrong by case; ``members``: how many ranks, or a letter for the host of each."""
    if isinstance(members, int):
        return run_ranks(_program, members, engine, timeout_s=2 * PATIENCE_S)
    return run_ranks(_program, len(members), engine, timeout_s=3 * PATIENCE_S, hosts=members)


def fake_passes(size: int) -> None:
    """Fail unless the fake, whose ranks are threads, passes the contract."""
    world = ThreadWorld()

    def program(member: RankContext) -> dict[str, str]:
        return run_contract(member, world.create, CASES_OF_THREADS)

    for found in run_threads(program, size, timeout_s=2 * PATIENCE_S):
        assert not any(found.values()), found


def check(engine: str, members: int | str, case: str) -> None:
    """Fail unless all ranks have passed a case."""
    found = {f"rank {rank}": wrong[case] for rank, wrong in enumerate(launched(engine, members)) if wrong[case]}
    assert not found, "\n".join(f"{rank}:\n{text}" for rank, text in found.items())
