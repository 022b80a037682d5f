"""Which address an engine listens at."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from farandole.engines import reach
from farandole.engines.engine import Group, Rendezvous
from farandole.errors import EngineError, UsageError

GROUP = Group(0, (0, 1), ("here", "there"), 1, "lane")


def routes(monkeypatch: pytest.MonkeyPatch, **known: str) -> None:
    """The kernel would send from these addresses, by destination."""
    monkeypatch.setattr(reach, "source_towards", lambda destination, _: known.get(destination, ""))


def meeting(*others: str) -> Rendezvous:
    """The other members say this."""

    def share(key: str, ranks: Sequence[int], payload: bytes) -> list[bytes]:
        return [payload, *(other.encode() for other in others)]

    return Rendezvous(share, "test", (0, 1))


def test_one_host_needs_only_the_loopback() -> None:
    assert reach.reachable_address(dataclasses.replace(GROUP, hosts=("a", "a")), meeting("")) == "127.0.0.1"


def test_what_the_group_knows_comes_first_unless_it_is_the_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    routes(monkeypatch, **{"10.0.0.2": "10.0.0.1"})
    assert reach.reachable_address(dataclasses.replace(GROUP, address="10.9.9.9"), meeting("")) == "10.9.9.9"
    assert reach.reachable_address(dataclasses.replace(GROUP, address="127.0.0.1"), meeting("10.0.0.2")) == "10.0.0.1"


def test_then_the_route_to_a_peer_by_its_address_then_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    routes(monkeypatch, **{"10.0.0.2": "10.0.0.1", "there": "192.168.0.1"})
    assert reach.reachable_address(GROUP, meeting("10.0.0.2")) == "10.0.0.1"
    assert reach.reachable_address(GROUP, meeting("")) == "192.168.0.1"


def test_all_members_listen_by_the_same_version_of_ip(monkeypatch: pytest.MonkeyPatch) -> None:
    routes(monkeypatch, **{"10.0.0.1": "10.0.0.2"})
    second = dataclasses.replace(GROUP, rank=1, address="fd77::2")

    def share(key: str, ranks: Sequence[int], payload: bytes) -> list[bytes]:
        return [b"10.0.0.1", payload]

    assert reach.reachable_address(second, Rendezvous(share, "test", (0, 1))) == "10.0.0.2"


def test_who_finds_nothing_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    routes(monkeypatch)
    monkeypatch.setattr(reach, "_own_address", lambda _: "")
    with pytest.raises(EngineError, match=r"rank 0 on here does not know .* --network-interface"):
        reach.reachable_address(GROUP, meeting(""))


def test_the_loopback_and_names_without_an_address_lead_nowhere() -> None:
    assert reach.source_towards("127.0.0.1") == ""
    assert reach.source_towards("::1") == ""
    assert reach.source_towards("no.such.host.invalid") == ""


def test_a_network_interface_that_was_asked_for_has_to_be_there() -> None:
    with pytest.raises(UsageError, match="no interface nosuch0"):
        reach.known_address("nosuch0", "tcp://127.0.0.1:7000")
    assert reach.known_address("lo", "tcp://10.0.0.1:7000") == "127.0.0.1"
    assert reach.known_address("", "tcp://127.0.0.1:7000") == ""
    assert reach.known_address("", "") == ""
