"""The gloo engine between hosts of their own: the contract by both versions of IP, and what a lost host means."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from farandole.testing.cluster import Cluster, UnavailableError
from farandole.testing.cluster.ranks import on_hosts
from farandole.testing.engine_contract import CASES, run_contract
from farandole.testing.harness import Died, run_ranks
from farandole.testing.rank import Member

pytest.importorskip("torch")

LAUNCHES = {"ipv4": ("node1", "node2", "node3"), "ipv6": ("node1", "node2")}
DEADLINE_S = 2.0


@contextmanager
def _cluster(hosts: Sequence[str], ipv4: bool = True) -> Iterator[Cluster]:
    try:
        cluster = Cluster(len(set(hosts)), ipv4=ipv4)
    except UnavailableError as error:
        pytest.skip(str(error))
    with cluster:
        yield cluster


def _contract(member: Member) -> dict[str, str]:
    from farandole.engines.torchdist import GlooEngine

    return run_contract(member, GlooEngine)


@functools.cache
def _launch(by: str) -> list[dict[str, str]]:
    hosts = LAUNCHES[by]
    with _cluster(hosts, ipv4=by == "ipv4") as cluster:
        return run_ranks(_contract, len(hosts), timeout_s=200, start=on_hosts(cluster, hosts), hosts=hosts)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("by", LAUNCHES)
def test_engine(by: str, case: str) -> None:
    found = {f"rank {rank}": wrong[case] for rank, wrong in enumerate(_launch(by)) if wrong[case]}
    assert not found, "\n".join(f"{rank}:\n{text}" for rank, text in found.items())


def _waits_for_a_silent_host(member: Member, connected: str) -> str:
    from farandole.collective import DType, ReduceOp
    from farandole.engines.torchdist import GlooEngine
    from farandole.errors import CollectiveError

    engine = GlooEngine(member.group("lane", deadline_s=DEADLINE_S), member.exchange)
    array = engine.allocate(8 * 2**20).array(DType.FLOAT32)
    engine.allreduce(array, ReduceOp.SUM)
    if member.rank == 0:
        Path(connected).write_text("now")
    try:
        while True:
            engine.allreduce(array, ReduceOp.SUM)
    except CollectiveError as error:
        return f"{type(error).__name__}: {error}"


def test_a_host_that_loses_its_power_is_noticed_at_the_deadline(tmp_path: Path) -> None:
    """Nothing says goodbye: the connection stays established, and only silence comes over it."""
    hosts, connected = LAUNCHES["ipv6"], tmp_path / "connected"
    os.mkfifo(connected)
    with _cluster(hosts) as cluster:

        def pull() -> None:
            connected.read_text()  # once rank 0 writes there
            cluster.kill("node2")

        puller = threading.Thread(target=pull, daemon=True)
        puller.start()
        start = on_hosts(cluster, hosts)
        said, lost = run_ranks(
            _waits_for_a_silent_host, 2, str(connected), timeout_s=120, start=start, hosts=hosts, may_die=[1]
        )
        puller.join(60)
    assert isinstance(lost, Died)
    assert said == f"StallError: rank 1 on node2 did not come to a collective of lane in {DEADLINE_S:g} s"
