"""Contract suite of ``Advisor``, to run on any implementation.

    assert not any(run_advisor_contract(lambda: OptunaAdvisor(space, "tpe", seed=1), space).values())

A case gets a function that makes a new advisor, always with the same arguments, and the space.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from typing import TypeAlias

from farandole.search.advisor import Advisor, Parameters, TrialResult
from farandole.search.space import Space

Make: TypeAlias = Callable[[], Advisor]
AdvisorCase: TypeAlias = Callable[[Make, Space], None]

TRIALS = 12


def run_advisor_contract(make: Make, space: Space) -> dict[str, str]:
    """Run all cases; the result maps each case to its error ("" for none)."""
    found = {}
    for name, case in CASES.items():
        try:
            case(make, space)
        except Exception:  # an exception of the advisor is a finding, too
            found[name] = traceback.format_exc()
        else:
            found[name] = ""
    return found


def proposals_are_in_the_space(make: Make, space: Space) -> None:
    """Every proposal has a legal value for each hyper-parameter, and no other value."""
    advisor, asked = make(), 0
    for number in range(TRIALS):
        proposed = advisor.ask(number)
        if proposed is None:
            break
        space.check(proposed)
        advisor.tell(TrialResult(number, proposed, {1: float(number)}, "complete"))
        asked += 1
    assert asked, "no trial was proposed"


def a_proposal_is_the_callers(make: Make, _: Space) -> None:
    """A change of a proposal by the caller changes nothing in the advisor."""
    first = make()
    proposed = first.ask(0)
    assert proposed
    before = dict(proposed)
    proposed.clear()
    assert make().ask(0) == before


def a_crash_changes_no_proposal(make: Make, _: Space) -> None:
    """A new advisor with the same results proposes the same as the previous advisor would have."""
    advisor, told = make(), list[TrialResult]()
    for number in range(TRIALS):
        proposed = advisor.ask(number)
        if proposed is None:
            return
        assert _after(make, told, number) == proposed, f"trial {number} differs after {len(told)} outcomes"
        told.append(TrialResult(number, proposed, {1: number / 7}, "complete" if number % 3 else "paused"))
        advisor.tell(told[-1])


def later_news_replace_earlier(make: Make, _: Space) -> None:
    """A trial that is reported several times counts once, with its last report: it ran, paused, went on and ended."""
    history, told = list[TrialResult](), list[TrialResult]()
    advisor = make()
    for number in range(TRIALS):
        proposed = advisor.ask(number)
        if proposed is None:
            return
        history += [
            TrialResult(number, proposed),
            TrialResult(number, proposed, {1: 1.0}, "paused"),
            TrialResult(number, proposed, {1: 1.0, 3: number / 5}, "complete"),
        ]
        for each in history[-3:]:
            advisor.tell(each)
        told.append(history[-1])
    assert _after(make, history, TRIALS) == _after(make, told, TRIALS)


def trials_without_a_number_do_no_harm(make: Make, space: Space) -> None:
    """Advisors accept failed and diverged trials, and trials without a value."""
    advisor = make()
    ends = (
        TrialResult(0, {}, {}, "failed"),
        TrialResult(0, {}, {1: math.nan}, "paused"),
        TrialResult(0, {}, {1: math.inf}),
    )
    for number in range(TRIALS):
        proposed = advisor.ask(number)
        if proposed is None:
            return
        space.check(proposed)
        end = ends[number % 3]
        advisor.tell(TrialResult(number, proposed, end.values, end.phase))


def _after(make: Make, told: list[TrialResult], number: int) -> Parameters | None:
    advisor = make()
    for outcome in told:
        advisor.tell(outcome)
    return advisor.ask(number)


CASES: dict[str, AdvisorCase] = {
    case.__name__: case
    for case in (
        proposals_are_in_the_space,
        a_proposal_is_the_callers,
        a_crash_changes_no_proposal,
        later_news_replace_earlier,
        trials_without_a_number_do_no_harm,
    )
}
