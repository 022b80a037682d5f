"""What is special about the hybrid engine: what crosses, large messages, whom an error reaches, and real hosts."""

from __future__ import annotations

import dataclasses
import functools
import gc
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from subprocess import Popen
from typing import IO, Any

import numpy as np
import pytest

from farandole.collective import Array, DType, ReduceOp, Reduction
from farandole.engines.engine import Engine, Group, Rendezvous
from farandole.engines.factory import make
from farandole.engines.hybrid.engine import HybridEngine
from farandole.errors import EngineError
from farandole.testing.engine_contract import run_contract
from farandole.testing.harness import Died, run_ranks
from farandole.testing.leaks import no_leaks
from farandole.testing.rank import RankContext, error_of
from farandole.testing.reference import Values
from tests.support.patience import PATIENCE_S
from workbench.cluster import Cluster
from workbench.mpi import LAUNCHERS

LARGE = 2_200_000
"""Elements of float32 that make more pieces, and more rounds, than are in flight."""


def _lane(group: Group, rendezvous: Rendezvous) -> Engine:
    """TCP on the loopback interface: the hosts are pretended."""
    from farandole.engines.tcp import TcpEngine

    return TcpEngine(dataclasses.replace(group, hosts=("localhost",) * group.size), rendezvous)


def _engine(member: RankContext, label: str, deadline_s: float = 20.0) -> HybridEngine:
    return HybridEngine(member.group(label, deadline_s=deadline_s), member.exchange_among(label), _lane)


def _array(values: Values) -> Array:
    return Array(values.ctypes.data, values.size, DType.from_name(values.dtype.name), values)


def _what_crosses(member: RankContext) -> dict[str, float]:
    """Do each with large messages; what this member has sent across, in units of one member's part."""
    engine, crossed = _engine(member, "what crosses"), {}
    rank, everybody = member.rank, np.arange(member.size, dtype=np.float32)
    counts = [LARGE + place for place in range(member.size)]
    one, whole = np.full(counts[rank], rank, np.float32), np.empty(sum(counts), np.float32)
    turned = np.empty(counts[rank] * member.size, np.float32)

    def run(kind: str, call: Callable[[], None]) -> None:
        before = int(engine.statistics().get("across_bytes_sent", 0))
        call()
        crossed[kind] = (int(engine.statistics().get("across_bytes_sent", 0)) - before) / (4 * LARGE)

    run("allgather", lambda: engine.allgather(_array(one), _array(whole), counts))
    assert (whole == np.repeat(everybody, counts)).all()
    run("reducescatter", lambda: engine.reducescatter(_array(whole), _array(one), counts, Reduction(ReduceOp.SUM)))
    assert (one == rank * member.size).all()
    whole = np.repeat(everybody + 10 * rank, counts)
    run("alltoall", lambda: engine.alltoall(_array(whole), counts, _array(turned), [counts[rank]] * member.size))
    assert (turned == np.repeat(10 * everybody + rank, counts[rank])).all()
    same = np.full(LARGE, rank, np.float32)
    run("allreduce", lambda: engine.allreduce(_array(same), Reduction(ReduceOp.SUM)))
    assert (same == everybody.sum()).all()
    same[:] = rank
    run("broadcast", lambda: engine.broadcast(_array(same), 1))
    assert (same == 1).all()
    engine.close()
    return crossed


def _large_halves(member: RankContext) -> None:
    engine = _engine(member, "halves")
    values, mine = np.full(100_000, 40_000, np.float16), np.empty(25_000, np.float16)
    engine.allreduce(_array(values), Reduction(ReduceOp.AVERAGE))
    assert (values == 40_000).all()
    engine.reducescatter(_array(values), _array(mine), [25_000] * 4, Reduction(ReduceOp.SUM, postscale=0.25))
    assert (mine == 40_000).all()
    engine.close()


def _dropped(member: RankContext) -> None:
    for attempt in range(2):
        member.exchange(b"")
        try:
            with no_leaks():
                engine = _engine(member, f"dropped {attempt}")
                engine.allreduce(_array(np.ones(LARGE, np.float32)), Reduction(ReduceOp.SUM))
                member.exchange(b"")
                del engine
                gc.collect()
        except AssertionError:
            assert attempt == 0  # the first may load libraries that keep something
            raise
    member.exchange(b"")


