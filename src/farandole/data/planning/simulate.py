r"""Simulation of a plan: bytes that are read and sent, and waits, before a job is submitted.

    staging = plan(sizes, [HostSpec(f"host{n:02}", 200 * 10**9) for n in range(16)])
    foretold = foretell(staging, StagingRates(shared=5e9, host=2e9), epochs=50)
    print("\n".join(table(staging, foretold)))

Byte counts are exact. Times are those of flows that share resources: the shared storage divides its rate among the
hosts that read, each link carries both directions, and a copy starts as soon as its read is complete.
"""

from __future__ import annotations

from typing import Final, NamedTuple, final

import numpy as np
import numpy.typing as npt

from farandole.data.planning.keyed import key_of, mix
from farandole.data.planning.order import ExactOrder
from farandole.data.planning.placement import Ints
from farandole.data.planning.plan import StagingPlan
from farandole.data.planning.shares import crossing, share_out
from farandole.errors import UsageError

_BATCHES: Final = 64
"""Batches that are simulated to count the rows that cross hosts."""
_MOST_HOSTS: Final = 24
"""Most hosts that a table lists."""


@final
class StagingRates(NamedTuple):
    """Bytes per second: of shared storage for all hosts together, and of each host's link, in each direction."""

    shared: float
    host: float


@final
class StagingForecast(NamedTuple):
    """Bytes and seconds that a plan will take."""

    epochs: int
    reads: Ints
    """Bytes that each host reads from the shared storage in the first epoch."""
    receives: Ints
    """Bytes that each host copies from others until all is staged."""
    shared_bytes: int
    """Bytes that the job reads from the shared storage in all epochs."""
    peer_bytes: int
    """Bytes of rows that lie on another host than their rank, in each epoch."""
    first_batch_s: float
    staged_s: float
    alone_s: float
    """Seconds until each host would have copied all data by itself."""


def foretell(
    plan: StagingPlan, rates: StagingRates, epochs: int = 1, window: int = 8, rows_per_host: int = 64
) -> StagingForecast:
    """Predict bytes and times of ``plan``; the first batch needs ``window`` pieces, a host gets ``rows_per_host`` rows.

    Raises ``UsageError`` for rates that are not above 0.
    """
    if min(rates) <= 0:
        raise UsageError(f"rates of {rates.shared:g} and {rates.host:g} bytes per second: both must be above 0")
    hosts, read = len(plan.names), plan.reads >= 0
    reads = _per_host(plan.reads[read], plan.sizes[read], hosts)
    kept = read & ~plan.streamed
    staged = _per_host(plan.reads[kept], plan.sizes[kept], hosts)
    sent = plan.sizes[plan.sends.pieces]
    receives = _per_host(plan.sends.targets, sent, hosts)
    sends = _per_host(plan.sends.sources, sent, hosts)
    wire_s = max(int((staged + receives).max()), int(sends.max())) / rates.host
    last_s = int(sent.max(initial=0)) / rates.host  # the last piece that is read is still to be copied
    first = ExactOrder(len(plan.sizes), 0, 0)[:window]
    first = first[plan.reads[first] >= 0]
    return StagingForecast(
        epochs=epochs,
        reads=reads,
        receives=receives,
        shared_bytes=plan.shared_bytes(epochs),
        peer_bytes=round(crossing_share(plan, rows_per_host) * plan.data_bytes),
        first_batch_s=_read_s(_per_host(plan.reads[first], plan.sizes[first], hosts), rates),
        staged_s=max(_read_s(staged, rates) + last_s, wire_s),
        alone_s=plan.data_bytes * max(hosts / rates.shared, 1 / rates.host),
    )


