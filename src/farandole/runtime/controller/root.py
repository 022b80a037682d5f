"""Root of the control plane: the socket, the controller behind it, and the agents of the hosts.

    root = Root(router, settings, expected=4)
    root.on_agent = lambda host, message: ...           # messages of agents
    root.on_lost = lambda host, reason: ...             # a host that is lost
    while not over:
        ready = root.turn(until_s=None)                 # sleeps; returns the watched descriptors that are readable

A launcher and a stand-alone controller each drive one ``Root``, and decide what the exit of a worker means. Everything
runs in the thread that calls ``turn``.

Tree of relays: the parent of each relay, by their order of appearance; without any I/O.

    >>> tree = Tree(radix=2)
    >>> [tree.add(host) for host in "abcdefg"]
    ['', '', 'a', 'a', 'b', 'b', 'c']

Only the order of appearance matters, so neither the number nor the names of the relays must be known beforehand, and
each relay gets its parent as soon as it connects.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

from farandole.control.agent_messages import (
    AGENT,
    AgentHello,
    Alive,
    DumpStack,
    RelayParentLost,
    Report,
    SetRelayParent,
    StopWorkers,
)
from farandole.control.messages import Hello, Submit
from farandole.control.run_messages import Progressed, RunOrder, RunQuestion
from farandole.control.watch_messages import WATCHER, Seen, WatchJob, WatchOrder
from farandole.runtime.controller.controller import Controller
from farandole.runtime.coordination.host_liveness import HostLiveness
from farandole.settings import Settings
from farandole.version import __version__

if TYPE_CHECKING:
    from farandole.control.channel import Router
    from farandole.control.message import Message
    from farandole.runtime.coordination.formation import Formation


@final
class Tree:
    """Heap of relays: the first ``radix`` are children of the controller, the next ones their children, and so on."""

    def __init__(self, radix: int) -> None:
        self._radix = radix
        self._position: dict[str, int] = {}
        self._hosts: list[str] = []

    def add(self, host: str) -> str:
        """Host of the parent of this host's relay; "" is the controller. Idempotent."""
        if host not in self._position:
            self._position[host] = len(self._hosts)
            self._hosts.append(host)
        parent = self._position[host] // self._radix - 1
        return self._hosts[parent] if parent >= 0 else ""