def _one_cannot(member: RankContext) -> str:
    def lane(group: Group, rendezvous: Rendezvous) -> Engine:
        if 3 in group.ranks:
            raise EngineError("there is no route")
        return _lane(group, rendezvous)

    with no_leaks():
        return error_of(lambda: HybridEngine(member.group("lame"), member.exchange_among("lame"), lane))


def _one_never_comes(member: RankContext) -> str:
    engine, found = _engine(member, "late", deadline_s=3.0), ""
    if member.rank != 2:
        found = error_of(lambda: engine.allreduce(_array(np.ones(10, np.float32)), Reduction(ReduceOp.SUM)))
        assert error_of(engine.barrier) == found
    member.exchange(b"")
    engine.close()
    return found


def _one_is_interrupted(member: RankContext) -> str:
    engine, values, found = _engine(member, "interrupted"), np.ones(LARGE, np.float32), ""
    left = member.exchange_among("left", (0, 1))
    if member.rank == 0:
        timer = threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT])
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            engine.allreduce(_array(values), Reduction(ReduceOp.SUM))
        timer.join()
        found = error_of(engine.barrier)
        left(b"")
    elif member.rank == 1:  # waits for the other host, too, until the control plane knows

        def tell() -> None:
            left(b"")
            engine.abort("rank 0 on a left")

        thread = threading.Thread(target=tell)
        thread.start()
        found = error_of(lambda: engine.allreduce(_array(values), Reduction(ReduceOp.SUM)))
        thread.join()
    member.exchange(b"")
    engine.close()
    return found


def _neighbours_disagree(member: RankContext) -> str:
    """On the second host; the first one is across by then, where nobody comes."""
    engine = _engine(member, "different")
    values = np.ones(100_000 + (member.rank == 3), np.float32)
    found = error_of(lambda: engine.allreduce(_array(values), Reduction(ReduceOp.SUM)))
    assert error_of(engine.barrier) == found
    member.exchange(b"")
    engine.close()
    return found


def _everything(member: RankContext) -> tuple[dict[str, float], str, str, str, str]:
    _large_halves(member)
    _dropped(member)
    crossed, lame, late = _what_crosses(member), _one_cannot(member), _one_never_comes(member)
    return crossed, lame, late, _neighbours_disagree(member), _one_is_interrupted(member)


@functools.cache
def _launch() -> list[tuple[dict[str, float], str, str, str, str]]:
    """One for most of what is asked below: starting processes that import torch costs more than the rest."""
    return run_ranks(_everything, 4, hosts="aabb", timeout_s=2 * PATIENCE_S)


@pytest.mark.parametrize("hosts", ["aabb", "aaab", "abbca"])
def test_everything_crosses_once_for_each_host(hosts: str) -> None:
    alone = hosts != "aabb"
    crossed = (
        run_ranks(_what_crosses, len(hosts), hosts=hosts, timeout_s=2 * PATIENCE_S)
        if alone
        else [c for c, *_ in _launch()]
    )
    number, leaves = len(set(hosts)), {host: Counter[str]() for host in hosts}
    for host, sent in zip(hosts, crossed, strict=True):
        leaves[host].update(sent)
    for host, sent in leaves.items():
        here = hosts.count(host)
        assert sent["allreduce"] <= 1.001 * 2 * (number - 1) / number
        assert sent["allgather"] <= 1.001 * here * (number - 1)
        assert sent["reducescatter"] <= 1.001 * (len(hosts) - here)
        assert sent["alltoall"] <= 1.001 * here * (len(hosts) - here)
    assert sum(sent["broadcast"] for sent in leaves.values()) <= 1.001 * (number - 1)


def test_all_are_told_if_one_cannot_take_part() -> None:
    assert {said for _, said, *_ in _launch()} == {
        "EngineError: rank 1 on a cannot take part in lame: there is no route"
    }


def test_who_waits_too_long_names_whom_it_has_waited_for() -> None:
    first, second, _, last = (said for _, _, said, *_ in _launch())
    assert first.startswith("StallError: rank 2 on localhost did not join a collective of late in 3 s")
    assert second.startswith("StallError: rank 1 on a waited 3 s")
    assert "missing: rank 0 on a" in second
    assert last.startswith("StallError: rank 3 on b waited 3 s")
    assert "missing: rank 2 on b" in last