def crossing_share(plan: StagingPlan, rows_per_host: int) -> float:
    """Estimate the share of rows of an exact shuffle that lie on another host than their rank, from a few batches."""
    hosts = len(plan.names)
    ends = np.cumsum(plan.sizes)
    rows, crossed = hosts * rows_per_host, 0
    if not len(ends) or not rows:
        return 0.0
    batches = max(1, min(_BATCHES, (1 << 18) // rows))
    for batch in range(batches):
        hashed = mix(np.arange(rows, dtype=np.uint64) ^ np.uint64(key_of("rows", batch)))
        pieces = np.searchsorted(ends, (hashed / 2.0**64 * ends[-1]).astype(np.int64), side="right")
        holders = plan.copies[pieces]
        streamed = np.flatnonzero(plan.streamed[pieces])
        holders[streamed, plan.reads[pieces[streamed]]] = True
        crossed += crossing(holders, range(hosts), share_out(holders, range(hosts), [rows_per_host] * hosts))
    return crossed / (rows * batches)


def table(plan: StagingPlan, foretold: StagingForecast) -> list[str]:
    """The plan as lines of at most 80 columns."""
    hosts, capacities = len(plan.names), plan.capacities
    cache = readable(int(capacities.max()))
    each = f"{cache} of cache each" if capacities.min() == capacities.max() else f"up to {cache} of cache"
    alone, epochs = readable(hosts * plan.data_bytes), f"{foretold.epochs} epoch{'s' * (foretold.epochs != 1)}"
    rows = [
        ("copies of each piece", str(plan.replicas), f"{hosts} hosts, {each}"),
        ("kept in caches", readable(plan.data_bytes - plan.streamed_bytes), "of different pieces"),
        ("read again in each epoch", readable(plan.streamed_bytes), "caches are too small for it"),
        ("read from shared storage", readable(foretold.shared_bytes), f"in {epochs} (cp on each host: {alone})"),
        ("copied between hosts", readable(plan.sent_bytes), "once, while staging"),
        ("rows that cross hosts", readable(foretold.peer_bytes), "in each epoch"),
        ("first batch after", duration(foretold.first_batch_s), ""),
        ("all staged after", duration(foretold.staged_s), f"cp on each host: {duration(foretold.alone_s)}"),
    ]
    if not plan.streamed_bytes:
        del rows[2]
    head = f"{readable(plan.data_bytes)} in {len(plan.sizes):,} pieces on {hosts} host{'s' * (hosts != 1)}"
    lines = [head, "", *(f"{name:<24} {value:>9}   {remark}".rstrip() for name, value, remark in rows), ""]
    width = min(22, max(4, *map(len, plan.names)))
    lines.append(f"{'host':<{width}} {'cache':>10} {'keeps':>10} {'reads':>10} {'copies':>10} {'drops':>10}")
    drops = _per_host(plan.drops.hosts, plan.sizes[plan.drops.pieces], hosts)
    columns = (capacities, plan.loads(), foretold.reads, foretold.receives, drops)
    shown = hosts if hosts <= _MOST_HOSTS else _MOST_HOSTS - 4
    for number, name in enumerate(plan.names[:shown]):
        cells = " ".join(f"{readable(int(column[number])):>10}" for column in columns)
        lines.append(f"{name[:width]:<{width}} {cells}")
    if shown < hosts:
        rest = foretold.reads[shown:]
        lines.append(f"and {hosts - shown} more, which read {readable(int(rest.min()))} to {readable(int(rest.max()))}")
    return lines


def readable(nbytes: int) -> str:
    """A number of bytes with three digits and its unit, as disks are sold: 200 GB are 2 * 10**11."""
    value, units = float(nbytes), ["B", "kB", "MB", "GB", "TB", "PB", "EB"]
    while value >= 999.5 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.{0 if units[0] == 'B' or value >= 99.95 else 1 if value >= 9.995 else 2}f} {units[0]}"


def duration(seconds: float) -> str:
    """A duration in seconds, minutes or hours."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.{0 if seconds >= 99.5 * size else 1}f} {unit}"
    return f"{seconds:.1f} s"


def _per_host(hosts: Ints, nbytes: Ints, count: int) -> Ints:
    found = np.zeros(count, dtype=np.int64)
    np.add.at(found, hosts, nbytes)
    return found


def _read_s(nbytes: npt.NDArray[np.int64], rates: StagingRates) -> float:
    """Seconds until all hosts have read their bytes; those that are not done share the rate of the storage."""
    passed, done = 0.0, 0.0
    ascending = np.sort(nbytes[nbytes > 0]).tolist()
    for number, each in enumerate(ascending):
        passed += (each - done) / min(rates.host, rates.shared / (len(ascending) - number))
        done = each
    return passed
