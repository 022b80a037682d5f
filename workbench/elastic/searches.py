"""Jobs to search: ``python -m workbench.elastic.searches [NAME ...]`` prints the results.

Tests search the jobs of ``SMALL``; the jobs of ``LARGE`` take minutes, and are for changes of the protocol.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from farandole.elastic.membership.policy import Policy
from workbench.elastic.search import search
from workbench.elastic.world import JobSetup

ONCE = Policy(cooldown_range_s=(1000.0, 1000.0))
"""A slot that has failed rests for longer than the job lasts."""

SMALL = {
    "three workers, two killed": JobSetup({"a": 3}, ONCE, budget=(("kill", 2),)),
    "three workers, one killed": JobSetup({"a": 3}, ONCE, budget=(("kill", 1),)),
    "two workers, one killed and one hung": JobSetup({"a": 2}, ONCE, budget=(("kill", 1), ("hang", 1))),
    "two workers, one killed and one told to end": JobSetup(
        {"a": 2}, ONCE, samples=3, budget=(("kill", 1), ("notice", 1))
    ),
    "two workers, one raises": JobSetup({"a": 2}, ONCE, budget=(("fail", 1),)),
    "two workers, the script of one raises": JobSetup({"a": 2}, ONCE, budget=(("raise", 1),)),
    "two workers, one raises while it applies a step": JobSetup({"a": 2}, ONCE, budget=(("fail in apply", 1),)),
    "three workers, a host cut off": JobSetup({"a": 2, "b": 1}, ONCE, budget=(("cut host", 1),)),
    "two workers, the lead lost with one of them": JobSetup({"a": 1, "b": 1}, ONCE, budget=(("lose lead", 1),)),
    "three workers, the lead lost with one of them": JobSetup(
        {"a": 1, "b": 2}, ONCE, samples=3, batch=3, budget=(("lose lead", 1),)
    ),
    "two workers, one killed and replaced": JobSetup({"a": 1, "b": 1}, Policy(), budget=(("kill", 1),)),
    "two workers, both needed, one killed": JobSetup({"a": 1, "b": 1}, Policy(min_np=2), budget=(("kill", 1),)),
    "one worker, another joins": JobSetup({"a": 1}, Policy(), plans=({"a": 1, "b": 1},), fixed_batch=False, samples=5),
    "two workers, one leaves and comes back": JobSetup(
        {"a": 1, "b": 1}, Policy(), plans=({"a": 1}, {"a": 1, "b": 1}), fixed_batch=False, samples=5
    ),
    "two workers, both needed, one leaves and comes back": JobSetup(
        {"a": 1, "b": 1}, Policy(min_np=2), plans=({"a": 1}, {"a": 1, "b": 1})
    ),
    "one worker moves to another host": JobSetup({"a": 1}, Policy(), plans=({"a": 1, "b": 1}, {"b": 1})),
    "two workers, time-outs that come too early": JobSetup({"a": 2}, ONCE, budget=(("hurry", 1), ("kill", 1))),
}

LARGE = {
    "three workers, one killed and one told to end": JobSetup(
        {"a": 3}, ONCE, samples=3, budget=(("kill", 1), ("notice", 1))
    ),
    "three workers, the script of one raises": JobSetup({"a": 3}, ONCE, budget=(("raise", 1),)),
    "three workers, one killed and one hung": JobSetup({"a": 3}, ONCE, budget=(("kill", 1), ("hang", 1))),
    "three workers, one killed, one raises in a step": JobSetup(
        {"a": 3}, ONCE, budget=(("kill", 1), ("fail in apply", 1))
    ),
    "three workers, a host cut off, one killed": JobSetup(
        {"a": 2, "b": 1}, ONCE, budget=(("cut host", 1), ("kill", 1))
    ),
    "three workers of three steps, one killed": JobSetup({"a": 3}, ONCE, samples=6, budget=(("kill", 1),)),
    "one worker moves to another host, one killed": JobSetup(
        {"a": 1}, Policy(), plans=({"b": 1},), budget=(("kill", 1),)
    ),
}


def main(names: Sequence[str]) -> int:
    """Run the searches of these names, or all; 1 if one has found a fault."""
    failed = 0
    for name, setup in {**SMALL, **LARGE}.items():
        if names and name not in names:
            continue
        begin_s = time.monotonic()
        found = search(setup, most=10_000_000)
        ends = ", ".join(f"{status}: {number}" for status, number in sorted(found.ends.items()))
        took_s = time.monotonic() - begin_s
        print(f"| {name} | {found.states:,} | {found.transitions:,} | {ends} | {took_s:.0f} s |", flush=True)
        if found.fault:
            failed = 1
            print(found.fault)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
