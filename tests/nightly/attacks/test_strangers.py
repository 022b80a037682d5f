"""A crowd of strangers at the port of a rank that connects, small enough for every run of the tests."""

from __future__ import annotations

from workbench.attacks import strangers


def test_a_crowd_keeps_no_member_out_and_costs_no_more_than_it_may() -> None:
    said: list[str] = []
    assert strangers.attack(600, said.append) == []
    assert said[0].startswith("600 strangers stayed and ")
