"""How long an agent waits for another controller when its own is gone."""

from __future__ import annotations

import select
import socket
import time

import pytest

from farandole.control.addresses import free_port, own_host_only
from farandole.control.agent_messages import AgentHello
from farandole.control.channel import Router
from farandole.control.keys import JobKeys, new_secret
from farandole.errors import ControlError
from farandole.runtime.relay.agent import AgentConfig, connected
from farandole.runtime.relay.agent_link import AgentLink
from tests.support.patience import PATIENCE_S

DEADLINE_S = PATIENCE_S
SILENCE_S = 0.2


def receive_until_it_raises(link: AgentLink) -> None:
    deadline = time.monotonic() + DEADLINE_S
    poll = select.poll()
    for fd in link.fds:
        poll.register(fd, select.POLLIN)
    while time.monotonic() < deadline:
        until_s = deadline if link.deadline_s is None else min(deadline, link.deadline_s)
        poll.poll(max(0.0, until_s - time.monotonic()) * 1000)
        assert list(link.receive()) == []
        link.beat()


def test_a_controller_whose_host_does_not_answer_is_not_awaited_for_long() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        link = AgentLink(f"tcp://127.0.0.1:{address[1]}", JobKeys.from_secret(new_secret()), "b", SILENCE_S)
        accepted, _ = listener.accept()
        with socket.create_connection(address):  # which fills the queue: nobody else is answered from now on
            accepted.close()
            with pytest.raises(ControlError, match="controller at"):
                receive_until_it_raises(link)
            link.renew(10 * DEADLINE_S, [], [])
            with pytest.raises(ControlError, match="no other controller replaced it in time"):
                receive_until_it_raises(link)
            assert not link.may_come_back
            link.close(deliver=False)


def test_ports_that_an_agent_reports_are_not_those_of_its_relay() -> None:
    """Ranks listen there later; of three ports in a range the relay has one, which is found at once or never."""
    secret = new_secret()
    with Router(JobKeys.from_secret(secret), own_host_only()) as router:
        for turn in range(10):
            first = free_port()
            config = AgentConfig([router.address], secret, f"b{turn}", relay=True, ports=f"{first}-{first + 2}")
            link = connected(config, router.address)
            deadline = time.monotonic() + DEADLINE_S
            while (got := router.recv()) is None and time.monotonic() < deadline:
                router.wait(0.1)
            assert got is not None
            hello = got[1]
            assert isinstance(hello, AgentHello)
            taken = {int(address.rpartition(":")[2]) for address in hello.relay}
            assert len(hello.ports) == 1
            assert taken.isdisjoint(hello.ports)
            link.close(deliver=False)
