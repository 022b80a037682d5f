"""Limits, policy files, rules and hours: what is read, and how what cannot be meant is answered."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.errors import SettingsError
from farandole.launch.leases.limits import LeaseLimits, closes_s, open_hours, windows_of
from farandole.launch.leases.policy_file import KEYS, OF_THE_USER, STRICTER, PolicyFile, bounded, read_policy
from farandole.launch.leases.rules import LeaseRule

# -- rules -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when", "value", "holds"),
    [
        ("val_acc>=0.9", 0.9, True),
        ("val_acc >= 0.9", 0.89, False),
        ("loss/val < 1e-2", 0.009, True),
        ("epoch==3", 3.0, True),
        ("a.b-c<=-1.5", -2.0, True),
        ("a.b-c>-1.5", -2.0, False),
    ],
)
def test_conditions_are_read(when: str, value: float, holds: bool) -> None:
    rule = LeaseRule.parse(when, "np=2")
    assert rule.holds({rule.condition()[0]: value}) is holds


@pytest.mark.parametrize("when", ["", "val_acc", ">=0.9", "val_acc=0.9", "val_acc>=high", "x>=nan", "a>=1 and b>=2"])
def test_a_condition_that_is_none_says_what_to_write(when: str) -> None:
    with pytest.raises(SettingsError, match=r"as in --when 'val_acc>=0.9' --then 'np=2,nice=1000'"):
        LeaseRule.parse(when, "np=2")


@pytest.mark.parametrize("then", ["", "np", "np=", "np=-1", "np=two", "size=2", "np=2;nice=1", "np=1,np=2", "np=0"])
def test_an_effect_that_is_none_says_what_to_write(then: str) -> None:
    with pytest.raises(SettingsError, match=r"write np=|np=N, nice=N"):
        LeaseRule.parse("val_acc>=0.9", then)


def test_nothing_of_a_rule_is_evaluated() -> None:
    with pytest.raises(SettingsError):
        LeaseRule.parse("__import__('os').getpid()>=1", "np=2")


# -- hours -------------------------------------------------------------------------------------------------------------


@given(st.sets(st.integers(0, 23), min_size=1))
def test_hours_are_read_as_they_are_written(hours: set[int]) -> None:
    assert open_hours(windows_of(hours)) == hours


@given(st.sets(st.integers(0, 23), min_size=1, max_size=23), st.integers(0, 200 * 3600), st.integers(-12, 14))
def test_a_window_closes_when_its_hours_are_over(hours: set[int], now_s: int, zone: int) -> None:
    def is_open(at_s: float) -> bool:
        return int((at_s + 3600 * zone) // 3600) % 24 in hours

    until_s = closes_s(frozenset(hours), now_s, 3600.0 * zone)
    if is_open(now_s):
        assert all(is_open(at_s) for at_s in range(now_s, int(until_s), 600))
        assert not is_open(until_s)
    else:
        assert until_s <= now_s


@pytest.mark.parametrize("text", ["8", "20-25", "8-8", "-", "night"])
def test_hours_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="as in '20-8'"):
        LeaseLimits(hours=(text,))


# -- limits and files --------------------------------------------------------------------------------------------------


def test_the_defaults_are_those_of_the_specification() -> None:
    limits = LeaseLimits()
    growth = (limits.growth_at, limits.advice_apart_s, limits.growth_per_advice)
    assert growth == (1.25, 120.0, 4.0)
    assert (limits.worth_pauses, limits.worth_warmups, limits.most_pending) == (5.0, 10.0, 2)
    assert (limits.shrink_at, limits.shrink_after_s, limits.opposite_s) == (0.67, 600.0, 600.0)
    assert (limits.changes_per_hour, limits.leave_steps, limits.leave_s) == (6, 2.0, 30.0)
    assert (limits.wait_quantile, limits.breaker_leases, limits.order_s) == (0.8, 3, 3600.0)
    assert [limits.pause_s(times) for times in (1, 2, 3, 4, 5)] == [60, 900, 1800, 3600, 3600]
    assert (limits.look_pending_s, limits.look_s) == (60.0, 300.0)


@pytest.mark.parametrize(
    "wrong",
    [{"min_np": 3, "max_np": 2}, {"growth_at": 0.5}, {"shrink_at": 2.0}, {"pauses_s": ()}, {"lease_lengths_s": (0.0,)}],
)
def test_limits_that_contradict_themselves_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(SettingsError):
        LeaseLimits(**wrong)  # type: ignore[arg-type]


def test_a_misspelt_key_is_answered_with_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("most-lease = 3\n")
    with pytest.raises(SettingsError, match=r"policy.toml has the key 'most-lease'.* did you mean most-leases\?"):
        read_policy(path)


@pytest.mark.parametrize("line", ["max-np = 'many'", "hours = ['8']", "rules = [{ when = 'x', then = 'np=1' }]"])
def test_a_value_that_is_none_names_its_file(tmp_path: Path, line: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(line + "\n")
    with pytest.raises(SettingsError, match=r"policy.toml: "):
        read_policy(path)


def test_a_file_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert bounded(read_policy(tmp_path / "none.toml"), read_policy(tmp_path / "none.toml")) == LeaseLimits()


SITE = PolicyFile(
    "site.toml",
    {
        "most-leases": 8,
        "max-np": 64,
        "lease-lengths-s": [7200],
        "look-pending-s": 120,
        "hours": ["20-8"],
        "partitions": ["gpu", "night"],
        "paused": True,
    },
)


def test_the_site_counts_where_the_user_says_nothing() -> None:
    limits = bounded(SITE, PolicyFile("user.toml", {"min-np": 2}))
    assert (limits.most_leases, limits.max_np, limits.min_np) == (8, 64, 2)


def test_a_user_may_be_stricter() -> None:
    user = {"most-leases": 4, "max-np": 16, "lease-lengths-s": [3600, 1200], "look-pending-s": 180, "hours": ["6-22"]}
    limits = bounded(SITE, PolicyFile("user.toml", {**user, "partitions": ["night"]}))
    assert (limits.most_leases, limits.max_np, limits.lease_lengths_s) == (4, 16, (3600, 1200))
    assert limits.hours == ("6-8", "20-22")
    assert limits.paused


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("most-leases", 9),
        ("max-np", 65),
        ("max-np", 0),
        ("lease-lengths-s", [3600, 7201]),
        ("look-pending-s", 60),
        ("partitions", ["gpu", "all"]),
        ("partitions", []),
        ("paused", False),
        ("hours", ["9-17"]),
    ],
)
def test_a_user_may_not_be_looser(key: str, value: object) -> None:
    with pytest.raises(SettingsError, match=rf"user.toml: {key} = .*site.toml"):
        bounded(SITE, PolicyFile("user.toml", {key: value}))


def test_every_key_is_stricter_one_way_or_of_the_user() -> None:
    assert {*STRICTER, *OF_THE_USER, "hours"} == {*KEYS}
