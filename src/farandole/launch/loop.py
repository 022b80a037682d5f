"""The loop of a running job, between the agents, the controller and the signals of the user.

It sleeps until a message, a signal or the end of a child. Messages of workers go straight to the ``Controller``; what
an end means is decided by ``policy``. Nothing is decided here.

In a job on several hosts no worker is started before every agent has answered: where a host cannot take part, nothing
has begun anywhere.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, final

from farandole.control.agent_messages import (
    AgentHello,
    Exited,
    Goodbye,
    Output,
    Stack,
    Started,
    StartWorkers,
    StopWorkers,
)
from farandole.control.process import exit_status
from farandole.launch.agents import END_S, AgentProcess, Agents, print_now
from farandole.launch.plan import Job
from farandole.launch.policy import INTERRUPTS, Action, Decision, End, Loss, Policy
from farandole.launch.screens import STDERR, Receipts, Screens

if TYPE_CHECKING:
    from farandole.runtime.root import Root

GOODBYE_S = 2.0
"""How long the last messages of an agent that has ended well may take to arrive."""

GIVE_UP_S = 1.0
"""How long a job that was told to end at once tries to write what is left of the output."""


class Outcome(NamedTuple):
    """How a job ended: its exit status, and why it is not 0."""

    status: int
    words: str


@final
class Loop:
    """Everything that changes while a job runs. ``interrupts`` is a descriptor with a byte for each signal, or -1."""

    def __init__(self, job: Job, agents: Agents, root: Root, interrupts: int) -> None:
        self._job, self._agents, self._root, self._controller = job, agents, root, root.controller
        self._policy = Policy(job.size, job.settings.on_failure)
        self._interrupts = interrupts
        self._open = set(job.hosts)
        """Hosts whose agent has neither finished nor been lost."""
        self._coming = set(job.hosts)
        """Those of them whose agent has not answered yet."""
        self._lost: set[str] = set()
        self._starts: Mapping[str, StartWorkers] = {}
        """What is still to be started."""
        self._orders: StopWorkers | None = None
        self._pids: dict[int, int] = {}
        self._due: dict[str, float] = {}
        """When the goodbye of an agent whose process has ended is given up."""
        self._await_until: float | None = None
        """When the ends of ranks that had left the job, and may be the cause of a failure, are not awaited any more."""
        self._give_up_at: float | None = None
        self._screens: Screens | None = None
        self._receipts: Receipts | None = None
        self._writing: set[int] = set()
        self._watched: dict[int, AgentProcess | None] = {}
        root.on_agent, root.on_lost = self._on_agent, self._on_lost
        root.controller.report = self._say

    def start_later(self, starts: Mapping[str, StartWorkers]) -> None:
        """The agents on these hosts are to answer first, and to send us what workers write."""
        self._starts = starts
        until_s = time.monotonic() + self._job.settings.start_timeout_s
        for host in starts:
            self._root.hosts.expect(host, until_s)
        self._screens = Screens.own()
        self._receipts = Receipts(self._screens)
        self._writing = set(self._screens.ended)
        self._screens.start()

    def run(self) -> Outcome:
        """Serve until all agents have ended, and all output is written."""
        while not self._is_over():
            self._watch()
            self._on_descriptors(self._root.turn(self._until_s()))
            now = time.monotonic()
            for host in [host for host, due_s in self._due.items() if due_s <= now]:
                self._on_end(host)
            if self._await_until is not None and now >= self._await_until:
                self._act(self._policy.overdue())
        return Outcome(self._policy.status, self._policy.last_words())

    def __enter__(self) -> Loop:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._watched:
            self._root.router.unwatch(fd)
        if self._screens is not None and self._receipts is not None and self._screens.close(GIVE_UP_S):
            self._receipts.close()

    # -- what the loop waits for --------------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        if self._give_up_at is not None and time.monotonic() >= self._give_up_at:
            return True
        return not self._open and not self._writing and all(each.has_ended for each in self._agents)

    def _until_s(self) -> float | None:
        moments = [*self._due.values(), self._give_up_at, self._await_until]
        return min((moment for moment in moments if moment is not None), default=None)

    def _watch(self) -> None:
        wanted: dict[int, AgentProcess | None] = {fd: agent for agent in self._agents for fd in agent.fds}
        wanted |= dict.fromkeys(self._writing)
        if self._receipts is not None:
            wanted[self._receipts.fd] = None
        if self._interrupts >= 0:
            wanted[self._interrupts] = None
        for fd in self._watched.keys() - wanted.keys():
            self._root.router.unwatch(fd)
        for fd in wanted.keys() - self._watched.keys():
            self._root.router.watch(fd)
        self._watched = wanted

    def _on_descriptors(self, ready: set[int]) -> None:
        if self._interrupts in ready:
            for number in os.read(self._interrupts, 4096):
                if number in INTERRUPTS:
                    decision = self._policy.interrupted(number)
                    self._say(decision.reason)
                    self._act(decision)
        if self._receipts is not None and self._receipts.fd in ready:
            for host, receipt in self._receipts.collect():
                self._root.tell(host, receipt)
        self._writing -= ready
        for agent in {id(each): each for fd in ready if (each := self._watched.get(fd)) is not None}.values():
            agent.attend()
            if agent.code is not None:
                due_s = time.monotonic() + (0.0 if agent.code else GOODBYE_S)
                for host in self._open & set(agent.hosts):
                    self._due.setdefault(host, due_s)

    # -- agents -------------------------------------------------------------------------------------------------------

    def _on_agent(self, host: str, message: object) -> None:
        if host not in self._open:
            return
        if isinstance(message, Exited):
            end = End(message.place, host, message.code, message.tail, message.error)
            self._controller.worker_exited(message.place, message.pid, message.code, str(end))
            self._act(self._policy.exited(end, self._controller.left()))
        elif isinstance(message, Stack):
            self._controller.stack_arrived(message.place, message.text)
        elif isinstance(message, Started):
            self._pids[message.place] = message.pid
            self._controller.worker_started(message.place, message.pid, host)
            if self._job.verbose:
                self._say(f"started rank {message.place} on {host} as process {message.pid}")
        elif isinstance(message, Output) and self._receipts is not None:
            self._receipts.take(host, message)
        elif isinstance(message, AgentHello):
            self._on_hello(host)
        elif isinstance(message, Goodbye):
            self._close(host)

    def _on_hello(self, host: str) -> None:
        self._coming.discard(host)
        if self._orders is not None:
            self._root.tell(host, self._orders)
        elif not self._coming:
            for each, start in self._starts.items():
                self._root.tell(each, start)
            self._starts = {}

    def _on_end(self, host: str) -> None:
        """The process of an agent, or the one that had started it, has ended before its time."""
        agent = self._agents.of(host)
        assert agent.code is not None
        self._lose(host, Loss(agent.explain(), 1 if self._screens is not None else exit_status(agent.code) or 1))

    def _on_lost(self, host: str, reason: str) -> None:
        """A host is silent, has never answered, or has another version."""
        said = self._agents.of(host).said if host in self._coming else ""
        self._lose(host, Loss(f"{reason} ({said})" if said else reason))

    def _lose(self, host: str, loss: Loss) -> None:
        if host not in self._open:
            return
        self._root.tell(host, StopWorkers(0.0))  # should it come back
        self._lost.add(host)
        self._close(host)
        places = [place for place, name in enumerate(self._job.hosts) if name == host]
        running = set(self._policy.running())
        decision = self._policy.host_lost(places, loss)
        for place in running & set(places):
            self._controller.worker_exited(place, self._pids.get(place, -1), -signal.SIGKILL, loss.reason)
        self._act(decision)

    def _close(self, host: str) -> None:
        """Its agent has finished, or is not waited for any more."""
        self._open.discard(host)
        self._coming.discard(host)
        self._due.pop(host, None)
        self._root.hosts.ended(host)
        agent = self._agents.of(host)
        if not self._open & set(agent.hosts) and self._lost & set(agent.hosts):
            agent.kill()
        if not self._open and self._screens is not None:
            self._screens.finish()
            if self._give_up_at is not None:
                self._give_up_at = min(self._give_up_at, time.monotonic() + GIVE_UP_S)

    # -- orders -------------------------------------------------------------------------------------------------------

    def _act(self, decision: Decision) -> None:
        if decision.action is Action.GO_ON:
            return
        if decision.action is Action.AWAIT:
            self._await_until = self._await_until or time.monotonic() + self._job.settings.grace_s
            return
        self._await_until = None
        kill = decision.action is Action.KILL
        self._orders = StopWorkers(0.0 if kill else self._job.settings.grace_s)
        if kill:
            self._give_up_at = time.monotonic() + END_S
        for host in tuple(self._open):
            if host not in self._coming:
                self._root.tell(host, self._orders)
            elif kill or self._starts:  # it has nothing to end
                self._lost.add(host)
                self._close(host)

    def _say(self, text: str) -> None:
        """Print between the lines of workers, so that none is torn."""
        line = f"farandole: {text}\n".encode()
        if self._screens is not None:
            self._screens.say(STDERR, line)
            return
        agent = self._agents.of(self._job.hosts[0])
        print_now(agent.tell(line) if agent.code is None and not self._coming else line)
