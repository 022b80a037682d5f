"""Journal of the policy of leases: each call of ``decide`` as one line, and the replay of all lines.

    after, decisions = decide(limits, plan, seen)
    file.write(record(limits, plan, seen, after, decisions))
    for difference in replay(file): print(difference)               # none if this version decides the same

Each line is complete: it can be replayed without the lines before it. A last line without a line end was left by a
killed writer, and is skipped.
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
    """Inputs and outputs of one call of ``decide``; with ``asked`` no call, but orders that wait for the next one."""

    limits: LeaseLimits
    plan: LeasePlan
    seen: LeaseObservation
    after: LeasePlan
    decisions: list[LeaseDecision]
    asked: list[AnyLeaseOrder] = []


@final
class LeaseDifference(msgspec.Struct, frozen=True):
    """Line of a journal whose replay differs; ``plan`` names the fields of the plan that differ."""

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
    """Encode one call of ``decide`` as a line."""
    return _encoder.encode(LeaseRecord(limits, plan, seen, after, decisions)).decode() + "\n"


def record_asked(limits: LeaseLimits, plan: LeasePlan, seen: LeaseObservation, asked: list[AnyLeaseOrder]) -> str:
    """Encode orders that no call of ``decide`` has used yet as a line."""
    return _encoder.encode(LeaseRecord(limits, plan, seen, plan, [], asked)).decode() + "\n"


def read_records(lines: Iterable[str]) -> Iterator[LeaseRecord]:
    """Parse the lines of a journal; raises ``UsageError`` for an invalid line."""
    for number, line in enumerate(lines, 1):
        if not line.endswith("\n"):
            return
        try:
            yield _decoder.decode(line)
        except (ValueError, msgspec.MsgspecError) as error:
            raise UsageError(f"line {number} is none of a journal of leases of this version: {error}") from error


def replay(lines: Iterable[str]) -> Iterator[LeaseDifference]:
    """Replay every line; yields the lines whose result differs."""
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
