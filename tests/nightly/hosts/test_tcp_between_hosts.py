"""The tcp engine between hosts of their own: the contract by both versions of IP, and what a lost host means."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from farandole.testing.engine_contract import CASES, run_contract
from farandole.testing.harness import Died, run_ranks
from farandole.testing.rank import RankContext
from tests.support.patience import PATIENCE_S
from workbench.cluster import Cluster, UnavailableError
from workbench.cluster.ranks import on_hosts

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


def _contract(member: RankContext) -> dict[str, str]:
    from farandole.engines.tcp import TcpEngine

    return run_contract(member, TcpEngine)


@functools.cache
def _launch(by: str) -> list[dict[str, str]]:
    hosts = LAUNCHES[by]
    with _cluster(hosts, ipv4=by == "ipv4") as cluster:
        return run_ranks(_contract, len(hosts), timeout_s=4 * PATIENCE_S, start=on_hosts(cluster, hosts), hosts=hosts)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("by", LAUNCHES)
def test_engine(by: str, case: str) -> None:
    found = {f"rank {rank}": wrong[case] for rank, wrong in enumerate(_launch(by)) if wrong[case]}
    assert not found, "\n".join(f"{rank}:\n{text}" for rank, text in found.items())


def _waits_for_a_silent_host(member: RankContext, connected: str) -> str:
    from farandole.collective import DType, ReduceOp, Reduction
    from farandole.engines.tcp import TcpEngine
    from farandole.errors import CollectiveError

    engine = TcpEngine(member.group("lane", deadline_s=DEADLINE_S), member.exchange)
    array = engine.allocate(8 * 2**20).array(DType.FLOAT32)
    engine.allreduce(array, Reduction(ReduceOp.SUM))
    if member.rank == 0:
        Path(connected).write_text("now")
    try:
        while True:
            engine.allreduce(array, Reduction(ReduceOp.SUM))
    except CollectiveError as error:
        return f"{type(error).__name__}: {error}"


def _is_parted(member: RankContext, moments: str) -> tuple[list[str], list[str]]:
    import dataclasses
    import subprocess

    from farandole.collective import DType, ReduceOp, Reduction
    from farandole.engines import tcp
    from farandole.errors import CollectiveError

    told: list[str] = []
    engines: list[tcp.TcpEngine] = []
    errors = []

    def on_silence(host: str) -> None:
        told.append(host)
        for engine in engines:
            engine.abort(f"nothing comes from {host}")

    group = dataclasses.replace(member.group("lane", deadline_s=60.0), silence_s=1.0, on_silence=on_silence)
    engines.append(tcp.TcpEngine(group, member.exchange_among("first")))
    array = engines[0].allocate(32 * 2**20).array(DType.FLOAT32)
    if member.rank == 1:  # to be slow for longer than a network may be silent is no fault
        subprocess.Popen(["sh", "-c", f"sleep 0.2; kill -STOP {os.getpid()}; sleep 3; kill -CONT {os.getpid()}"])
    for _ in range(10):
        engines[0].allreduce(array, Reduction(ReduceOp.SUM))
    assert not told
    member.exchange(b"")
    if member.rank == 0:
        Path(moments).write_text("now")
    try:
        while True:
            engines[0].allreduce(array, Reduction(ReduceOp.SUM))
    except CollectiveError as error:
        errors.append(f"{type(error).__name__}: {error}")
    try:
        tcp.TcpEngine(group, member.exchange_among("second"))
    except CollectiveError as error:
        errors.append(f"{type(error).__name__}: {error}")
    engines[0].close()
    return told, errors


def test_hosts_between_which_one_way_is_cut_tell_it_in_a_collective_and_when_they_connect(tmp_path: Path) -> None:
    hosts, moments = LAUNCHES["ipv6"], tmp_path / "moments"
    os.mkfifo(moments)
    with _cluster(hosts) as cluster:

        def cut() -> None:
            moments.read_text()  # once rank 0 writes there
            cluster.cut("node1", "node2", one_way=True)

        cutter = threading.Thread(target=cut, daemon=True)
        cutter.start()
        found = run_ranks(
            _is_parted, 2, str(moments), timeout_s=2 * PATIENCE_S, start=on_hosts(cluster, hosts), hosts=hosts
        )
        cutter.join(PATIENCE_S)
    there_to_here = "rank 1 on node2 does not reach rank 0 on node1: no answer"
    lost = f"EngineError: not all of lane could connect to the others. {there_to_here}"
    for (told, errors), other in zip(found, ("node2", "node1"), strict=True):
        assert told in ([other, other], [other])  # unless it hears from the other one first why they do not connect
        # ... or has closed its end, as it has noticed it first; that gets through in the direction which is not cut.
        closed = f"EngineError: the connection to rank 1 on {other} in lane was lost: it was closed"
        assert errors in ([f"AbortError: nothing comes from {other}", lost], [closed, lost])


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
            _waits_for_a_silent_host, 2, str(connected), timeout_s=2 * PATIENCE_S, start=start, hosts=hosts, may_die=[1]
        )
        puller.join(PATIENCE_S)
    assert isinstance(lost, Died)
    assert said == f"StallError: rank 1 on node2 did not join a collective of lane in {DEADLINE_S:g} s"
