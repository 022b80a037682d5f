"""Report of the input: the share of a step that waits for input, the slow rank, and the cause.

    print(hvd.data.report())
    # input-bound: 31 % of the step waits for rank 3 on node2: decode. Needed 1,200 samples/s, had 830.

``report`` is collective. ``blame`` decides, and is pure: a rank with a late batch delays the others in their next
reduction, so a step loses the time by which its last rank is later than it would be without input.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import final

import msgspec

from farandole.data.loading.pool import InputWait
from farandole.runtime.collectives.objects import allgather_object
from farandole.runtime.session.init import current, is_initialized, last_rank
from farandole.runtime.session.training import training

KEPT = 20_000
"""Steps that are kept."""
MOST_NEEDED = 100
"""Multiple of the samples per second, up to which the number that a training needs is shown."""

NEGLIGIBLE, NEGLIGIBLE_S = 0.01, 0.1
"""Share of the time, and seconds in all, below which input is negligible: steps of microseconds wait for any loader."""
WORTH_SAYING, LONG_ENOUGH_S = 0.05, 5.0
"""Share of the time that a process reports at its exit, and the least training time for a report."""
SHARED_CORE = "shared core"
NAMED = 5
"""Number of corrupt samples that the text of a report names."""

Place = tuple[int, int]


@final
class InputStep(msgspec.Struct, frozen=True, array_like=True):
    """Step of one rank, from one batch to the next; the next batch begins at ``place`` (epoch, position).

    Of ``step_s`` the rank waited ``starved_s`` for that batch of ``samples``, and ``waited_s`` for other ranks. The
    first batch of an iteration ``is_first``: nothing could be loaded ahead.
    """

    place: Place
    samples: int
    step_s: float
    starved_s: float
    waited_s: float
    cause: str = ""
    is_first: bool = False


@final
class RankInput(msgspec.Struct, frozen=True):
    """Input of one rank: its steps, the threads or processes that load, and the processors that they may run on."""

    rank: int
    host: str
    steps: list[InputStep]
    workers: int = 0
    in_processes: bool = False
    cpus: str = ""
    cpu_count: int = 1
    corrupt: list[str] = []
    """Samples that were left out."""


@final
class BlamedRank(msgspec.Struct, frozen=True):
    """Rank whose input delayed the others, the cause, and the seconds in all."""

    rank: int
    host: str
    cause: str
    seconds: float


@final
class InputReport(msgspec.Struct, frozen=True):
    """Share of the time that training waits for input, and the ranks that cause the wait."""

    steps: int
    total_s: float
    exposed_s: float
    blamed: list[BlamedRank]
    """Ranks and causes, the worst first."""
    needed_per_s: float
    """Samples of all ranks per second if input were never late."""
    had_per_s: float
    first_s: float = 0.0
    """Time until the first batches of iterations were loaded; not part of the other figures."""
    advice: str = ""
    corrupt: list[str] = []
    """Samples that were left out in any epoch (``on_corrupt="skip"``)."""

    @property
    def share(self) -> float:
        """Share of the time that is lost to input."""
        return self.exposed_s / self.total_s if self.total_s else 0.0

    @property
    def utilization(self) -> float:
        """Share of the time in which training does not wait for input (AU of MLPerf Storage)."""
        return 1.0 - self.share

    def __str__(self) -> str:
        count = len(self.corrupt)
        names = ", ".join(self.corrupt[:NAMED]) + (", ..." if count > NAMED else "")
        left_out = f" {count} corrupt {'sample was' if count == 1 else 'samples were'} left out: {names}."
        return f"{self._timing}{left_out if count else ''}"

    @property
    def _timing(self) -> str:
        if not self.steps:
            first = f"; the first batches took {self.first_s:.1f} s" if self.first_s else ""
            return f"no step has followed another one yet: ask after some of them{first}"
        rates = f"Needed {self.needed_per_s:,.0f} samples/s, had {self.had_per_s:,.0f}."
        if self.needed_per_s > MOST_NEEDED * self.had_per_s:  # no step computes long enough to say how many
            rates = f"Needed over {MOST_NEEDED} times the {self.had_per_s:,.0f} samples/s that it had."
        if self.first_s > max(NEGLIGIBLE_S, NEGLIGIBLE * self.total_s):
            rates += f" First batches took {self.first_s:.1f} s more."
        if self.share < NEGLIGIBLE or self.exposed_s < NEGLIGIBLE_S or not self.blamed:
            in_all = f", {self.exposed_s:.2g} s in all" if self.share >= NEGLIGIBLE else ""
            return f"input keeps up: {100 * self.share:.1f} % of the time waits for it{in_all}. {rates}"
        worst = self.blamed[0]
        whom = f"{100 * self.share:.0f} % of the step waits for "
        if worst.seconds < 0.8 * self.exposed_s:
            others = len({each.rank for each in self.blamed})
            whom += f"{others} ranks, most for " if others > 1 else ""
        return (
            f"input-bound: {whom}rank {worst.rank} on {worst.host}: {worst.cause or 'unknown'}. {rates}"
            f"{self.advice and f' {self.advice}'}"
        )


def blame(ranks: Sequence[RankInput]) -> InputReport:
    """Compute the time that a training loses to its input.

    Only steps that all ranks report count. If no rank has measured its waits for others, a step is assumed to lose
    the longest wait for a batch of any rank.
    """
    steps = [{step.place: step for step in rank.steps} for rank in ranks]
    common = sorted(set.intersection(*map(set, steps))) if steps else []
    firsts = {place for place in common if any(rank[place].is_first for rank in steps)}
    places = [place for place in common if place not in firsts]
    has_waits = len(ranks) > 1 and any(step.waited_s for rank in steps for step in rank.values())
    seconds: dict[tuple[int, str], float] = {}
    total_s = sum(rank[place].step_s for rank in steps for place in places) / max(1, len(ranks))
    for place in places:
        at = [rank[place] for rank in steps]
        own = [max(step.step_s - step.waited_s if has_waits else step.starved_s, step.starved_s) for step in at]
        last = max(range(len(at)), key=own.__getitem__)
        exposed = own[last] - max(mine - step.starved_s for mine, step in zip(own, at, strict=True))
        if exposed > 0:
            key = last, at[last].cause
            seconds[key] = seconds.get(key, 0.0) + exposed
    exposed_s = min(sum(seconds.values()), total_s)
    blamed = [
        BlamedRank(ranks[number].rank, ranks[number].host, cause, lost)
        for (number, cause), lost in sorted(seconds.items(), key=lambda item: -item[1])
    ]
    samples = sum(steps[0][place].samples for place in places) if places else 0
    worst = next((each for each in ranks if blamed and each.rank == blamed[0].rank), None)
    return InputReport(
        len(places), total_s, exposed_s, blamed,
        needed_per_s=samples / max(total_s - exposed_s, 1e-9), had_per_s=samples / max(total_s, 1e-9),
        first_s=sum(max(rank[place].starved_s for rank in steps) for place in firsts),
        advice=_advice(worst, blamed[0].cause) if worst else "",
        corrupt=[*dict.fromkeys(name for rank in ranks for name in rank.corrupt)],
    )  # fmt: skip


def cause_of(wait: InputWait, workers: int, cpu_count: int) -> str:
    """Cause of a late batch: the category that took most, or ``shared core`` if decoding lacks processors.

    It is ``shared core`` if more workers decode than processors are allowed, and these are busy by half or more.
    """
    cause, spent = wait.cause, sum(wait.late.seconds.values())
    if cause == "decode" and workers > cpu_count and wait.cpu_s * workers >= 0.5 * cpu_count * spent:
        return SHARED_CORE
    return cause


def _advice(rank: RankInput, cause: str) -> str:
    kind = "processes" if rank.in_processes else "threads"
    if cause == SHARED_CORE:
        cores = "1 core" if rank.cpu_count == 1 else f"{rank.cpu_count} cores"
        verb = "share" if rank.workers > 1 else "has"
        return f"{rank.workers} decode {kind} {verb} {cores} (cpuset {rank.cpus}); try `srun -c {rank.workers}`."
    if cause == "shared storage":
        return "Stage it: data = hvd.data.stage(data); or read more at once, threads=32."
    if cause == "decode" and not rank.in_processes and rank.cpu_count > 1:
        return f"Try more threads, or processes={rank.cpu_count} where decoding holds the interpreter's lock."
    return ""


@final
class InputLog:
    """Last steps of this process."""

    def __init__(self) -> None:
        self.steps: deque[InputStep] = deque(maxlen=KEPT)
        self.corrupt: dict[str, str] = {}
        """Samples that were left out, as far as this rank knows, with the reasons."""
        self.workers, self.in_processes, self._cpu_count = 0, False, 1
        self._since: tuple[float, float] | None = None

    def begin(self, workers: int, in_processes: bool) -> InputLog:
        """Begin an iteration: the time between it and the previous iteration is no step."""
        atexit.unregister(self._print_lost_time)
        atexit.register(self._print_lost_time)
        self.workers, self.in_processes, self._since = workers, in_processes, None
        self._cpu_count = len(os.sched_getaffinity(0))
        return self

    def handed_out(self, place: Place, samples: int, wait: InputWait) -> None:
        """Note that a batch now goes to the training loop."""
        now, waited_s = time.monotonic(), training.all_waited_s
        is_first = self._since is None
        since, self._since = self._since or (now - wait.seconds, waited_s), (now, waited_s)
        cause = cause_of(wait, self.workers, self._cpu_count) if wait.late.seconds else ""
        times = now - since[0], wait.seconds, waited_s - since[1]
        self.steps.append(InputStep(place, samples, *times, cause, is_first))
        training.starved(wait.seconds)

    def _print_lost_time(self) -> None:
        """At exit, print the time that the training has lost to waiting for input, if it is much."""
        found = blame([self.of_rank(last_rank() or 0, socket.gethostname())])
        if found.share >= WORTH_SAYING and found.total_s >= LONG_ENOUGH_S:
            print(f"farandole: {found}", file=sys.stderr, flush=True)

    def of_rank(self, rank: int, host: str) -> RankInput:
        """The steps, with rank, host and processors of this process."""
        cpus = sorted(os.sched_getaffinity(0))
        here = self.workers, self.in_processes, cpu_list(cpus), len(cpus), [*self.corrupt]
        return RankInput(rank, host, [*self.steps], *here)


def cpu_list(cpus: Sequence[int]) -> str:
    """Processors as Linux writes them.

    >>> cpu_list([0, 1, 2, 5])
    '0-2,5'
    """
    runs: list[list[int]] = []
    for cpu in cpus:
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)


input_log = InputLog()
"""Log of this process."""


def report() -> InputReport:
    """Compute the share of a step that waits for input, the slow rank and the cause; collective, same on all ranks.

    >>> str(InputReport(0, 0.0, 0.0, [], 0.0, 0.0))
    'no step has followed another one yet: ask after some of them'
    """
    if not is_initialized() or current().topology.size == 1:
        return blame([input_log.of_rank(0, socket.gethostname())])
    topology = current().topology
    mine = msgspec.msgpack.encode(input_log.of_rank(topology.rank, topology.hosts[topology.rank]))
    every = allgather_object(mine, "farandole.data.report")
    return blame([msgspec.msgpack.decode(each, type=RankInput) for each in every])
