"""What was decided on leases can be decided again from the journal alone."""

from __future__ import annotations

import math

import msgspec
import pytest

from farandole.errors import UsageError
from farandole.largebatch import Advice, Estimate, Prospect, Refusal
from farandole.launch.leases.journal import read_records, record, replay
from farandole.launch.leases.limits import LeaseLimits
from farandole.launch.leases.observation import Hold, LeaseAdvice, LeaseProgress, OutsideCancel, Resume, ScaleTo
from farandole.launch.leases.rules import LeaseRule
from tests.support.launch.lease_world import LeaseWorld


def journal() -> list[str]:
    """A run with something of everything."""
    limits = LeaseLimits(
        max_np=6,
        budget_node_hours=20.0,
        hours=("0-24",),
        lease_lengths_s=(1800.0,),
        rules=(LeaseRule("val_acc>=0.9", "np=3,nice=100"),),
    )
    world = LeaseWorld(limits)
    for order in (ScaleTo(4), Hold(), Resume(), OutsideCancel("801_1")):
        world.orders.append(order)
        world.advise(5, low=800.0)
        world.run(900)
    world.progress = msgspec.structs.replace(world.progress, metrics={"val_acc": 0.95, "loss": math.inf})
    world.run(900)
    return [record(each.limits, each.plan, each.seen, each.after, each.decisions) for each in world.calls]


def test_a_journal_is_replayed_to_the_same_decisions() -> None:
    lines = journal()
    assert not list(replay(lines))
    kinds = {type(decision.action).__name__ for line in read_records(lines) for decision in line.decisions}
    assert {"Release", "SubmitArray", "EndLease", "LookAtQueue", "Say"} <= kinds


def test_each_line_is_replayed_alone_and_a_torn_one_is_left() -> None:
    lines = journal()
    assert not list(replay(lines[50:60]))
    assert len(list(read_records([*lines[:5], lines[5][:-20]]))) == 5


def test_a_line_that_comes_out_otherwise_is_told() -> None:
    lines = journal()
    number = next(i for i, line in enumerate(lines) if '"Release"' in line.partition('"decisions"')[2])
    head, key, tail = lines[number].partition('"decisions"')
    lines[number] = head + key + ":[]" + "}\n"
    [difference] = replay(lines)
    assert difference.line == number + 1
    assert "it has nothing, and this version decides" in str(difference)
    assert tail


def test_a_line_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="line 1 is none of a journal of leases"):
        list(replay(["{}\n"]))


def test_advice_becomes_what_a_journal_can_hold() -> None:
    prospects = tuple(Prospect(n, 32.0 * n, 1e6, 1000.0 / n, 1100.0 / n, 900.0 / n) for n in (1, 2, 3, 4))
    advice = Advice(Estimate(4000.0, 1.0, 1000.0, math.inf, 77), prospects, 4, 2, 64.0, ())
    assert LeaseAdvice.of(advice, 5.0, remaining=0.5) == LeaseAdvice(5.0, 4, 1000.0, 0.0, 125.0)
    refused = LeaseAdvice.of(Refusal(("no step was timed: train some",)), 6.0)
    assert refused == LeaseAdvice(6.0, refusal="no advice: no step was timed: train some")


def test_metrics_that_are_no_numbers_are_left_out() -> None:
    assert LeaseProgress(metrics={"a": math.nan, "b": 1.0, "c": -math.inf}).metrics == {"b": 1.0}