def test_neighbours_that_disagree_end_the_engine_on_all_hosts() -> None:
    *elsewhere, third, last = (said for *_, said, _ in _launch())
    assert third == last
    assert third.startswith("EngineError: ")
    assert "rank 2 on b" in third
    assert "rank 3 on b" in third
    assert third.endswith("The other hosts do not know, and different has ended")
    assert all(said.startswith("EngineError: the connection to rank") for said in elsewhere)


def test_an_interrupt_ends_the_engine() -> None:
    first, second, *_ = (said for *_, said in _launch())
    assert first == "EngineError: rank 0 on a was interrupted by KeyboardInterrupt in a collective of interrupted"
    assert second == "AbortError: rank 0 on a left"


def _one_is_killed(member: RankContext) -> tuple[str, str]:
    engine, values = _engine(member, "killed"), np.ones(LARGE, np.float32)
    survivors = member.exchange_among("survivors", (0, 1, 2))
    engine.allreduce(_array(values), Reduction(ReduceOp.SUM))
    if member.rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if member.rank == 2:  # its neighbour has died, which only the control plane sees
        threading.Timer(1.0, engine.abort, ["rank 3 on b was killed"]).start()
    found = error_of(lambda: engine.allreduce(_array(values), Reduction(ReduceOp.SUM)))
    again = error_of(engine.barrier)
    engine.close()
    survivors(b"")
    return found, again


def test_who_loses_its_peer_on_another_host_names_it() -> None:
    *survivors, died = run_ranks(_one_is_killed, 4, hosts="aabb", may_die=[3])
    assert isinstance(died, Died)
    (first, _), (second, _), (third, _) = survivors
    assert all(found == again for found, again in survivors)
    assert "the connection to rank 3 on localhost in killed was lost" in second
    assert third == "AbortError: rank 3 on b was killed"
    # Its neighbour has woken it, or its own peer has left.
    assert "the connection to rank 3 on localhost" in first or "the connection to rank 2 on localhost" in first


def _contract_over_mpi(member: RankContext) -> dict[str, str]:
    from farandole.engines.mpi import MpiEngine

    return run_contract(member, lambda group, rendezvous: HybridEngine(group, rendezvous, MpiEngine))


def test_mpi_may_cross() -> None:
    """Lanes are groups of some ranks only, and a thread of their own moves what is long."""
    launcher = LAUNCHERS["mpich"]
    if lack := launcher.lack():
        pytest.skip(lack)
    found = run_ranks(_contract_over_mpi, 4, hosts="aabb", timeout_s=4 * PATIENCE_S, start=launcher.start)
    assert not [wrong for rank in found for wrong in rank.values() if wrong]


def _over_the_network(member: RankContext) -> str:
    engine = make("hybrid+tcp", member.group(), member.exchange_among("made"))
    values = np.full(LARGE, member.rank, np.float32)
    engine.allreduce(_array(values), Reduction(ReduceOp.SUM))
    assert (values == sum(range(member.size))).all()
    engine.close()
    return engine.name


@pytest.mark.parametrize("places", [(1, 1, 2, 2), (1, 1, 1, 2), (1, 2), (1, 1)])
def test_what_crosses_by_the_counters_of_the_interfaces(cluster: Cluster, places: tuple[int, ...]) -> None:
    hosts = [f"node{place}" for place in places]

    def start(size: int, command: list[str], variables: Mapping[str, str], output: IO[Any]) -> list[Popen[Any]]:
        return [
            cluster.popen(host, [*command, str(rank)], env=variables, stdout=output, stderr=output)
            for rank, host in enumerate(hosts)
        ]

    def crossed(host: str) -> int:
        return cluster.sent_bytes(host) - cluster.resent_bytes(host)

    before = {host: crossed(host) for host in hosts}
    names = run_ranks(_over_the_network, len(hosts), hosts=hosts, start=start)
    number = len(before)
    assert set(names) == {{4: "hybrid", 2: "tcp" if number == 2 else "shm"}[len(hosts)]}
    least = 2 * (number - 1) / number * 4 * LARGE
    for host, bytes_ in before.items():
        # Control goes by a socket in the file system. Making connections takes some kilobytes.
        assert 0.9 * least <= crossed(host) - bytes_ <= 1.05 * least + 100_000
