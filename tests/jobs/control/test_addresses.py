"""What is offered to other hosts as this host's addresses."""

from __future__ import annotations

import ipaddress
import socket

import psutil
import pytest

from farandole.control.addresses import Interface, endpoints, interfaces, is_own, own_endpoints, reachable_by
from farandole.errors import UsageError

HERE = [
    Interface("lo", "127.0.0.1", True),
    Interface("lo", "::1", True),
    Interface("eth0", "fd77::1", True),
    Interface("eth0", "10.0.0.1", True),
    Interface("eth0", "fe80::1", True),
    Interface("ib0", "10.1.0.1", True),
    Interface("off", "10.2.0.1", False),
]


def test_all_that_others_may_reach_is_offered_and_the_name_at_last() -> None:
    assert reachable_by(HERE, "", "box") == ["10.0.0.1", "10.1.0.1", "fd77::1", "box"]


def test_an_interface_restricts_what_is_offered() -> None:
    assert reachable_by(HERE, "ib0", "box") == ["10.1.0.1"]
    assert reachable_by(HERE, "ib0, eth0", "box") == ["10.0.0.1", "10.1.0.1", "fd77::1", "fe80::1"]
    assert reachable_by(HERE, "lo", "box") == ["127.0.0.1", "::1"]


@pytest.mark.parametrize(("only", "words"), [("eth7", "no interface eth7, but lo, eth0, ib0, off"), ("off", "is down")])
def test_an_interface_that_cannot_be_is_refused(only: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        reachable_by(HERE, only, "box")


def test_the_interfaces_of_this_host_are_those_that_psutil_finds() -> None:
    families = (socket.AF_INET, socket.AF_INET6)
    expected = {
        (name, str(ipaddress.ip_address(entry.address.partition("%")[0])))
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family in families
    }
    assert {(each.name, each.address) for each in interfaces()} == expected


def test_endpoints_are_in_the_words_of_zeromq() -> None:
    assert endpoints(7, ["10.0.0.1", "fd77::1", "box"]) == ["tcp://10.0.0.1:7", "tcp://[fd77::1]:7", "tcp://box:7"]
    assert own_endpoints("tcp://[::]:7")[-1] == f"tcp://{socket.gethostname()}:7"
    assert own_endpoints("tcp://0.0.0.0:7", "lo")[0] == "tcp://127.0.0.1:7"


def test_own_names_are_known() -> None:
    assert is_own("localhost")
    assert is_own("127.0.0.1")
    assert not is_own("192.0.2.222")
    assert not is_own("no.such.host.invalid")
    assert not is_own("x" * 300)
