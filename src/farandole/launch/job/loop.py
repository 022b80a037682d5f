"""The loop of a running job, between the agents, the controller and the signals of the user.

It hosts the controller (``controller_host``), and knows how agents are started, told to end, and missed. What the end
of a worker or a host means is for those to say who derive from it: ``static_loop`` and ``elastic_loop``.

One thread runs all of it. The pumps of ``JobOutput`` write, and hand over their receipts through ``Receipts``.
"""

from __future__ import annotations

import os
import signal
import time
from abc import abstractmethod
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

from farandole.control.agent_messages import (
    AgentHello,
    Goodbye,
    Output,
    PassSignal,
    Started,
    StopWorkers,
)
from farandole.control.exits import WorkerExited
from farandole.control.os_text import printed
from farandole.control.process import INTERRUPTS, PASSED_ON, exit_status
from farandole.control.watch_messages import Printed, WatchOrder
from farandole.launch.agents.agents import print_now
from farandole.launch.agents.output import STDERR, JobOutput, Receipts
from farandole.launch.hosts.plan import Job
from farandole.launch.job.exit_policy import Loss
from farandole.launch.job.exit_wording import ExitWording
from farandole.runtime.controller.controller_host import ControllerHost
from farandole.runtime.coordination.after_fault import NOTICE_S
from farandole.runtime.coordination.rank_names import list_some

if TYPE_CHECKING:
    from farandole.runtime.controller.root import Root

GOODBYE_S = 2.0
"""Time for the last messages of an agent that has ended well to arrive."""

NO_SIGNALS = -1
"""Stands for the descriptor of signals where this process hears none."""

GIVE_UP_S = 1.0
"""Time for a job that was told to end at once to write what is left of the output."""


