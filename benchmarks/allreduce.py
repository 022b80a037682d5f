"""The engine alone: float32 sum of 4 B to 64 MB over 2 and 4 ranks, against Gloo and two MPIs."""

from __future__ import annotations

from contextlib import ExitStack

from benchmarks.contenders import LARGEST_BYTES
from benchmarks.fleet import Fleet
from benchmarks.measure import Row, Sample, Table, Verdict

SIZES = [4, 64, 1024, 4096, 16384, 65536, 2**18, 2**20, 4 * 2**20, 16 * 2**20, LARGEST_BYTES]
QUICK_SIZES = [4, 4096, 65536, 2**20, LARGEST_BYTES]
SMALL_BYTES, BULK_BYTES = 4096, 65536
IN_MEMORY, ANY_MEMORY, GLOO, MPIS = "shm, its memory", "shm, any memory", "gloo", ("mpich", "openmpi")
LATE_S = 0.3


def run(quick: bool) -> list[Table]:
    """All tables of this section."""
    tables = []
    for size in (2, 4):
        with ExitStack() as stack:
            fleets = [stack.enter_context(Fleet(name, size)) for name in (IN_MEMORY, ANY_MEMORY, GLOO, *MPIS)]
            tables += _tables(fleets, size, quick)
    return tables


def _tables(fleets: list[Fleet], size: int, quick: bool) -> list[Table]:
    rounds, seconds = (3, 0.02) if quick else (7, 0.05)
    wall: dict[int, dict[str, Sample]] = {}
    for nbytes in QUICK_SIZES if quick else SIZES:
        times = {fleet.contender: _times(fleet, nbytes, seconds) for fleet in fleets}
        taken: dict[str, list[float]] = {fleet.contender: [] for fleet in fleets}
        for _ in range(rounds):
            for fleet in fleets:
                slowest = max(fleet.call("reduce", nbytes, times[fleet.contender]))
                taken[fleet.contender].append(slowest * 1e6)
        wall[nbytes] = {name: Sample.of(values) for name, values in taken.items()}
    return [*_speed(wall, size), _waiting(fleets, size)]


def _times(fleet: Fleet, nbytes: int, seconds: float) -> int:
    """How often to repeat so that a round lasts about ``seconds``; the first few are slow, so it is asked twice."""
    times = 2
    for length in (seconds / 2, seconds):
        guess = max(fleet.call("reduce", nbytes, times))
        times = max(2, min(2000, int(length / max(guess, 1e-6))))
    return times


def _speed(wall: dict[int, dict[str, Sample]], size: int) -> list[Table]:
    """One table per place of the data, each row with its ratios."""
    tables = []
    for ours, over_gloo, over_mpi in ((IN_MEMORY, 3.0, 1.5), (ANY_MEMORY, 2.0, 1.0)):
        table = Table(f"All-reduce of float32, {size} ranks: {ours}", "us", panel=f"{size} ranks")
        for nbytes, samples in wall.items():
            mine = samples[ours].median
            gloo, mpi = samples[GLOO].median / mine, min(samples[m].median for m in MPIS) / mine
            bulk, small = size == 2 and nbytes >= BULK_BYTES, size == 2 and nbytes <= SMALL_BYTES
            verdicts = (
                Verdict(gloo, "x gloo", least=over_gloo if bulk else 1.0),
                Verdict(mpi, "x best MPI", least=over_mpi if bulk else None),
                *([Verdict(mine, "us", most=10.0)] if small else []),
            )
            shown = {name: samples[name] for name in (ours, GLOO, *MPIS)}
            table.rows.append(Row(human(nbytes), shown, verdicts, nbytes))
        tables.append(table)
    return tables


def _waiting(fleets: list[Fleet], size: int) -> Table:
    """Share of a core that a rank burns while another is late."""
    table = Table(f"Processor use of a rank that waits {LATE_S} s for a late one, {size} ranks", "% of a core")
    for fleet in fleets:
        share = Sample.of(100 * one for one in fleet.call("wait", LATE_S)[1:])
        ours = fleet.contender in (IN_MEMORY, ANY_MEMORY)
        verdicts = (Verdict(max(share.values), "%", most=5.0),) if ours else ()
        table.rows.append(Row(fleet.contender, {"waiting": share}, verdicts))
    return table


def human(nbytes: int) -> str:
    """4 B, 64 KB, 16 MB."""
    for unit, factor in (("MB", 2**20), ("KB", 2**10)):
        if nbytes >= factor:
            return f"{nbytes / factor:g} {unit}"
    return f"{nbytes} B"
