"""The numeric attack: 366 all-reduces against float64, on any engine between any ranks, and the same bits everywhere.

    attack(Ranks("hybrid+tcp", hosts="aabb"))       # [] if all are right

``lane="engine"`` calls the engine, in ordinary and in engine memory; ``lane="names"`` goes through a job's session like
a user, three times under each name: by the controller at first, then from rank to rank.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from farandole.collective import Array, DType, Reduction
from farandole.engines.engine import Engine
from farandole.engines.factory import make
from farandole.engines.hybrid.engine import HybridEngine
from farandole.runtime.session.init import init, shutdown
from farandole.testing.bench import MEMORY_BYTES
from farandole.testing.harness import run_ranks
from farandole.testing.rank import RankContext
from farandole.testing.reference import Values, view
from workbench.attacks.arithmetic import CASES, AllreduceCase
from workbench.cluster import Cluster
from workbench.cluster.ranks import on_hosts
from workbench.jobs import NumpyCalls, run_job
from workbench.mpi import LAUNCHERS

TIMES = 3
TIMEOUT_S = 500.0


@final
@dataclass(frozen=True)
class Ranks:
    """Engine and hosts of an attack: ``hosts`` has a letter for each rank, and equal letters share a host.

    All hosts are this machine's loopback interface, unless they are ``apart``, in network namespaces. ``mpi``: the
    launcher that starts the ranks, for engines that need one.
    """

    engine: str
    hosts: str = "aa"
    apart: bool = False
    mpi: str = ""

    def text(self, lane: str = "engine") -> str:
        """Description for reports."""
        where = "hosts " + self.hosts if len(set(self.hosts)) > 1 else f"{len(self.hosts)} ranks"
        started = f", by {self.mpi}" if self.mpi else ""
        return f"{self.engine}, {where}{' in namespaces' if self.apart else ''}{started}, lane {lane}"


def attack(ranks: Ranks, lane: str = "engine") -> list[str]:
    """Play all cases; returns the errors, by rank and case."""
    if lane == "names":
        found = run_job(
            _by_names, len(ranks.hosts), timeout_s=TIMEOUT_S, environment={"FARANDOLE_ENGINE": ranks.engine}
        )
        return _judged(found)
    names = [f"node{1 + sorted(set(ranks.hosts)).index(host)}" for host in ranks.hosts] if ranks.apart else ranks.hosts
    play = functools.partial(run_ranks, _on_engine, len(ranks.hosts), ranks, hosts=names, timeout_s=TIMEOUT_S)
    if ranks.apart:
        with Cluster(len(set(ranks.hosts))) as cluster:
            return _judged(play(start=on_hosts(cluster, list(names))))
    return _judged(play(start=LAUNCHERS[ranks.mpi].start if ranks.mpi else None))


def _judged(found: list[dict[str, tuple[str, bytes]]]) -> list[str]:
    assert all(len(own) == len(CASES) for own in found), "not all cases were played"
    wrong = [f"rank {rank}: {name}: {own[name][0]}" for rank, own in enumerate(found) for name in own if own[name][0]]
    differ = [name for name in found[0] if len({own[name][1] for own in found}) > 1]
    return wrong + [f"{name}: ranks hold different bits" for name in differ]


def _on_engine(member: RankContext, ranks: Ranks) -> dict[str, tuple[str, bytes]]:
    found = {}
    with _engine(member, ranks) as engine:
        memory = engine.allocate(MEMORY_BYTES)
        for case in CASES:
            plain = case.contribution(member.rank, member.size)
            inside = view(memory.array(case.dtype, 0, case.count))
            inside[:] = plain
            engine.allreduce(Array(plain.ctypes.data, plain.size, case.dtype, plain), Reduction(case.op))
            engine.allreduce(memory.array(case.dtype, 0, case.count), Reduction(case.op))
            found[case.name] = _verdict(case, [plain, inside], member, len(set(ranks.hosts)))
    return found


@contextlib.contextmanager
def _engine(member: RankContext, ranks: Ranks) -> Iterator[Engine]:
    group, rendezvous = member.group("attack", deadline_s=120.0), member.exchange_among("attack")
    name, _, across = ranks.engine.partition("+")
    if name == "hybrid" and not ranks.apart:  # the inter-host engine connects on this machine
        engine: Engine = HybridEngine(
            group, rendezvous, lambda g, r: make(across, dataclasses.replace(g, hosts=("localhost",) * g.size), r)
        )
    else:
        if not ranks.apart:
            group = dataclasses.replace(group, hosts=("localhost",) * group.size)
        engine = make(ranks.engine, group, rendezvous)
    try:
        yield engine
    finally:
        engine.close()


def _by_names(member: RankContext) -> dict[str, tuple[str, bytes]]:
    init()
    found = {}
    for case in CASES:
        results = [case.contribution(member.rank, member.size) for _ in range(TIMES)]
        calls = NumpyCalls(dtype=case.dtype if case.dtype is DType.BFLOAT16 else None)
        for values in results:
            calls.allreduce(case.name, values, case.op)
        found[case.name] = _verdict(case, results, member, hosts=1)
    shutdown()
    return found


def _verdict(case: AllreduceCase, results: list[Values], member: RankContext, hosts: int) -> tuple[str, bytes]:
    """Describe the error, with a digest of the bits; one rank checks numbers, because equal bits are equal numbers."""
    said = [case.contribution(rank, member.size) for rank in range(member.size)]
    first, *others = (values.tobytes() for values in results)
    text = "" if member.rank else case.wrong(results[0], said, hosts)
    if not text and any(other != first for other in others):
        text = "another result when it was done again, or in other memory"
    return text, hashlib.blake2b(first, digest_size=16).digest()
