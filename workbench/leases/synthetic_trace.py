"""Synthetic trace of a cluster, in the format of ``sacct -a -P``: made up, seeded, and of no real cluster.

    python -m workbench.leases.synthetic_trace --days 7 --nodes 64 --seed 1 > synthetic.txt
    farandole plan --trace synthetic.txt

Real logs are the model (Lublin and Feitelson 2003, https://doi.org/10.1016/S0743-7315(03)00108-4): more jobs by day
than by night and at weekends, sizes that are mostly powers of two, times that spread over orders of magnitude, and
limits of which jobs use a part. Waits result from first come, first served, with EASY backfill.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Iterator
from datetime import datetime, timezone

from farandole.launch.leases.simulation.queues import Backfill
from farandole.launch.leases.simulation.trace import Trace, TraceJob

BEGIN_S = datetime(2026, 1, 5, tzinfo=timezone.utc).timestamp()
"""A Monday."""
HEADER = "JobID|Submit|Start|End|NNodes|State|Timelimit"
LIMITS_H = (1, 4, 12, 24)


def synthetic_trace(days: float = 7.0, nodes: int = 64, seed: int = 1, load: float = 0.85) -> Trace:
    """A trace whose jobs want ``load`` of the cluster, on average."""
    chance = random.Random(seed)
    wanted = load * nodes * days * 86400.0
    jobs: list[TraceJob] = []
    while wanted > 0:
        job = _job(chance, days, nodes)
        jobs.append(job)
        wanted -= job.nodes * (job.end_s - job.start_s)
    return Trace(tuple(_scheduled(Trace(tuple(sorted(jobs)), nodes))), nodes)


def _job(chance: random.Random, days: float, nodes: int) -> TraceJob:
    submit_s = next(_moments(chance, days))
    size = min(nodes // 2, 2 ** min(int(chance.expovariate(0.7)), 6))
    if chance.random() < 0.25:
        size = max(1, size - chance.randrange(size))
    run_s = min(86400.0, math.exp(chance.gauss(math.log(1500.0), 1.7)) + 20.0)
    limit_s = next(hours * 3600.0 for hours in LIMITS_H if hours * 3600.0 >= run_s)
    start_s = BEGIN_S + submit_s
    return TraceJob(start_s, start_s, start_s + round(run_s), size, limit_s)


def _moments(chance: random.Random, days: float) -> Iterator[float]:
    """Moments of submission: four times as many in the afternoon as at night, and half as many at weekends."""
    while True:
        at_s = chance.uniform(0.0, days * 86400.0)
        hour, day = at_s / 3600.0 % 24, int(at_s // 86400) % 7
        busy = 0.25 + 0.75 * math.exp(-(((hour - 14.5) / 4.5) ** 2))
        if chance.random() < busy * (0.5 if day >= 5 else 1.0):
            yield float(round(at_s))


def _scheduled(trace: Trace) -> Iterator[TraceJob]:
    """The same jobs with the starts that a scheduler would give them."""
    starts = Backfill(trace, trace.begin_s - 1.0).starts()
    for number, job in enumerate(trace.jobs):
        start_s = starts[number]
        yield job._replace(start_s=start_s, end_s=start_s + job.end_s - job.start_s)


def lines(trace: Trace) -> Iterator[str]:
    """The trace in the format of ``sacct -a -P -X``."""
    yield HEADER
    for number, job in enumerate(trace.jobs, 1):
        moments = (_moment(at_s) for at_s in (job.submit_s, job.start_s, job.end_s))
        days, rest = divmod(int(job.limit_s), 86400)
        limit = (f"{days}-" if days else "") + f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
        yield "|".join([f"{1000 + number}", *moments, f"{job.nodes}", "COMPLETED", limit])


def _moment(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")


def main(arguments: list[str] | None = None) -> int:
    """Print a synthetic trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=float, default=7.0, metavar="N", help="length of the trace (default: 7)")
    parser.add_argument("--nodes", type=int, default=64, metavar="N", help="nodes of the cluster (default: 64)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed (default: 1)")
    parser.add_argument("--load", type=float, default=0.85, metavar="X", help="share of the cluster (default: 0.85)")
    asked = parser.parse_args(arguments)
    sys.stdout.writelines(
        f"{line}\n" for line in lines(synthetic_trace(asked.days, asked.nodes, asked.seed, asked.load))
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
