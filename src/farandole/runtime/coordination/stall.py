"""Stall inspector: decides when to report a wait, which ranks to ask, and the text of the report; without any I/O.

    inspector = StallInspector(Limits(warning_s=60.0, shutdown_s=600.0), hosts=["a", "a"])
    inspector.expect(now)                      # a collective waits from now on: look at deadline_s
    inspector.look(now, waiting, last)         # StackRequest((1,)): ask these ranks for progress and stack
    inspector.answered(1, progress, now); inspector.stack(1, text, now)
    inspector.look(now, waiting, last)         # StallReport(text), or StallVerdict(reason) in the end

Reports about the same ranks are repeated at doubling intervals, however many collectives wait for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, final

from farandole.control.messages import Progress
from farandole.runtime.coordination.rank_names import name_rank, name_ranks, shorten
from farandole.settings import Settings

LATELY_S = 60.0
"""Seconds for which the longest step counts as recent, unless a longer one follows."""

STEPS_OF_PATIENCE = 5
"""In an elastic job a rank counts as hung, not slow, if others wait for it longer than this many recent steps."""

BLAMELESS = 2
"""Factor on the waiting time of an elastic job in which all ranks wait: if two hosts cannot communicate, that is
detected meanwhile (``engines.silence_monitor``), and then the ranks to give up are known."""

ANSWERING = "--stall-check-shutdown-time-seconds"
"""Option that sets how long others wait for a rank whose process answers."""

IDLE = 0.01
"""Share of a processor that an idle process may use."""

SIGNS = 5
"""Number of heartbeats that a rank sends within the silence after which it counts as hung."""

PATIENCE_S = 1.0
"""Longest time that a report waits for the answers of the ranks that were asked."""

MOST_WAITS = 5
MOST_STACKS = 8


@final
class Limits(NamedTuple):
    """Limits of the wait for a collective: until it is reported, and until it counts as stalled; 0 means forever.

    ``remedy`` is the option that sets ``shutdown_s``, ``end`` its consequence. With ``answering_s``, ranks send
    heartbeats, and ``shutdown_s`` is for ranks without heartbeats: they are stopped, or hold the GIL. A rank that
    answers does work of its own, such as validation, and the others wait for it as long as ``answering_s``.
    """

    warning_s: float
    shutdown_s: float
    remedy: str = "FARANDOLE_STALL_SHUTDOWN_S"
    end: str = "every rank raises StallError"
    steps: int = 0
    """A wait may last at least this many of the longest recent steps."""
    answering_s: float = 0.0

    @property
    def sign_s(self) -> float:
        """Interval between the heartbeats of a rank; 0 for none."""
        return self.shutdown_s / SIGNS if self.answering_s else 0.0

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        """Limits from a job's settings. In an elastic job a hung rank is killed, and the others continue."""
        if not settings.stall_check:
            return cls(0.0, 0.0)
        if not settings.is_elastic or not settings.hang_timeout_s:
            return cls(settings.stall_warning_s, settings.stall_shutdown_s)
        warning_s = min(settings.stall_warning_s or math.inf, settings.hang_timeout_s / 2)
        end = "ranks that do not arrive are killed"
        answering_s = max(settings.hang_timeout_s, settings.stall_shutdown_s or math.inf)
        return cls(warning_s, settings.hang_timeout_s, "--hang-timeout", end, STEPS_OF_PATIENCE, answering_s)


@final
class Waiting(NamedTuple):
    """A collective that some ranks are ready for since ``since_s``, and others are not.

    ``key`` is constant while it waits. The report may be ``age_s`` old, so its end may be unnoticed for that long.
    ``step_s`` is the longest recent step; the limit may be a multiple of it.
    """

    key: tuple[object, ...]
    what: str
    since_s: float
    ready: tuple[int, ...]
    missing: tuple[int, ...]
    age_s: float = 0.0
    step_s: float = 0.0


@final
class StackRequest(NamedTuple):
    """Action: ask these ranks for their progress and their Python stack."""

    ranks: tuple[int, ...]


@final
class StallReport(NamedTuple):
    """Action: show this text to the user."""

    text: str


@final
class StallVerdict(NamedTuple):
    """Action: give up these ranks; unless the others can continue, the generation ends with a ``StallError``."""

    reason: str
    missing: tuple[int, ...] = ()


Step: TypeAlias = StackRequest | StallReport | StallVerdict | None
Last: TypeAlias = Callable[[int], str]


@final
@dataclass(slots=True)
class _Asked:
    """Request in progress: the ranks that were asked, and their answers so far."""

    ranks: tuple[int, ...]
    until_s: float
    progress: dict[int, Progress] = field(default_factory=dict)
    stacks: dict[int, str] = field(default_factory=dict)

    def complete(self) -> bool:
        return len(self.progress) == len(self.stacks) == len(self.ranks)


