"""Journal of the policy of leases: each call of ``decide`` as a line, and all of them decided again.

    after, decisions = decide(limits, plan, seen)
    file.write(record(limits, plan, seen, after, decisions))
    for difference in replay(file): print(difference)               # none, if this version decides the same

A line is whole: one can be decided again without those before it. A last line without its end is of a writer that was
killed, and is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import final

import msgspec

from farandole.errors import UsageError
from farandole.launch.leases.actions import LeaseDecision
from farandole.launch.leases.decide import decide
from farandole.launch.leases.limits import LeaseLimits
from farandole.launch.leases.observation import AnyLeaseOrder, LeaseObservation
from farandole.launch.leases.policy_state import LeasePlan


@final
class LeaseRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One call of ``decide``: what went in, and what came out. One with ``asked`` is none: orders wait for the next."""

    limits: LeaseLimits
    plan: LeasePlan
    seen: LeaseObservation
    after: LeasePlan
    decisions: list[LeaseDecision]
    asked: list[AnyLeaseOrder] = []


@final
class LeaseDifference(msgspec.Struct, frozen=True):
    """Line of a journal that comes out otherwise: ``plan`` names the fields of the plan that do."""

    line: int
    at_s: float
    recorded: list[LeaseDecision]
    decided: list[LeaseDecision]
    plan: tuple[str, ...] = ()

    def __str__(self) -> str:
        had, has = (_told(decisions) for decisions in (self.recorded, self.decided))
        fields = f"; of the plan: {', '.join(self.plan)}" if self.plan else ""
        return f"line {self.line}, at {self.at_s:.0f}: it has {had}, and this version decides {has}{fields}"


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(LeaseRecord)


def record(
    limits: LeaseLimits, plan: LeasePlan, seen: LeaseObservation, after: LeasePlan, decisions: list[LeaseDecision]
) -> str:
    """One call of ``decide`` as a line."""
    return _encoder.encode(LeaseRecord(limits, plan, seen, after, decisions)).decode() + "\n"


def record_asked(limits: LeaseLimits, plan: LeasePlan, seen: LeaseObservation, asked: list[AnyLeaseOrder]) -> str:
    """Orders that people have given, and that nothing has been decided about yet, as a line."""
    return _encoder.encode(LeaseRecord(limits, plan, seen, plan, [], asked)).decode() + "\n"


def read_records(lines: Iterable[str]) -> Iterator[LeaseRecord]:
    """Calls of a journal; raises ``UsageError`` for a line that is none."""
    for number, line in enumerate(lines, 1):
        if not line.endswith("\n"):
            return
        try:
            yield _decoder.decode(line)
        except (ValueError, msgspec.MsgspecError) as error:
            raise UsageError(f"line {number} is none of a journal of leases of this version: {error}") from error


def replay(lines: Iterable[str]) -> Iterator[LeaseDifference]:
    """Decide every line again; yields those that come out otherwise."""
    for number, line in enumerate(read_records(lines), 1):
        if line.asked:
            continue
        after, decisions = decide(line.limits, line.plan, line.seen)
        if decisions != line.decisions or after != line.after:
            fields = LeasePlan.__struct_fields__
            differ = tuple(field for field in fields if getattr(after, field) != getattr(line.after, field))
            yield LeaseDifference(number, line.seen.now_s, line.decisions, decisions, differ)


def _told(decisions: list[LeaseDecision]) -> str:
    return "; ".join(f"{type(each.action).__name__} ({each.reason})" for each in decisions) or "nothing"