class AnyAgent(Protocol):
    """An agent, however it was started: a child of ours (``AgentProcess``), or of the launcher, or by a cluster."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that it serves."""

    @property
    def code(self) -> int | None:
        """Its exit status, or minus the signal that killed it; ``None`` while it runs."""

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors to watch; when one of them is readable, call ``attend``."""

    @property
    def has_ended(self) -> bool:
        """True if nothing need be waited for."""

    @property
    def said(self) -> str:
        """The last line that it wrote."""

    def attend(self) -> None:
        """Take in what it has said, and whether it has ended."""

    def explain(self) -> str:
        """The reason why it has ended."""

    def tell(self, text: bytes) -> bytes:
        """Have it print ``text`` among the lines of its workers; returns what is left."""


class AnyAgents(Protocol):
    """The agents of one job."""

    def __iter__(self) -> Iterator[AnyAgent]:
        """Yield all of them."""

    def of(self, host: str) -> AnyAgent:
        """The agent of ``host``."""


class JobResult(NamedTuple):
    """Result of a job: its exit status, why it is not 0, and the rank that failed first, unless a host was lost."""

    status: int
    words: str
    cause: int = -1


class Loop(ControllerHost):
    """Everything that changes while a job runs. ``interrupts`` has a byte for each signal; or it is ``NO_SIGNALS``."""

    TITLE = "rank"
    """Title of a worker in texts."""

    def __init__(self, job: Job, agents: AnyAgents, root: Root, interrupts: int) -> None:
        super().__init__(root)
        self._job, self._agents = job, agents
        # With a folder for output, the lines of workers are not on this terminal.
        self._wording = ExitWording(self.TITLE, shown=not job.output_dir, horovod=job.settings.horovod)
        self._interrupts = interrupts
        self._watching = root.controller.watching
        self._watching.obey = self._obey_watcher
        if job.monitor is not None:
            self._watching.expect()
        self._open: set[str] = set()
        """Hosts whose agent has neither finished nor been lost."""
        self._coming: set[str] = set()
        """Hosts of ``_open`` whose agent has not answered yet."""
        self._pids: dict[int, int] = {}
        self._due: dict[str, float] = {}
        """Time at which the goodbye of an agent whose process has ended is given up, by host."""
        self._give_up_at: float | None = None
        self._output: JobOutput | None = None
        self._receipts: Receipts | None = None
        self._writing: set[int] = set()
        self._orders: StopWorkers | None = None
        self._notice_at: float | None = None
        """Time at which people are told that ends are waited for."""
        """Orders to all agents once the job is to end."""

    def run(self) -> JobResult:
        """Serve until all agents have ended, and all output is written."""
        self.serve()
        return self._outcome()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        # A pump that goes on writing would ring the bell of the receipts: then it stays open.
        if self._output is not None and self._receipts is not None and self._output.close(GIVE_UP_S):
            self._receipts.close()

    # -- what a kind of job decides -----------------------------------------------------------------------------------

    @abstractmethod
    def _on_worker_exited(self, event: WorkerExited) -> None:
        """Take in the end of a worker, with its host and in words."""

    @abstractmethod
    def _on_host_lost(self, host: str, loss: Loss) -> None:
        """Take in that a host is lost, with all that ran there; its agent is abandoned already."""

    @abstractmethod
    def _abandon(self, host: str) -> None:
        """End, or never start, what is to be the agent of a host: nothing there counts any more."""

    @abstractmethod
    def _runs_nothing(self, host: str) -> bool:
        """True if an agent has no workers to end, so that it need not be told so."""

    @abstractmethod
    def _on_signal(self, number: int) -> None:
        """Take in a signal by which the user wants an end."""

    @abstractmethod
    def _outcome(self) -> JobResult:
        """Result of the job, when it is over."""

    # -- what the loop waits for --------------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        if self._give_up_at is not None and time.monotonic() >= self._give_up_at:
            return True
        return not self._open and not self._writing and all(each.has_ended for each in self._agents)

    def _until_s(self) -> float | None:
        moments = [*self._due.values(), self._give_up_at, self._deadline_s, self._notice_at]
        return min((moment for moment in moments if moment is not None), default=None)

    @property
    @abstractmethod
    def _deadline_s(self) -> float | None:
        """Time at which ``_on_turn`` of this kind of job has something to do."""

    @property
    def _fds(self) -> set[int]:
        own = {self._interrupts} if self._interrupts >= 0 else set()
        own |= {self._receipts.fd} if self._receipts is not None else set()
        return own | self._writing | {fd for agent in self._agents for fd in agent.fds}

    def _on_turn(self, now: float) -> None:
        # After the messages of this turn, which may be an agent's last; in a list, as ``_lose`` changes the rest.
        for host in [host for host, due_s in self._due.items() if due_s <= now]:
            self._on_end(host)
        if self._notice_at is not None and self._notice_at <= now:
            self._notice_at = None
            if self._open and self._orders is not None:
                self._say(
                    f"waiting for the workers on {list_some(sorted(self._open))} to end; those that have not are "
                    f"killed {self._orders.grace_s:g} s after SIGTERM (--grace-seconds)"
                )

    def _on_descriptors(self, ready: set[int]) -> None:
        if self._interrupts in ready:
            for number in os.read(self._interrupts, 4096):
                self._hear(number)
        if self._receipts is not None and self._receipts.fd in ready:
            for host, receipt in self._receipts.collect():
                self._root.tell(host, receipt)
        self._writing -= ready
        for agent in [each for each in self._agents if not ready.isdisjoint(each.fds)]:
            agent.attend()
            self._note_end(agent)

    def _obey_watcher(self, order: WatchOrder) -> tuple[bool, str]:
        """Obey an order of somebody who watches, at once; tells whether it is taken, and what becomes of it."""
        if order.verb != "end":
            return False, "only elastic jobs change their size: farandole run --min-np 1 --max-np 4 ..."
        self._on_signal(signal.SIGTERM)
        return True, "the workers are told to end (SIGTERM)"

    def _hear(self, number: int) -> None:
        """Take in a signal to the launcher."""
        if number in INTERRUPTS:
            self._on_signal(number)
        elif number in PASSED_ON:
            self._pass_on(number, self._open)

    def _pass_on(self, number: int, hosts: Collection[str]) -> list[str]:
        """Have the workers of these hosts get a signal; returns the hosts whose agents are not connected."""
        return [host for host in hosts if not self._root.tell(host, PassSignal(number))]

    def _note_end(self, agent: AnyAgent) -> None:
        """Give an agent that has ended some time for its last messages, which may be on their way."""
        if agent.code is not None:
            # One that failed says no goodbye. The first limit counts: each later look would put it off.
            due_s = time.monotonic() + (0.0 if agent.code else GOODBYE_S)
            for host in self._open & set(agent.hosts):
                self._due.setdefault(host, due_s)

    # -- agents -------------------------------------------------------------------------------------------------------

    def _on_agent(self, host: str, message: object) -> None:
        if host not in self._open:
            return
        if isinstance(message, Started):
            self._pids[message.worker_id] = message.pid
            self._controller.worker_started(message.worker_id, message.pid, host)
            if self._job.verbose:
                self._say(f"started rank {message.worker_id} on {host} as process {message.pid}")
        elif isinstance(message, Output) and self._receipts is not None:
            self._receipts.take(host, message)
            if self._watching.is_watched:
                self._watching.tell(Printed(time.time(), message.stream, message.text))
        elif isinstance(message, Goodbye):
            self._on_goodbye(host)
        elif isinstance(message, AgentHello) and self._orders is not None:
            self._coming.discard(host)
            self._root.tell(host, self._orders)
        else:
            super()._on_agent(host, message)

    def _on_hello(self, host: str, hello: AgentHello) -> None:
        self._coming.discard(host)

    def _on_exit(self, host: str, exited: WorkerExited) -> None:
        self._on_worker_exited(self._wording.describe(exited, host))

    def _on_end(self, host: str) -> None:
        """Take in that the process of an agent, or the one that had started it, has ended before its time."""
        agent = self._agents.of(host)
        assert agent.code is not None
        self._lose(host, Loss(agent.explain(), 1 if self._output is not None else exit_status(agent.code) or 1))

    def _on_lost(self, host: str, reason: str) -> None:
        said = self._agents.of(host).said if host in self._coming else ""
        self._lose(host, Loss(f"{reason} ({said})" if said else reason))

    def _lose(self, host: str, loss: Loss) -> None:
        if host not in self._open:
            return
        self._root.tell(host, StopWorkers(0.0))  # should it come back
        self._abandon(host)
        self._close(host)
        self._on_host_lost(host, loss)

    def _stop(self, grace_s: float) -> None:
        """End what runs, and then the agents."""
        self._orders = StopWorkers(grace_s)
        self._notice_at = time.monotonic() + NOTICE_S if grace_s > NOTICE_S else None
        for host in tuple(self._open):
            if self._runs_nothing(host):
                self._abandon(host)
                self._close(host)
            else:
                self._root.tell(host, self._orders)

    def _on_goodbye(self, host: str) -> None:
        """Take in that the agent of a host has ended all workers, and ends."""
        self._close(host)

    def _close(self, host: str) -> None:
        """Wait no more for the agent of a host: it has finished, or is lost."""
        self._open.discard(host)
        self._coming.discard(host)
        self._due.pop(host, None)
        self._root.hosts.ended(host)

    def _finish(self) -> None:
        """Let the output end: nobody is left who could write anything."""
        if self._output is not None:
            self._output.finish()
            if self._give_up_at is not None:
                self._give_up_at = min(self._give_up_at, time.monotonic() + GIVE_UP_S)

    # -- output -------------------------------------------------------------------------------------------------------

    def _open_output(self) -> None:
        """Begin to write what agents send us of their workers' output."""
        self._output = JobOutput.own()
        self._receipts = Receipts(self._output)
        self._writing = set(self._output.ended)
        self._output.start()

    def _say(self, text: str) -> None:
        """Print between the lines of workers, so that none is torn."""
        line = printed(f"farandole: {text}\n")
        self._watching.said(text)
        if self._output is not None:
            self._output.say(STDERR, line)
            return
        agent = self._agents.of(self._job.hosts[0])
        print_now(agent.tell(line) if agent.code is None and not self._coming else line)
