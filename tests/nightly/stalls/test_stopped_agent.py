"""A host whose agent is stopped and goes on, as its controller sees it: real processes, and a real clock."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import final

from farandole.control.channel import Router
from farandole.control.keys import JobKeys, new_secret
from farandole.runtime.controller.root import Root
from farandole.settings import Settings
from tests.support.patience import PATIENCE_S

DEADLINE_S = PATIENCE_S
SILENCE_S = 3.0
"""As long as a busy machine needs; heartbeats come four times as often."""

AGENT = """
import select, sys, time
from farandole.control.keys import JobKeys
from farandole.errors import ControlError
from farandole.runtime.relay.agent_link import AgentLink

address, secret, name, silence_s = sys.argv[1:]
link = AgentLink(address, JobKeys.from_secret(secret), "b", float(silence_s), name=name)
while True:
    poll = select.poll()
    for fd in link.fds:
        poll.register(fd, select.POLLIN)
    poll.poll(max(0.0, link.deadline_s - time.monotonic()) * 1000)
    try:
        for message in link.receive():
            print(type(message).__name__, flush=True)
        link.beat()
    except ControlError:
        link.renew(60.0, [], [])
"""


@final
class Controller:
    """A root, and what it is told of its hosts."""

    def __init__(self, secret: str, held: contextlib.ExitStack) -> None:
        router = held.enter_context(Router(JobKeys.from_secret(secret)))
        self._secret, self._held = secret, held
        self.address, self.lost = router.address, list[tuple[str, str]]()
        self.root = Root(router, Settings(host_timeout_s=SILENCE_S), 1)
        self.root.on_lost = lambda host, reason: self.lost.append((host, reason))

    def agent(self, name: str) -> subprocess.Popen[str]:
        """Start an agent of host b, in a process, that calls itself ``name``."""
        command = [sys.executable, "-c", AGENT, self.address, self._secret, name, str(SILENCE_S)]
        started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._held.enter_context(started)
        self._held.callback(started.kill)
        return started

    def until(self, condition: Callable[[], bool]) -> None:
        """Serve until ``condition`` holds."""
        until_s = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < until_s, self.lost
            self.root.turn(time.monotonic() + 0.05)

    def received(self) -> int:
        """Number of messages until now."""
        return self.root.router.statistics()["received"]


@contextlib.contextmanager
def controller() -> Iterator[Controller]:
    with contextlib.ExitStack() as held:
        yield Controller(new_secret(), held)


def test_a_stopped_agent_is_lost_and_what_it_says_when_it_goes_on_counts_for_nothing() -> None:
    with controller() as here:
        root, hosts = here.root, here.root.hosts
        hosts.expect("b", time.monotonic() + DEADLINE_S)
        agent = here.agent("b")
        here.until(lambda: hosts.is_up("b"))
        heard, since_s = here.received(), time.monotonic()
        here.until(lambda: here.received() > heard + 5)  # heartbeats for more than the silence that is allowed
        assert hosts.is_up("b")
        assert time.monotonic() - since_s > SILENCE_S
        agent.send_signal(signal.SIGSTOP)
        here.until(lambda: bool(here.lost))
        [(host, reason)] = here.lost
        assert host == "b"
        assert reason.startswith(f"host b has sent nothing for {SILENCE_S:g} s: it is down, frozen, or cut off")
        assert not hosts.is_up("b")
        heard = here.received()
        agent.send_signal(signal.SIGCONT)
        here.until(lambda: here.received() > heard + 2)
        assert not hosts.is_up("b")
        assert hosts.deadline_s is None
        assert root.name("b", time.monotonic() + DEADLINE_S) == "b/1"
        here.until(lambda: here.received() > heard + 4)  # the first one still speaks
        assert not hosts.is_up("b")
        here.agent("b/1")
        here.until(lambda: hosts.is_up("b"))
        assert len(here.lost) == 1
