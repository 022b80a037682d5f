"""Deadlock detector: finds ranks that certainly wait for each other forever, never slow ones; without any I/O.

    deadlocks = DeadlockDetector(hosts, groups, negotiation.awaited)
    deadlocks.add_waits(0, waits, now)    # the waits of all threads of rank 0; look at due_s
    deadlocks.look(now)                   # DeadlockCheck((0, 1), 1): ask these ranks if that is still so
    deadlocks.add_waits(1, answer, now)
    deadlocks.look(now)                   # Deadlock(reason, (0, 1))

The rule. A rank is *blocked* while every thread that could begin a collective waits for one: it begins no other
collective before one of these has ended. A wait is *hopeless* if it needs a blocked rank that has not begun the same
collective and whose own waits are all hopeless. Ranks with a wait that is not hopeless are removed until there are no
more; the remaining ranks wait for each other. (This is the greatest fixed point; with one thread per rank it is a knot
in the wait-for graph, as in Chandy, Misra and Haas, "Distributed deadlock detection", 1983.)

Reports are outdated when they arrive: a rank may have continued, and a name that a rank waited for may be pending
again. So the ranks found are asked again, all at one moment, at which the controller inspects the pending collectives.
Only if *every* rank answers with the same waits as before (the same tokens), all of them were blocked together at that
moment, and the finding was true then. It stays true, because a blocked rank announces nothing, so no missing rank can
arrive. If a rank has continued, the others may be about to, whatever they answered; then they are asked again. No clock
is involved: slow ranks are never mistaken for deadlocked ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, final

from farandole.control.messages import ThreadWait, Waits
from farandole.runtime.coordination.cache import Key
from farandole.runtime.coordination.process_groups import ProcessGroups
from farandole.runtime.coordination.rank_names import list_some, name_ranks
from farandole.runtime.coordination.rank_set import RankSet

GATHER_S = 0.2
"""Time to collect reports before evaluating them: in a large job many arrive together."""

ANSWER_S = 10.0
"""Time to wait for answers before ranks are asked again."""

Awaited: TypeAlias = Callable[[Key], tuple[RankSet, RankSet]]
"""Returns the ranks that are ready for a name, and the missing ranks; two empty sets if no rank waits for it."""


@final
class DeadlockCheck(NamedTuple):
    """Action: ask these ranks if all their threads still wait. An answer is valid only for its ``question``."""

    ranks: tuple[int, ...]
    question: int


@final
class Deadlock(NamedTuple):
    """Ranks that wait for each other: no collective that they wait for can complete."""

    reason: str
    ranks: tuple[int, ...]


@final
class DeadlockDetector:
    """Deadlock detector of one generation. ``due_s`` says when to ``look``, ``None`` for never."""

    def __init__(self, hosts: Sequence[str], groups: ProcessGroups, awaited: Awaited) -> None:
        self.due_s: float | None = None
        self._hosts, self._groups, self._awaited = hosts, groups, awaited
        self._said: dict[int, Waits] = {}
        self._asked: dict[int, Waits] = {}
        self._unanswered: set[int] = set()
        self._is_spoilt = False  # a rank that was asked has continued
        self._question, self._patience_s = 0, 0.0

    def add_waits(self, rank: int, waits: Waits, now: float) -> None:
        """Process the waits that ``rank`` reports."""
        if waits.question:
            if waits.question != self._question or rank not in self._unanswered:
                return
            self._unanswered.discard(rank)
        is_other = rank in self._asked and _tokens(waits) != _tokens(self._asked[rank])
        if is_other:  # it was not blocked all the time since its last report
            self.forget_rank(rank)
        if waits.waits and not (is_other and waits.question):  # a wait that has just begun mostly ends soon
            self._said[rank] = waits
        soon_s = now if self._asked and not self._unanswered else now + GATHER_S
        self.due_s = soon_s if self.due_s is None else min(soon_s, self.due_s)

    def forget_rank(self, rank: int) -> None:
        """Forget ``rank``, which has left or is not blocked any more."""
        self._said.pop(rank, None)
        self._is_spoilt |= self._asked.pop(rank, None) is not None
        self._unanswered.discard(rank)

    def look(self, now: float) -> DeadlockCheck | Deadlock | None:
        """Next step, if one is due."""
        self.due_s = None
        if self._asked and self._unanswered and now < self._patience_s:
            self.due_s = self._patience_s
            return None
        if self._asked and not self._unanswered:
            answers = {rank: self._said[rank] for rank in self._asked}
            self._asked = {}
            if not self._is_spoilt and (knot := self._find(answers)):
                self._said = {rank: waits for rank, waits in self._said.items() if rank not in knot}
                return Deadlock(self._describe(knot, answers), tuple(sorted(knot)))
        if knot := self._find(self._said):
            self._asked = {rank: self._said[rank] for rank in knot}
            self._unanswered, self._is_spoilt = set(knot), False
            self._question += 1
            self.due_s = self._patience_s = now + ANSWER_S
            return DeadlockCheck(tuple(sorted(knot)), self._question)
        return None

    def _find(self, said: Mapping[int, Waits]) -> set[int]:
        """Ranks that wait for each other, whatever the other ranks do."""
        lacking: dict[ThreadWait, RankSet] = {}
        for waits in said.values():
            for wait in waits.waits:
                kind = _collective(wait)
                if kind not in lacking:
                    lacking[kind] = self._lacking(wait, said)
        left = RankSet.of(said)
        while left:
            hopeful = [
                rank
                for rank in left
                if any(
                    not self._is_entered(rank, wait) or lacking[_collective(wait)].isdisjoint(left)
                    for wait in said[rank].waits
                )
            ]
            if not hopeful:
                break
            left -= RankSet.of(hopeful)
        return set(left)

    def _is_entered(self, rank: int, wait: ThreadWait) -> bool:
        """True if the awaited collective is pending; if not, its order may be on its way to ``rank``."""
        return bool(wait.lane or wait.grant) or rank in self._awaited((wait.process_set, wait.name))[0]

    def _lacking(self, wait: ThreadWait, said: Mapping[int, Waits]) -> RankSet:
        """Ranks with a report that ``wait`` needs and that have not begun the same collective."""
        members = self._groups.get(wait.process_set)
        if members is None:
            return RankSet()
        if wait.lane:
            lane = (wait.process_set, wait.lane)
            ranks = [r for r in said if r in members and _reached(said[r], lane) < wait.sequence]
        elif wait.grant:
            ranks = [r for r in said if dict(said[r].given).get(wait.grant, wait.sequence) < wait.sequence]
        else:
            key = (wait.process_set, wait.name)
            missing = self._awaited(key)[1]
            ranks = [r for r in said if r in missing and key not in said[r].submitted]
        return RankSet.of(ranks)

    def _describe(self, knot: set[int], said: Mapping[int, Waits]) -> str:
        left = RankSet.of(knot)
        together: dict[tuple[str, str], list[int]] = {}
        for rank in sorted(knot):
            for wait in said[rank].waits:
                others = name_ranks(self._lacking(wait, said) & left, self._hosts)
                together.setdefault((wait.what, others), []).append(rank)
        pieces = [f"{name_ranks(who, self._hosts)} in {what}, for {others}" for (what, others), who in together.items()]
        return (
            f"deadlock, as all threads of these ranks wait: {list_some(pieces, '; ')}. Call collectives in the same "
            "order on every rank, and equally often (backward() and step() too); loops of uneven length end in join()"
        )


def _tokens(waits: Waits) -> list[int]:
    return sorted(wait.token for wait in waits.waits)


def _collective(wait: ThreadWait) -> ThreadWait:
    """Key of the collective without token and text, so that the waits of several ranks compare equal."""
    return ThreadWait(0, wait.process_set, "", wait.name, wait.lane, wait.grant, wait.sequence)


def _reached(waits: Waits, lane: tuple[int, str]) -> int:
    return next((sequence for *found, sequence in waits.reached if tuple(found) == lane), 0)
