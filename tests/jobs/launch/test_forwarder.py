"""The way of a lent host to its lead: real sockets, and a folder that changes."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from farandole.control.channel import Dealer, Router
from farandole.control.keys import JobKeys, new_secret
from farandole.control.messages import Leave
from farandole.errors import UsageError
from farandole.launch.agents.controller_lookup import ControllerLookup, LeaderContact
from farandole.launch.agents.forwarder import Forwarder
from tests.support.patience import PATIENCE_S
from tests.support.waiting import until


@pytest.fixture
def forwarder() -> Iterator[Forwarder]:
    made = Forwarder("127.0.0.1")
    yield made
    made.close()
    made.close()


def place(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return host.strip("[]"), int(port)


def refuses(address: str) -> bool:
    try:
        socket.create_connection(place(address), PATIENCE_S).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:  # it is closed just now, with this one waiting
        return False
    return False


def test_bytes_go_both_ways_however_many_and_the_end_of_one_side_is_that_of_the_other(forwarder: Forwarder) -> None:
    sent = bytes(range(256)) * 40_000  # ten times what may wait
    with socket.create_server(("127.0.0.1", 0)) as server:
        forwarder.follow(f"tcp://127.0.0.1:{server.getsockname()[1]}")
        until(lambda: not refuses(forwarder.address))
        server.accept()[0].close()  # that of the look
        with socket.create_connection(place(forwarder.address), PATIENCE_S) as near, server.accept()[0] as far:
            got: list[bytes] = []

            def echo() -> None:
                while chunk := far.recv(2**16):
                    far.sendall(chunk)

            def read() -> None:
                while sum(map(len, got)) < len(sent):
                    got.append(near.recv(2**16))

            threads = [threading.Thread(target=each) for each in (echo, read)]
            for thread in threads:
                thread.start()
            near.sendall(sent)
            threads[1].join(PATIENCE_S)
            assert b"".join(got) == sent
            near.close()
            threads[0].join(PATIENCE_S)
            assert not threads[0].is_alive(), "the far end has seen the close"


def test_nobody_is_let_in_while_there_is_no_lead_and_the_address_stays(forwarder: Forwarder) -> None:
    assert refuses(forwarder.address)
    with socket.create_server(("127.0.0.1", 0)) as server:
        target = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        for _ in range(3):
            forwarder.follow(target)
            until(lambda: not refuses(forwarder.address))
            with socket.create_connection(place(forwarder.address), PATIENCE_S) as near:
                near.sendall(b"?")
                forwarder.follow("")
                with contextlib.suppress(ConnectionResetError):
                    assert near.recv(1) == b"", "connections are closed"
            until(lambda: refuses(forwarder.address))


def test_a_lead_that_refuses_closes_the_connection(forwarder: Forwarder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        gone = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    forwarder.follow(gone)
    until(lambda: not refuses(forwarder.address))
    with socket.create_connection(place(forwarder.address), PATIENCE_S) as near, contextlib.suppress(OSError):
        assert near.recv(1) == b""


V4, V6 = "tcp://127.0.0.1:0", "tcp://[::1]:0"  # with a star for the port the first would be an address of IPv6, too


@pytest.mark.parametrize(("before", "after"), [(V4, V4), (V4, V6), (V6, V4)], ids=["same", "to IPv6", "to IPv4"])
def test_workers_go_on_with_the_next_lead_at_the_same_address(before: str, after: str) -> None:
    secret = new_secret()
    keys = JobKeys.from_secret(secret)
    first = Router(keys, before)
    contacts = [LeaderContact(1, [first.address], secret)]

    def read() -> LeaderContact:
        reads.append(len(contacts))
        if not contacts:
            raise UsageError("the folder cannot be read")
        return contacts[-1]

    reads: list[int] = []
    with contextlib.closing(ControllerLookup(read, secret, 1, first.address, 60.0)) as way:
        way.follow(first.address)
        until(lambda: not refuses(way.address))
        with Dealer(way.address, b"7", keys, timeout_s=None) as dealer:
            dealer.send(Leave(1))
            until(lambda: hears(first) == [b"7"])
            first.close()
            way.follow("")
            until(lambda: refuses(way.address))
            contacts.clear()
            with Router(keys, after) as second:
                contacts.append(LeaderContact(1, [second.address], secret))
                until(lambda: reads[-2:] == [1, 1], "for two looks at a lead of the same epoch, which is none")
                assert way.found() == ""
                contacts.append(LeaderContact(2, [second.address], secret))
                found: list[str] = []

                def is_found() -> bool:
                    hears(second)
                    found.append(way.found())
                    return bool(found[-1])

                until(is_found)
                way.follow(found[-1])
                dealer.renew()
                dealer.send(Leave(2))
                until(lambda: b"7" in hears(second))


def hears(router: Router) -> list[bytes]:
    """Who has sent something."""
    router.wait(0.01)
    found = []
    while (got := router.recv()) is not None:
        found.append(got[0])
    return found


def test_a_lead_with_another_key_has_begun_anew() -> None:
    secret = new_secret()
    contact = LeaderContact(2, ["tcp://127.0.0.1:9"], new_secret())
    with contextlib.closing(ControllerLookup(lambda: contact, secret, 1, "tcp://127.0.0.1:9", 60.0)) as way:
        assert not way.over
        way.follow("")
        until(lambda: bool(way.over))
        assert "has started from the beginning" in way.over


@pytest.mark.parametrize(("before", "after"), [(V4, V6), (V6, V4)], ids=["to IPv6", "to IPv4"])
def test_an_agent_that_is_connected_goes_on_with_a_lead_of_another_address_family(before: str, after: str) -> None:
    keys = JobKeys.from_secret(new_secret())
    with (
        Router(keys, before) as first,
        Router(keys, after) as second,
        Dealer(first.address, b"7", keys, timeout_s=None) as dealer,
    ):
        dealer.send(Leave(1))
        until(lambda: hears(first) == [b"7"])
        dealer.renew(second.address)
        dealer.send(Leave(2))
        until(lambda: b"7" in hears(second))
