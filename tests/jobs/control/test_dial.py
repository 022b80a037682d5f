"""Of many addresses, the first that answers with the right key."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from farandole.control.addresses import EVERYWHERE
from farandole.control.channel import Dealer, Router
from farandole.control.dial import first_answering
from farandole.control.keys import JobKeys, new_secret
from farandole.control.messages import Leave
from farandole.errors import ControlError
from tests.support.patience import PATIENCE_S

DEADLINE_S = PATIENCE_S
KEYS = JobKeys.from_secret(new_secret())


@contextlib.contextmanager
def listening(keys: JobKeys = KEYS, address: str = EVERYWHERE) -> Iterator[Router]:
    """A router that answers, in a thread."""
    with Router(keys, address) as router, socket.socket() as waker, socket.socket() as stop:
        waker.bind(("127.0.0.1", 0))
        waker.listen()
        router.watch(waker.fileno())

        def serve() -> None:
            while waker.fileno() not in router.wait():
                while (got := router.recv()) is not None:
                    router.send(*got)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield router
        finally:
            stop.connect(waker.getsockname())
            thread.join(DEADLINE_S)
            router.unwatch(waker.fileno())


@contextlib.contextmanager
def silent() -> Iterator[str]:
    """A port where somebody listens and never answers."""
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        yield f"tcp://127.0.0.1:{mute.getsockname()[1]}"


def port(router: Router) -> int:
    return int(router.address.rpartition(":")[2])


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_one_socket_listens_to_both_families(host: str) -> None:
    with listening() as router:
        address = first_answering([f"tcp://{host}:{port(router)}"], KEYS, DEADLINE_S)
        assert address == f"tcp://{host}:{port(router)}"
        with Dealer(address, b"w", KEYS, DEADLINE_S) as dealer:
            dealer.send(Leave(3))
            assert dealer.recv(DEADLINE_S) == Leave(3)


def test_addresses_that_lead_nowhere_or_elsewhere_cost_nothing() -> None:
    with listening() as router, listening(JobKeys.from_secret(new_secret())) as other, silent() as mute:
        tried = [mute, f"tcp://127.0.0.1:{port(other)}", "tcp://192.0.2.222:9", "tcp://127.0.0.1:1"]
        assert (
            first_answering([*tried, f"tcp://[::1]:{port(router)}"], KEYS, DEADLINE_S) == f"tcp://[::1]:{port(router)}"
        )


def test_the_controller_takes_nobody_for_a_stranger(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "farandole.control"), listening() as router:
        both = [f"tcp://127.0.0.1:{port(router)}", f"tcp://[::1]:{port(router)}"]
        for _ in range(20):
            assert first_answering(both, KEYS, DEADLINE_S) in both
    assert not caplog.records
    assert "connections without this job's key" not in router.statistics()


def test_a_name_stands_for_its_addresses() -> None:
    with listening() as router:
        found = first_answering(["tcp://no.such.host.invalid:7", f"tcp://localhost:{port(router)}"], KEYS, DEADLINE_S)
        assert found in (f"tcp://127.0.0.1:{port(router)}", f"tcp://[::1]:{port(router)}")


def test_what_was_tried_is_named() -> None:
    with silent() as mute, pytest.raises(ControlError, match=rf"within 0\.2 s: {mute}, tcp://127\.0\.0\.1:1"):
        first_answering([mute, "tcp://127.0.0.1:1"], KEYS, 0.2)


def test_the_end_of_a_lifeline_calls_it_off() -> None:
    reader, writer = os.pipe()
    os.close(writer)
    with silent() as mute, pytest.raises(ControlError, match=f"called off .*{mute}"):
        first_answering([mute], KEYS, 1000.0, lifeline=reader)
    os.close(reader)


def test_another_jobs_controller_is_named() -> None:
    with listening(JobKeys.from_secret(new_secret())) as other, silent() as mute:
        theirs = f"tcp://127.0.0.1:{port(other)}"
        with pytest.raises(ControlError, match=f"{theirs} answered, but is not of this job"):
            first_answering([mute, theirs], KEYS, 5.0)


@pytest.mark.parametrize("address", ["", "tcp://", "tcp://a", "tcp://a:b"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ControlError, match="no address of a controller"):
        first_answering([address], KEYS, 1.0)
