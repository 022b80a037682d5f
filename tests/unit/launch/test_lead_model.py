"""Every interleaving of small runs whose leads succeed each other; and each rule is needed."""

from __future__ import annotations

import pytest

from workbench.leads.search import SMALL, search
from workbench.leads.world import LeadSetup


@pytest.mark.parametrize("name", SMALL)
def test_no_earlier_generation_votes_on_a_step_once_a_later_one_has_begun(name: str) -> None:
    found = search(SMALL[name])
    assert found.fault == ""
    assert found.states > 1000
    assert found.ends > 0


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        (LeadSetup(own=1, lent=1, asks_log=False), "votes for step 1 after generation"),
        (LeadSetup(own=1, lent=1, adopts_member=False), "votes for step 1 after generation"),
        (LeadSetup(own=1, lent=1, needs_all=False), "step 0 is voted for after step 1"),
    ],
    ids=["without the log", "without a member of the last generation", "with half of the ranks"],
)
def test_each_rule_is_needed(broken: LeadSetup, fault: str) -> None:
    assert fault in search(broken).fault