@final
class StallInspector:
    """Stall inspector of one generation. ``deadline_s`` says when to ``look`` next, ``None`` for never."""

    def __init__(self, limits: Limits, hosts: Sequence[str]) -> None:
        self.deadline_s: float | None = None
        self.reports = 0
        self._limits = limits
        self._warning_s = limits.warning_s if limits.warning_s > 0 else math.inf
        self._shutdown_s = limits.shutdown_s if limits.shutdown_s > 0 else math.inf
        self._hosts = hosts
        self._asked: _Asked | None = None
        self._told: dict[tuple[object, ...], frozenset[int]] = {}
        self._heard_s: dict[int, float] = {}
        self._work: dict[int, float] = {}
        self._moved_s, self._mild_until_s = math.inf, -math.inf
        self._repeat_s = self._interval_s = self._warning_s

    def begin(self, now: float) -> None:
        """Begin the generation: if ranks send heartbeats, detect from now on that none of them makes progress."""
        if self._limits.answering_s:
            self._moved_s = now
            self.expect(now)

    def expect(self, now: float) -> None:
        """Schedule a check of a collective that began to wait ``now``."""
        soonest_s = now + min(self._warning_s, self._shutdown_s)
        if self.deadline_s is None or soonest_s < self.deadline_s:
            self._look_again(soonest_s)

    def hurry(self, now: float) -> None:
        """Schedule a check ``now``, because there is a new report."""
        if self._asked is None and self._warning_s < math.inf:
            self.deadline_s = now

    def answered(self, rank: int, progress: Progress, now: float) -> None:
        """Process the progress of a rank, whether it was asked or not."""
        self._heard_s[rank] = now
        if progress.work >= self._work.get(rank, 0.0) + 1 + IDLE * (now - self._moved_s):
            self._work[rank], self._moved_s = progress.work, now
        self._add_answer(rank, now, progress=progress)

    def stack(self, rank: int, text: str, now: float) -> None:
        """Process the Python stack of a rank that was asked."""
        self._add_answer(rank, now, stack=text)

    def look(self, now: float, waiting: Iterable[Waiting], last: Last) -> Step:
        """Next action, if one is due; ``last`` returns the last collective that a rank was ordered to execute."""
        every = list(waiting)
        self._forgive(now)
        if verdict := self._judge(now, every):
            return verdict
        overdue = [one for one in every if now - one.since_s >= self._warning_s]
        step = self._consider(now, overdue) if self._asked is None else self._conclude(now, overdue, self._asked, last)
        if self._asked is None:
            self._plan_next(now, every)
        return step

    def _forgive(self, now: float) -> None:
        """Suspend verdicts for a while if this process was stopped: maybe all were, and could make no progress."""
        stopped_s = now - (self.deadline_s or now)
        if self._limits.answering_s and stopped_s > PATIENCE_S:
            self._moved_s, self._mild_until_s = now, now + self._shutdown_s

    def _judge(self, now: float, every: Sequence[Waiting]) -> StallVerdict | None:
        """Verdict on hung ranks: others have waited for them too long, or all wait, or no rank makes progress."""
        late = [one for one in every if now >= max(self._expiry_s(one), self._mild_until_s)]
        lost = _lost(late, every)
        last = [one for one in late if now >= self._expiry_s(one, least_s=self._limits.answering_s)]
        silent = [rank for rank in lost if self._is_silent(rank, now)]
        hung = tuple(rank for rank in lost if rank in silent or rank in _lost(last, every))
        is_static = not self._limits.steps
        is_blameless = not lost and any(is_static or now >= self._expiry_s(one, BLAMELESS) for one in late)
        if hung or is_blameless:
            is_answering = self._limits.answering_s and hung and not silent
            return StallVerdict(self._verdict(now, late, ANSWERING if is_answering else self._limits.remedy), hung)
        if self._limits.answering_s and not every and now >= self._moved_s + self._limits.answering_s:
            return StallVerdict(
                f"no rank has done anything for {now - self._moved_s:.1f} s, longer than {ANSWERING}: "
                "all are stopped, or wait for each other in the script",
                tuple(range(len(self._hosts))),
            )
        return None

    def _is_silent(self, rank: int, now: float) -> bool:
        return now >= self._heard_s.get(rank, -math.inf) + self._shutdown_s

    def _consider(self, now: float, overdue: Sequence[Waiting]) -> StackRequest | None:
        """Request stacks if a wait has not been reported, or was last reported long ago."""
        self._told = {one.key: self._told[one.key] for one in overdue if one.key in self._told}
        if not self._told:
            self._repeat_s, self._interval_s = now, self._warning_s
        fresh = [one for one in overdue if not any(told.issuperset(one.missing) for told in self._told.values())]
        if not (fresh or (overdue and now >= self._repeat_s)):
            return None
        self._told = {one.key: frozenset(one.missing) for one in overdue}
        self._repeat_s = now + self._interval_s
        self._interval_s *= 2
        ranks = {rank for one in overdue for rank in one.missing or one.ready}
        self._asked = _Asked(tuple(sorted(ranks)[:MOST_STACKS]), now + PATIENCE_S)
        self._look_again(self._asked.until_s)
        return StackRequest(self._asked.ranks)

    def _conclude(self, now: float, overdue: Sequence[Waiting], asked: _Asked, last: Last) -> StallReport | None:
        """Report, if all answers are in or the time for them is over."""
        if now < asked.until_s and not asked.complete():
            return None
        self._asked = None
        still = [one for one in overdue if not _has_moved_on(one, asked)]
        return StallReport(self._report(now, still, asked, last)) if still else None

    # -- timing -------------------------------------------------------------------------------------------------------

    def _add_answer(self, rank: int, now: float, progress: Progress | None = None, stack: str | None = None) -> None:
        asked = self._asked
        if asked is None or rank not in asked.ranks:
            return
        if progress is not None:
            asked.progress[rank] = progress
        if stack is not None:
            asked.stacks[rank] = stack
        if asked.complete():
            self._look_again(now)

    def _plan_next(self, now: float, waiting: Sequence[Waiting]) -> None:
        moments = [one.since_s + self._warning_s for one in waiting]
        moments += [self._expiry_s(one, times) for one in waiting for times in (1, BLAMELESS)]
        if self._limits.answering_s:
            moments += [now + self._limits.sign_s for one in waiting if now >= self._expiry_s(one)]
            moments += [self._mild_until_s, self._moved_s + self._limits.answering_s]
        moments = [moment for moment in moments if moment > now]
        repeats = [self._repeat_s] if self._told else []
        self._look_again(min(moments + repeats, default=math.inf))

    def _expiry_s(self, one: Waiting, times: int = 1, least_s: float = 0.0) -> float:
        patience_s = times * max(self._shutdown_s, self._limits.steps * one.step_s)
        return one.since_s + one.age_s + max(least_s, patience_s)

    def _look_again(self, moment: float) -> None:
        self.deadline_s = moment if moment < math.inf else None

    # -- texts --------------------------------------------------------------------------------------------------------

    def _verdict(self, now: float, late: Sequence[Waiting], limit: str) -> str:
        return "; ".join(f"{self._wait(now, one)}: longer than {limit}" for one in late[:MOST_WAITS])

    def _wait(self, now: float, one: Waiting) -> str:
        missing = f"missing: {name_ranks(one.missing, self._hosts)}" if one.missing else "all ranks are inside"
        return (
            f"{one.what} has waited {now - one.since_s:.1f} s; {missing}; ready: {name_ranks(one.ready, self._hosts)}"
        )

    def _report(self, now: float, overdue: Sequence[Waiting], asked: _Asked, last: Last) -> str:
        self.reports += 1
        lines = [f"stalled: {self._wait(now, one)}" for one in overdue[:MOST_WAITS]]
        if len(overdue) > MOST_WAITS:
            lines.append(f"stalled: {len(overdue) - MOST_WAITS} more")
        for rank in asked.ranks:
            lines += [f"  {self._where(rank, asked, last)}"]
            lines += [f"    {line}" for line in asked.stacks.get(rank, "").splitlines()]
        if left := len({rank for one in overdue for rank in one.missing} - set(asked.ranks)):
            lines.append(f"  and {left} more ranks")
        if self._shutdown_s < math.inf:
            lines.append(f"  {self._limits.end} after {self._shutdown_s:g} s ({self._limits.remedy})")
        if 0 < self._limits.answering_s < math.inf:
            lines[-1] += f"; those that answer, after {self._limits.answering_s:g} s ({ANSWERING})"
        return "\n".join(lines)

    def _where(self, rank: int, asked: _Asked, last: Last) -> str:
        progress = asked.progress.get(rank)
        finished = (progress.last if progress else "") or last(rank)
        text = f"{name_rank(rank, self._hosts)} last finished {shorten(finished) or 'nothing'}"
        if progress is None:
            text += ", and has not answered since (it holds the interpreter's lock, or is stopped)"
        elif progress.inside:
            text += f", and is inside {shorten(progress.inside)}"
        else:
            text += ", and is outside Farandole"
        missing = f"its stack was not received within {PATIENCE_S:g} s"
        stack = "its Python stack now:" if rank in asked.stacks else missing
        return f"{text}; {stack}"


def _lost(late: Sequence[Waiting], every: Sequence[Waiting]) -> tuple[int, ...]:
    """Ranks that others wait for, and that do not wait themselves.

    One stopped rank may block the others in two collectives: some wait in an earlier one, some already in the next.
    """
    waiting = {rank for one in every for rank in one.ready}
    return tuple(sorted({rank for one in late for rank in one.missing} - waiting))


def _has_moved_on(one: Waiting, asked: _Asked) -> bool:
    """True if all ranks were reported inside a collective, and one of them now answers that it is not."""
    return not one.missing and any(
        rank in asked.progress and one.what not in asked.progress[rank].inside for rank in one.ready
    )
