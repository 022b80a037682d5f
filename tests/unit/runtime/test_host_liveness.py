"""Liveness of hosts by their heartbeats, also for a process that stands still: the clock is the test's."""

from __future__ import annotations

import pytest

from farandole.runtime.coordination.host_liveness import HEARTBEATS, HostLiveness

SILENCE_S = 3.0
PAUSE_S = SILENCE_S / HEARTBEATS
TURN_S = 0.001
"""Time from a look until what waits in the kernel has been taken in."""


def looks(hosts: HostLiveness, from_s: float, until_s: float) -> list[tuple[float, str]]:
    """Look whenever that is due, as a loop does that nobody wakes; returns who was lost, and when."""
    lost: list[tuple[float, str]] = []
    now = from_s
    while now <= until_s:
        lost += [(now, each.host) for each in hosts.lost(now)]
        if hosts.deadline_s is None:
            break
        now = max(now, hosts.deadline_s)
    return lost


def up(host: str, at_s: float = 0.0) -> HostLiveness:
    hosts = HostLiveness(SILENCE_S)
    hosts.expect(host, 30.0)
    hosts.heard(host, at_s)
    return hosts


def test_a_host_is_lost_when_it_has_been_silent_for_so_long_and_no_later() -> None:
    assert looks(up("b"), 0.0, 10.0) == [(SILENCE_S, "b")]


def test_a_host_that_is_slow_is_not_lost() -> None:
    hosts = up("b")
    for at_s in (2.9, 5.8, 8.7):
        assert looks(hosts, at_s - 2.9, at_s) == []
        hosts.heard("b", at_s)
    assert looks(hosts, 8.7, 20.0) == [(8.7 + SILENCE_S, "b")]


@pytest.mark.parametrize("until_s", [0.5, 1.0, 2.0, 2.3, 2.99, 3.0, 3.01, 3.5, 3.75, 4.0, 5.5, 6.0, 7.0, 60.0])
@pytest.mark.parametrize("since_s", [0.0, 0.4, 0.74])
def test_whoever_stood_still_loses_no_host_that_speaks(since_s: float, until_s: float) -> None:
    """The last heartbeat was at 0, the process stands still from then on, and hears the others a moment too late."""
    hosts = up("b")
    assert looks(hosts, 0.0, since_s) == []
    assert hosts.lost(since_s + until_s) == []
    now = since_s + until_s + TURN_S
    assert looks(hosts, now - TURN_S / 2, now) == []
    hosts.heard("b", now)
    assert looks(hosts, now, now + 10.0) == [(now + SILENCE_S, "b")]


def test_an_agent_that_has_given_up_meanwhile_has_the_whole_time_to_call_again() -> None:
    hosts = up("b")
    assert hosts.lost(60.0) == []
    assert looks(hosts, 60.0, 60.0 + SILENCE_S - TURN_S) == []
    hosts.heard("b", 60.0 + SILENCE_S - TURN_S)
    assert looks(hosts, 63.0, 64.0) == []


def test_whoever_stands_still_again_and_again_loses_hosts_in_the_end() -> None:
    hosts = up("b")
    lost: list[str] = []
    for turn in range(1, 5):
        lost += [each.host for each in hosts.lost(turn * 10.0)]
    assert lost == ["b"]


def test_a_host_that_is_awaited_is_lost_at_its_time_unless_this_process_stood_still() -> None:
    hosts = HostLiveness(SILENCE_S)
    hosts.expect("b", 30.0)
    assert looks(hosts, 0.0, 40.0) == [(30.0, "b")]
    hosts.readmit("b")
    hosts.expect("b", 70.0)
    assert hosts.lost(80.0) == []
    assert looks(hosts, 80.0, 90.0) == [(80.0 + SILENCE_S, "b")]


def test_silence_does_not_count_where_it_is_not_to() -> None:
    hosts = HostLiveness(0.0)
    hosts.expect("b", 30.0)
    hosts.heard("b", 1.0)
    assert hosts.deadline_s is None
    assert hosts.lost(1000.0) == []
    hosts.expect("c", 30.0)
    assert [each.host for each in hosts.lost(31.0)] == ["c"]


def test_a_host_that_is_lost_stays_so_until_it_is_readmitted() -> None:
    hosts = up("b")
    assert looks(hosts, 0.0, 5.0)
    hosts.heard("b", 5.0)
    assert (hosts.is_up("b"), hosts.deadline_s) == (False, None)
    hosts.readmit("b")
    hosts.expect("b", 30.0)
    hosts.heard("b", 6.0)
    assert hosts.is_up("b")
    assert looks(hosts, 6.0, 20.0) == [(6.0 + SILENCE_S, "b")]
