"""Keras, JAX and TensorFlow on two ranks with one thread each, against their own ways and no communication.

All processes of all frameworks stand ready at once, and a round goes from one measurement to the next through all of
them. A framework or a peer that is not here, or that fails, is a row of the last table, with the reason.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TypeAlias

from rich.console import Console
from rich.progress import track

from benchmarks.fleet import Fleet
from benchmarks.frameworks import elastic
from benchmarks.frameworks.start import PEERS, Peer, commands
from benchmarks.measure import Row, Sample, Table, Verdict

Key: TypeAlias = tuple[str, str, str]
"""Table, row and column, as in ``runs``."""

RANKS, ANSWER_S = 2, 240.0
SINGLE_CALLS, COPY_STEPS = 200, 3
OTHERS = ("farandole.torch", "MultiWorkerMirrored", "jax.distributed")
"""Columns that Farandole's bindings are compared with, besides the undistributed one."""


def run(quick: bool) -> list[Table]:
    """All tables of this section."""
    rounds, seconds = (3, 0.4) if quick else (9, 1.5)
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        fleets = [fleet for peer in PEERS if (fleet := _started(peer, stack, missing))]
        taken = _measured(fleets, rounds, seconds, missing)
    tables = [_steps(taken), _calls(taken), _copies(taken), elastic.run(1 if quick else 5, missing)]
    absent = Table("Not measured above", "reasons", rows=[Row(f"{n}: {why}", {}) for n, why in missing.items()])
    return [*tables, absent] if missing else tables


def _started(peer: Peer, stack: ExitStack, missing: dict[str, str]) -> Fleet | None:
    reason = peer.lacks()
    if not reason:
        try:
            return stack.enter_context(Fleet(peer.name, RANKS, commands=commands(peer), answer_s=ANSWER_S))
        except (OSError, EOFError, RuntimeError) as error:
            reason = _reason(error)
    missing[peer.name] = reason
    return None


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"failed: {lines[-1] if lines else type(error).__name__}"[:100]


def _measured(fleets: list[Fleet], rounds: int, seconds: float, missing: dict[str, str]) -> dict[Key, list[float]]:
    """The slowest rank of each round. A fleet that fails takes no part in what follows, and its numbers count not."""
    taken: dict[Key, list[float]] = {}
    times: dict[Key, int] = {}
    for number in track(range(-1, rounds), "frameworks", console=Console(stderr=True), transient=True):
        for fleet in fleets:
            if fleet.contender in missing:
                continue
            keys: list[Key] = [tuple(key) for key in fleet.checked[0]]
            try:
                for key in keys:
                    if number < 0:
                        times[key] = _times(fleet, key, seconds)
                    else:
                        taken.setdefault(key, []).append(max(fleet.call("run", key, times[key])))
            except (OSError, EOFError, RuntimeError) as error:
                missing[fleet.contender] = _reason(error)
                for key in keys:
                    taken.pop(key, None)
    return taken


def _times(fleet: Fleet, key: Key, seconds: float) -> int:
    """How often to repeat so that a round lasts about ``seconds``; the first steps compile, so it is asked twice."""
    if key[0] != "step":
        fleet.call("run", key, 2)
        return SINGLE_CALLS if key[0] == "call" else COPY_STEPS
    fleet.call("run", key, 2)
    return max(3, min(1000, int(seconds / max(fleet.call("run", key, 3)))))


def _rows(taken: dict[Key, list[float]], table: str, factor: float) -> dict[str, dict[str, Sample]]:
    found: dict[str, dict[str, Sample]] = {}
    for (where, row, column), values in taken.items():
        if where == table:
            found.setdefault(row, {})[column] = Sample.of(factor * value for value in values)
    return found


def _steps(taken: dict[Key, list[float]]) -> Table:
    table = Table("Training step of frameworks, 2 ranks, 1 thread each", "ms")
    for row, samples in _rows(taken, "step", 1e3).items():
        verdicts: list[Verdict] = []
        if "farandole" in samples:
            ours = samples["farandole"].median
            verdicts = [
                Verdict(ours / samples[other].median, f"x {other}") for other in (*OTHERS, "none") if other in samples
            ]
        table.rows.append(Row(row, samples, tuple(verdicts)))
    return table


def _calls(taken: dict[Key, list[float]]) -> Table:
    table = Table("All-reduce of 4 B inside of a compiled graph, 2 ranks", "us")
    for row, samples in _rows(taken, "call", 1e6).items():
        verdicts: tuple[Verdict, ...] = ()
        if "farandole" in samples:
            verdicts = (
                Verdict(samples["farandole"].median - samples["empty graph"].median, "us over the empty graph"),
            )
        table.rows.append(Row(row, samples, verdicts))
    return table


def _copies(taken: dict[Key, list[float]]) -> Table:
    """Copies between the memory of the framework and that of the engine, as the reducer counts them."""
    table = Table("Copies of each byte of gradients in a step, into engine memory and out of it", "copies")
    for row, samples in _rows(taken, "copies", 1.0).items():
        most = max(value for sample in samples.values() for value in sample.values)
        table.rows.append(Row(row, samples, (Verdict(most, "copies each way", most=1.0),)))
    return table