@final
class Root:
    """Root of one job; one thread. The caller closes the ``router``. ``formation``: only in an elastic job."""

    def __init__(self, router: Router, settings: Settings, expected: int, formation: Formation | None = None) -> None:
        self.router = router
        self.controller = Controller(router.send, settings, expected, time.monotonic, formation)
        self.controller.watchdog.request_stack = self._request_stack
        self.controller.refuse, self.controller.registry.is_connected = router.refuse, router.reaches
        self._is_elastic = formation is not None
        self.hosts = HostLiveness(settings.host_timeout_s)
        self._tree = Tree(settings.tree_radix)
        self._relays: dict[str, tuple[str, ...]] = {}
        self._names: dict[str, str] = {}
        self.on_agent: Callable[[str, Any], object] = lambda _host, _message: None
        """Called with messages of agents except ``Alive`` and ``RelayParentLost``, and with checked ``AgentHello``."""
        self.on_person: Callable[[bytes, Any], object] = lambda _identity, _message: None
        """Called with queries and orders of users, to be answered with ``router.send``, and with reports of scripts."""
        self.on_lost: Callable[[str, str], object] = lambda _host, _reason: None
        """Called for a lost host, with the reason; the caller reports the exits of its workers."""

    def turn(self, until_s: float | None) -> set[int]:
        """Sleep until a message, a deadline or ``until_s``; handle it. Returns the watched descriptors to read.

        Submissions of workers in a static job concern only the controller: ``turn`` does not return for them.
        """
        while True:
            ready = self.router.wait(self._patience_s(until_s))
            is_more = self._take_in()
            now = time.monotonic()  # after _take_in: heartbeats that arrived while this process was busy count
            for lost in self.hosts.lost(now):
                self.on_lost(lost.host, lost.reason)
                is_more = True
            deadline = self.controller.deadline()
            if deadline is not None and now >= deadline:
                self.controller.tick(now)
            if ready or is_more or self._is_elastic or (until_s is not None and now >= until_s):
                return ready

    def _take_in(self) -> bool:
        """Handle all messages that have arrived; True unless all of them were submissions."""
        later: list[tuple[str, Any]] = []  # exits of workers, after the workers' own messages
        count = submitted = 0
        while (got := self.router.recv()) is not None:
            identity, message = got
            count += 1
            if type(message) is Submit:
                submitted += 1
            host = self._host_of(identity)
            if host is not None and (isinstance(message, Report) or any(host == other for other, _ in later)):
                later.append((host, message))
            elif host is not None:
                self._on_agent(host, message)
            elif isinstance(message, RunQuestion | RunOrder | Progressed):
                self.on_person(identity, message)
            elif isinstance(message, WatchJob | Seen | WatchOrder) and identity.startswith(WATCHER):
                self.controller.watching.handle_viewer_message(identity, message)
            elif isinstance(message, AgentHello):  # its host has a newer agent
                self.router.send(identity, StopWorkers(0.0))
            else:
                self.controller.handle(identity, message)
        for host, message in later:
            self._on_agent(host, message)
        return not submitted or count > submitted

    def send_to_agent(self, host: str, message: Message) -> bool:
        """Send a message to the agent of ``host``; False if it is not connected."""
        return self.router.send(AGENT + self._names.get(host, host).encode(), message)

    def name(self, host: str, until_s: float) -> str:
        """New name for the next agent of ``host``, which must connect by ``until_s``; earlier agents are ignored."""
        times = int(self._names.get(host, "/0").rpartition("/")[2])
        self._names[host] = f"{host}/{times + 1}"
        self.hosts.readmit(host)
        self.hosts.expect(host, until_s)
        return self._names[host]

    def adopt(self, host: str, name: str, until_s: float | None) -> None:
        """Keep an agent of the previous controller, which must connect by ``until_s``, or (``None``) has exited."""
        self._names[host] = name
        if until_s is None:
            self.hosts.ended(host)
        else:
            self.hosts.expect(host, until_s)

    def _host_of(self, identity: bytes) -> str | None:
        """Host of the agent ``identity``; ``None`` for other peers, and for agents replaced by a newer one."""
        if not identity.startswith(AGENT):
            return None
        name = identity.removeprefix(AGENT).decode(errors="replace")
        host = name.partition("/")[0]
        return host if name == self._names.get(host, host) else None

    def _on_agent(self, host: str, message: Any) -> None:
        if isinstance(message, AgentHello) and message.version != __version__:
            reason = f"host {host} has Farandole {message.version} and this one has {__version__}"
            self.router.refuse("agents of another version", reason)
            self.hosts.ended(host)
            self.on_lost(host, f"{reason}: install the same version on both")
            return
        if not isinstance(message, Hello):  # a Hello is not from the agent
            self.hosts.heard(host, time.monotonic())
        if isinstance(message, AgentHello) and message.relay:
            self._relays[host] = message.relay
            parent = self._tree.add(host)
            self.send_to_agent(
                host, SetRelayParent(parent, self._relays[parent]) if self.hosts.is_up(parent) else SetRelayParent()
            )
        elif isinstance(message, RelayParentLost):
            self.controller.abort(message.reason)
            self.send_to_agent(host, SetRelayParent())  # so that the next generation can work
        if not isinstance(message, Alive | RelayParentLost):
            self.on_agent(host, message)

    def _patience_s(self, until_s: float | None) -> float | None:
        moments = [m for m in (until_s, self.controller.deadline(), self.hosts.deadline_s) if m is not None]
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def _request_stack(self, hello: Hello) -> None:
        self.send_to_agent(hello.host, DumpStack(hello.worker_id, hello.pid, hello.stack_signal, hello.stack_fd))
