"""Event loop of a running job: messages of agents and workers, and signals of the user.

The loop hosts the controller (``controller_host``). It starts agents, tells them to end, and notices that they are
lost, and ends the job on signals. Subclasses decide what the exit of a worker or the loss of a host means:
``static_loop`` and ``elastic_loop``.

One thread runs the loop. The pump threads of ``JobOutput`` write, and return their receipts through ``Receipts``.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import time
from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
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
from farandole.control.process import INTERRUPTS, PASSED_ON, exit_status, signal_name
from farandole.control.watch_messages import Printed, WatchOrder
from farandole.launch.agents.agents import END_S, print_now
from farandole.launch.agents.output import STDERR, Receipts
from farandole.launch.hosts.plan import Job
from farandole.launch.job.exit_wording import ExitWording
from farandole.runtime.controller.controller_host import ControllerHost
from farandole.runtime.coordination.after_fault import NOTICE_S
from farandole.runtime.coordination.rank_names import list_some

if TYPE_CHECKING:
    from farandole.runtime.controller.root import Root

GOODBYE_S = 2.0
"""Time for the last messages of an agent that exited with code 0 to arrive."""

NO_SIGNALS = -1
"""Value for the descriptor of signals in a process that handles none."""

GIVE_UP_S = 1.0
"""Time to write the rest of the output in a job that is killed."""


class AnyAgent(Protocol):
    """An agent, however it was started: as a child (``AgentProcess``), by a lease, or by a cluster."""

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
        """True if the loop need not wait for this agent."""

    @property
    def said(self) -> str:
        """Last line that the agent printed."""

    def attend(self) -> None:
        """Read its output and its exit status."""

    def explain(self) -> str:
        """The reason why the agent exited."""

    def give_up(self) -> None:
        """End it, as the job uses none of its hosts any more; its exit is ignored."""

    def print_text(self, text: bytes) -> bytes:
        """Make the agent print ``text`` between the lines of its workers; return the bytes that it did not accept."""


class AnyAgents(Protocol):
    """The agents of one job."""

    def __iter__(self) -> Iterator[AnyAgent]:
        """Yield all of them."""

    def of(self, host: str) -> AnyAgent:
        """The agent of ``host``."""


class JobResult(NamedTuple):
    """Result of a job: exit status, why the status is not 0, and the rank that failed first (-1 if a host was lost)."""

    status: int
    words: str
    cause: int = -1


def ended_by(number: int, cause: int = -1) -> JobResult:
    """Result of a job that the signal ``number`` ended."""
    return JobResult(128 + number, f"the job was ended by {signal_name(number)}", cause)


def _other_python(command: Sequence[str]) -> str:
    """The interpreter that ``command`` runs, if it is not this one, or not that of this environment; else "".

    A job in slots of a cluster has no command. A script named python, as pyenv has it, may run any interpreter.
    """
    program = next(iter(command), "")
    found = shutil.which(program) if re.fullmatch(r"python[\d.]*", os.path.basename(program)) else None
    if found is None or not sys.executable or _is_script(found):
        return ""
    return "" if _environment(found) == _environment(sys.executable) else found


def _is_script(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(2) == b"#!"
    except OSError:  # one that may be run, and not read
        return False


def _environment(python: str) -> tuple[str, str]:
    return os.path.realpath(os.path.dirname(python)), os.path.realpath(python)


class Loop(ControllerHost):
    """State of a running job. ``interrupts``: descriptor with a byte for each signal received, or ``NO_SIGNALS``."""

    TITLE = "rank"
    """Word for a worker in printed texts."""

    def __init__(self, job: Job, agents: AnyAgents, root: Root, interrupts: int) -> None:
        super().__init__(root)
        self._job, self._agents = job, agents
        # With an output folder, the lines of workers do not appear on this terminal.
        python = _other_python(job.command)
        self._wording = ExitWording(self.TITLE, not job.output_dir, job.settings.horovod, python)
        self._interrupts = interrupts
        self._watching = root.controller.watching
        self._watching.obey = self._obey_watcher
        if job.monitor is not None:
            self._watching.expect()
        self._open: set[str] = set()
        """Hosts whose agent has neither exited nor been lost."""
        self._coming: set[str] = set()
        """Hosts of ``_open`` whose agent has not connected yet."""
        self._abandoned: set[str] = set()
        """Lost hosts whose agent may serve hosts of ``_open``, too."""
        self._signals: list[int] = []
        """Signals received that end the job."""
        self._due: dict[str, float] = {}
        """Deadline for the ``Goodbye`` of an agent whose process has exited, by host."""
        self._give_up_at: float | None = None
        self._receipts: Receipts | None = None
        """Writer of the workers' output; ``None`` if they write to the terminal themselves."""
        self._writing: set[int] = set()
        self._orders: StopWorkers | None = None
        """Order to all agents after the end of the job was decided."""
        self._notice_at: float | None = None
        """Time at which the user is told for which workers the job still waits."""

    def run(self) -> JobResult:
        """Serve until all agents have exited and all output is written."""
        self.serve()
        return self._outcome()

    # -- decisions of subclasses --------------------------------------------------------------------------------------

    @abstractmethod
    def _on_worker_exited(self, event: WorkerExited) -> None:
        """Handle the exit of a worker; ``event`` has its host and a description."""

    @abstractmethod
    def _on_host_lost(self, host: str, reason: str, status: int = 1) -> None:
        """Handle the loss of a host and of its workers, by which a job may end with ``status``."""

    @property
    @abstractmethod
    def _living(self) -> Collection[int]:
        """Worker ids of all workers whose end is not known, whether they are started or not."""

    @abstractmethod
    def _runs_nothing(self, host: str) -> bool:
        """True if the agent of a host has no workers to end, so it needs no ``StopWorkers``."""

    @abstractmethod
    def _outcome(self) -> JobResult:
        """Result of a job that is over."""

    # -- descriptors and deadlines ------------------------------------------------------------------------------------

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
        """Next deadline of this kind of job: the time at which ``_on_turn`` has something to do."""

    @property
    def _fds(self) -> set[int]:
        own = {self._interrupts} if self._interrupts >= 0 else set()
        own |= {self._receipts.fd} if self._receipts is not None else set()
        return own | self._writing | {fd for agent in self._agents for fd in agent.fds}

    def _on_turn(self, now: float) -> None:
        # After the messages of this turn, which may be an agent's last. A list, because ``_lose`` changes ``_due``.
        for host in [host for host, due_s in self._due.items() if due_s <= now]:
            if host in self._due:
                self._on_end(host)
        if self._notice_at is not None and self._notice_at <= now:
            self._notice_at = None
            if self._open and self._orders is not None:
                self._print_text(
                    f"waiting for the workers on {list_some(sorted(self._open))} to end; those that have not are "
                    f"killed {self._orders.grace_s:g} s after SIGTERM (--grace-seconds)"
                )

    def _on_descriptors(self, ready: set[int]) -> None:
        if self._interrupts in ready:
            [number] = os.read(self._interrupts, 1)  # one: if this controller fails, the next one reads the others
            self._handle_signal(number)
        if self._receipts is not None and self._receipts.fd in ready:
            for host, receipt in self._receipts.collect():
                self._root.send_to_agent(host, receipt)
        self._writing -= ready
        for agent in [each for each in self._agents if not ready.isdisjoint(each.fds)]:
            agent.attend()
            self._note_end(agent)

    def _obey_watcher(self, order: WatchOrder) -> tuple[bool, str]:
        """Obey an order given in the live view; return whether it is accepted, and a text for the user."""
        if order.verb != "end":
            return False, "only elastic jobs change their size: farandole run --min-np 1 --max-np 4 ..."
        self._on_signal(signal.SIGTERM)
        return True, "the workers are told to end (SIGTERM)"

    def _handle_signal(self, number: int) -> None:
        """Handle a signal that the launcher received."""
        if number in INTERRUPTS:
            self._on_signal(number)
        elif number in PASSED_ON:
            self._pass_on(number, self._open)

    def _pass_on(self, number: int, hosts: Collection[str]) -> list[str]:
        """Send a signal to the workers of these hosts; return the hosts whose agents are not connected."""
        return [host for host in hosts if not self._root.send_to_agent(host, PassSignal(number))]

    def _note_end(self, agent: AnyAgent) -> None:
        """Set a deadline for the last messages of an agent that has exited; they may still be under way."""
        if agent.code is not None:
            # A failed agent sends no ``Goodbye``. The first deadline stays: later calls would postpone it.
            due_s = time.monotonic() + (0.0 if agent.code else GOODBYE_S)
            for host in self._open & set(agent.hosts):
                self._due.setdefault(host, due_s)

    # -- agents -------------------------------------------------------------------------------------------------------

    def _on_agent(self, host: str, message: object) -> None:
        if host not in self._open:
            return
        if isinstance(message, Started):
            self._on_started(host, message)
        elif isinstance(message, Output) and self._receipts is not None:
            self._receipts.queue_output(host, message)
            if self._watching.is_watched:
                self._watching.send_to_viewers(Printed(time.time(), message.stream, message.text))
        elif isinstance(message, Goodbye):
            self._on_goodbye(host)
        elif isinstance(message, AgentHello) and self._orders is not None:
            self._coming.discard(host)
            self._root.send_to_agent(host, self._orders)
        else:
            super()._on_agent(host, message)

    def _on_hello(self, host: str, hello: AgentHello) -> None:
        self._coming.discard(host)

    def _on_started(self, host: str, started: Started) -> None:
        self._controller.worker_started(started.worker_id, started.pid, host)
        if self._job.verbose:
            self._print_text(f"started rank {started.worker_id} on {host} as process {started.pid}")

    def _on_exit(self, host: str, exited: WorkerExited) -> None:
        self._on_worker_exited(self._wording.describe(exited, host))

    def _on_end(self, host: str) -> None:
        """Handle the early exit of an agent's process, or of the process that started the agent."""
        agent = self._agents.of(host)
        assert agent.code is not None
        self._lose(host, agent.explain(), 1 if self._receipts is not None else exit_status(agent.code) or 1)

    def _on_lost(self, host: str, reason: str) -> None:
        said = self._agents.of(host).said if host in self._coming else ""
        self._lose(host, f"{reason} ({said})" if said else reason)

    def _lose(self, host: str, reason: str, status: int = 1) -> None:
        if host not in self._open:
            return
        self._root.send_to_agent(host, StopWorkers(0.0))  # in case the agent reconnects
        self._abandon(host)
        self._on_host_lost(host, reason, status)

    def _on_signal(self, number: int) -> None:
        """Handle a signal that asks for the end of the job."""
        self._signals.append(number)
        self._obey_signals()

    def _obey_signals(self) -> None:
        """End the job: the first signal gives workers the grace time, another one kills them."""
        again, running = len(self._signals) > 1, len(self._living)
        words = f": ending {running} worker{'s' * (running != 1)} (again: kill at once)"
        self._print_text(signal_name(self._signals[-1]) + (" again: killing the workers" if again else words))
        if again:
            self._give_up_at = time.monotonic() + END_S
        self._stop(0.0 if again else self._job.settings.grace_s)

    def _stop(self, grace_s: float) -> None:
        """End the workers, and then the agents."""
        self._orders = StopWorkers(grace_s)
        self._notice_at = time.monotonic() + NOTICE_S if grace_s > NOTICE_S else None
        for host in tuple(self._open):
            if self._runs_nothing(host):
                self._abandon(host)
            else:
                self._root.send_to_agent(host, self._orders)

    def _on_goodbye(self, host: str) -> None:
        """Handle the ``Goodbye`` of an agent: it has ended all its workers and exits."""
        self._close(host)

    def _abandon(self, host: str) -> None:
        """Close a host that the job no longer uses."""
        self._abandoned.add(host)
        self._close(host)

    def _close(self, host: str) -> None:
        """Stop waiting for the agent of a host: it has exited, or is lost."""
        self._open.discard(host)
        self._coming.discard(host)
        self._due.pop(host, None)
        self._root.hosts.ended(host)
        agent = self._agents.of(host)
        # An agent whose hosts have all been closed in order exits by itself.
        if not self._open & set(agent.hosts) and self._abandoned & set(agent.hosts):
            self._abandoned -= set(agent.hosts)
            agent.give_up()

    def _finish(self) -> None:
        """Finish the output: no agent is left to send any."""
        if self._receipts is not None:
            self._receipts.output.finish()
            if self._give_up_at is not None:
                self._give_up_at = min(self._give_up_at, time.monotonic() + GIVE_UP_S)

    # -- output -------------------------------------------------------------------------------------------------------

    def _write_to(self, receipts: Receipts) -> None:
        """Write the workers' output that agents send to the streams of ``receipts``."""
        self._receipts, self._writing = receipts, set(receipts.output.ended)

    def _print_text(self, text: str) -> None:
        """Print between the lines of workers, so that no line is split."""
        line = printed(f"farandole: {text}\n")
        self._watching.said(text)
        if self._receipts is not None:
            self._receipts.output.queue_lines(STDERR, line)
            return
        agent = next(iter(self._agents))
        print_now(agent.print_text(line) if agent.code is None and not self._coming else line)
