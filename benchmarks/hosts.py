"""All-reduce between hosts, which are namespaces of this machine: time and bytes, against Gloo and against the link."""

from __future__ import annotations

from contextlib import ExitStack

from benchmarks.allreduce import human
from benchmarks.fleet import Fleet
from benchmarks.measure import Row, Sample, Table, Verdict
from workbench.cluster import Cluster, UnavailableError

RATE = "1gbit"
MESSAGE_BYTES = 16 * 2**20
SMALL_SIZES = [4, 1024, 4096, 16384, 65536, 2**18, 2**20]
QUICK_SIZES = [4, 4096, 2**20]
HYBRID, GLOO, WIRE = "hybrid", "gloo", "wire"
OVER_GLOO = {2: 0.7, 4: 0.6}
"""What share of Gloo's time is allowed, by ranks on a host."""


def run(quick: bool) -> list[Table]:
    """All tables of this section; one that says why, where this machine cannot have such hosts."""
    try:
        with Cluster(3) as cluster:
            return [_small(cluster, quick), *_large(cluster, quick)]
    except UnavailableError as error:
        return [Table(f"All-reduce between hosts: skipped. {error}", "")]


def _small(cluster: Cluster, quick: bool) -> Table:
    """Latency, on links as fast as this machine makes them."""
    table = Table("All-reduce of float32, 2 hosts with 2 ranks each, links without a limit", "us")
    with ExitStack() as stack:
        fleets = _fleets(stack, cluster, _placed(cluster, 2, 2), (HYBRID, GLOO))
        for nbytes in QUICK_SIZES if quick else SMALL_SIZES:
            times = 20 if quick else 100
            taken = _interleaved(fleets, nbytes, times, rounds=3 if quick else 7)
            samples = {name: Sample.of(seconds * 1e6 for seconds in values) for name, values in taken.items()}
            ratio = Verdict(samples[HYBRID].median / samples[GLOO].median, "x gloo", most=1.0)
            table.rows.append(Row(human(nbytes), samples, (ratio,), nbytes))
    return table


def _large(cluster: Cluster, quick: bool) -> list[Table]:
    """Bandwidth, on links with a limit; and what leaves a host, by the counter of its interface."""
    time = Table(f"All-reduce of {human(MESSAGE_BYTES)}, 2 hosts, links of {RATE}", "ms")
    sent = Table(f"Bytes that leave a host per all-reduce of {human(MESSAGE_BYTES)}", "of 2(N-1)/N n")
    for number, ranks in ((2, 2),) if quick else ((2, 2), (2, 4), (3, 2)):
        placed, what = _placed(cluster, number, ranks), f"{number} hosts with {ranks} ranks each"
        with ExitStack() as stack:
            fleets = _fleets(stack, cluster, placed, (HYBRID, GLOO))
            sent.rows.append(_bytes(cluster, fleets, placed, what))
            if number == 2:  # then as much crosses each way as is reduced, which is what "wire" sends
                fleets += _fleets(stack, cluster, placed, (WIRE,))
                for node in cluster.nodes:
                    cluster.rate(node, RATE)
                    stack.callback(cluster.rate, node, None)
                time.rows.append(_limited(fleets, OVER_GLOO[ranks], 3 if quick else 7, what))
    return [time, sent]


def _limited(fleets: list[Fleet], over_gloo: float, rounds: int, what: str) -> Row:
    taken = _interleaved(fleets, MESSAGE_BYTES, times=3, rounds=rounds)
    samples = {name: Sample.of(seconds * 1e3 for seconds in values) for name, values in taken.items()}
    mine = samples[HYBRID].median
    verdicts = (
        Verdict(mine / samples[GLOO].median, "x gloo", most=over_gloo),
        Verdict(mine / samples[WIRE].median, "x the link's limit", most=1.1),
    )
    return Row(what, samples, verdicts)


def _bytes(cluster: Cluster, fleets: list[Fleet], placed: list[str], what: str) -> Row:
    hosts, samples, times = list(dict.fromkeys(placed)), {}, 2
    least = 2 * (len(hosts) - 1) / len(hosts) * MESSAGE_BYTES
    for fleet in fleets:
        before = [_crossed(cluster, host) for host in hosts]
        fleet.call("reduce", MESSAGE_BYTES, times)
        after = [_crossed(cluster, host) for host in hosts]
        samples[fleet.contender] = Sample.of((b - a) / times / least for a, b in zip(before, after, strict=True))
    return Row(what, samples, (Verdict(max(samples[HYBRID].values), "x the least possible", most=1.05),))


def _crossed(cluster: Cluster, host: str) -> int:
    """What TCP repeats on a busy machine is none of an engine's."""
    return cluster.sent_bytes(host) - cluster.resent_bytes(host)


def _placed(cluster: Cluster, number: int, ranks: int) -> list[str]:
    return [host for host in cluster.nodes[:number] for _ in range(ranks)]


def _fleets(stack: ExitStack, cluster: Cluster, placed: list[str], names: tuple[str, ...]) -> list[Fleet]:
    return [stack.enter_context(Fleet(name, len(placed), cluster, placed)) for name in names]


def _interleaved(fleets: list[Fleet], nbytes: int, times: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of the slowest rank, for each round, which goes from one contender to the next."""
    taken: dict[str, list[float]] = {fleet.contender: [] for fleet in fleets}
    for _ in range(rounds):
        for fleet in fleets:
            taken[fleet.contender].append(max(fleet.call("reduce", nbytes, times)))
    return taken
