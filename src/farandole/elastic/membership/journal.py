"""Membership with a journal of its events and decisions, so that every decision can be examined and replayed.

    membership = Recorded(Policy(min_np=2), write=file.write)      # otherwise a Membership like any other
    for turn in read(lines): print(turn.at_s, turn.decisions)
    replay(lines)                                                  # raises if this version decides otherwise

A journal is text with one JSON object per line: first the policy, then every turn with new events or decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import final

import msgspec

from farandole.elastic.membership import job_events
from farandole.elastic.membership.actions import Decision, Finish
from farandole.elastic.membership.membership import Membership
from farandole.elastic.membership.policy import Policy
from farandole.elastic.membership.workers import Worker
from farandole.errors import UsageError


@final
class Opening(msgspec.Struct, frozen=True, tag=True):
    """First line of a journal: the limits used for all decisions in it."""

    policy: Policy


@final
class EventRecord(msgspec.Struct, frozen=True):
    """An event, and the time at which the membership got it."""

    at_s: float
    event: job_events.JobEvent


@final
class DecisionRecord(msgspec.Struct, frozen=True, tag="Turn"):
    """Events since the last turn, and the decisions that followed from them."""

    at_s: float
    heard: list[EventRecord]
    decisions: list[Decision]


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Opening | DecisionRecord)


@final
class Recorded:
    """A ``Membership`` and its journal. ``write`` gets whole lines. ``lines``: an existing journal to resume from."""

    def __init__(self, policy: Policy, write: Callable[[str], object], lines: Sequence[str] = ()) -> None:
        self._membership = Membership(policy)
        self._write = write
        self._heard: list[EventRecord] = []
        self.finish: Decision | None = None
        """The decision to finish, if the resumed journal contains one."""
        if lines:
            self._repeat(read(lines)[1])
        else:
            self._add(Opening(policy))

    def _repeat(self, turns: Iterable[DecisionRecord]) -> None:
        for turn in turns:
            for heard in turn.heard:
                self._membership.on(heard.at_s, heard.event)
            decisions = self._membership.decide(turn.at_s)
            self.finish = next((each for each in decisions if isinstance(each.action, Finish)), self.finish)

    def on(self, now: float, event: job_events.JobEvent) -> None:
        """See ``Membership``."""
        self._heard.append(EventRecord(now, event))
        self._membership.on(now, event)

    def decide(self, now: float) -> list[Decision]:
        """See ``Membership``."""
        decisions = self._membership.decide(now)
        if self._heard or decisions:
            # Written before the caller acts: if this process dies in between, the next controller repeats the order,
            # which agents carry out only once. In the reverse order it would not know of a worker that was started.
            self._add(DecisionRecord(now, self._heard, decisions))
            self._heard = []
        return decisions

    @property
    def deadline_s(self) -> float | None:
        """See ``Membership``."""
        return self._membership.deadline_s

    @property
    def status(self) -> int | None:
        """See ``Membership``."""
        return self._membership.status

    @property
    def generation(self) -> int:
        """See ``Membership``."""
        return self._membership.generation

    @property
    def members(self) -> tuple[int, ...]:
        """See ``Membership``."""
        return self._membership.members

    @property
    def next_worker_id(self) -> int:
        """See ``Membership``."""
        return self._membership.next_worker_id

    @property
    def slots(self) -> Mapping[str, int]:
        """See ``Membership``."""
        return self._membership.slots

    @property
    def workers(self) -> Mapping[int, Worker]:
        """See ``Membership``."""
        return self._membership.workers

    @property
    def over(self) -> str:
        """See ``Membership``."""
        return self._membership.over

    @property
    def step_s(self) -> float:
        """See ``Membership``."""
        return self._membership.step_s

    def _add(self, line: Opening | DecisionRecord) -> None:
        self._write(_encoder.encode(line).decode() + "\n")


def read(lines: Iterable[str]) -> tuple[Policy, list[DecisionRecord]]:
    """The policy and all turns of a journal. An incomplete last line, from a writer that was killed, is ignored."""
    whole = [line for line in lines if line.endswith("\n")]
    try:
        opening, *turns = [_decoder.decode(line) for line in whole]
    except (ValueError, msgspec.MsgspecError) as error:
        raise UsageError(f"this is no journal of an elastic job of this version: {error}") from error
    if not isinstance(opening, Opening) or any(isinstance(turn, Opening) for turn in turns):
        raise UsageError("this is no journal of one elastic job: its first line, and no other, has the policy")
    return opening.policy, [turn for turn in turns if isinstance(turn, DecisionRecord)]


def replay(lines: Iterable[str]) -> list[DecisionRecord]:
    """Repeat all decisions and return the turns; raises ``UsageError`` at the first decision that differs."""
    policy, turns = read(lines)
    membership = Membership(policy)
    for number, turn in enumerate(turns, 1):
        for heard in turn.heard:
            membership.on(heard.at_s, heard.event)
        decisions = membership.decide(turn.at_s)
        if decisions != turn.decisions:
            raise UsageError(
                f"turn {number} of the journal, at {turn.at_s:.3f} s, comes out otherwise: "
                f"it has {_reasons(turn.decisions)}, and this version decides {_reasons(decisions)}"
            )
    return turns


def _reasons(decisions: list[Decision]) -> str:
    return "; ".join(f"{type(each.action).__name__} ({each.reason})" for each in decisions) or "nothing"
