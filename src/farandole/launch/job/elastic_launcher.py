"""The launcher of an elastic job.

    result = ElasticLauncher(ElasticJob(job, Watched("hosts.txt", 1), Ssh(), here="node1")).run()

The launcher decides nothing. It owns what the job cannot lose: the children that start agents, the signals of the user,
and the controller, also a child, which it replaces when it dies (``elastic_controller``). Two controllers never run at
once: a hung controller is killed, and the next one starts, at the same address, only after the kernel has reported the
exit. When the launcher dies, the job ends.

The launcher has one thread, and may have no other: a fork copies only the calling thread, so a lock held by another
thread would never be released in the controller. The launcher never waits for a running controller, because it may
hang: messages to it are queued (``LauncherPipe``), and its exit is a descriptor like the others. Only ``_bury`` reaps
it, so that its pid stays its own until then. The launcher keeps what the next controller cannot ask the previous one:
the names of agents, the signals that end the job, the decided result.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from typing import final

import msgspec

from farandole.control import process
from farandole.control.addresses import everywhere, own_endpoints, own_host_only
from farandole.control.keys import new_secret
from farandole.control.os_text import printed
from farandole.errors import UsageError
from farandole.launch.agents.agent_config import LaunchedAgentConfig
from farandole.launch.agents.agents import AgentProcess, Agents, print_now
from farandole.launch.hosts.elastic_job import ElasticJob
from farandole.launch.hosts.leader_log import SupersededError
from farandole.launch.job.elastic_controller import ElasticController, Handover
from farandole.launch.job.launcher_pipe import (
    AbandonHost,
    AgentEnded,
    AgentSaid,
    Decided,
    Finished,
    LauncherPipe,
    LentHostGone,
    Listening,
    Ping,
    Signal,
    StartAgent,
)
from farandole.launch.job.leadership import Leadership
from farandole.launch.job.loop import JobResult
from farandole.launch.job.monitor_process import MonitorProcess, begin_monitor
from farandole.launch.leases.ending import arrays_of, cancelled
from farandole.launch.leases.slurm import SlurmScheduler
from farandole.launch.sbatch.options import TOLD_TO_END
from farandole.runtime.session.init_arguments import configure_logging
from farandole.settings import Settings

MOST_DEATHS = 5
"""Deaths of controllers within ``WITHIN_S`` that end the job: the same cause would kill the next controller, too."""

WITHIN_S = 60.0

FOLLOW_S = 60.0
"""Longest time between two readings of the journal."""

PINGS = 4
"""Number of ``Ping`` messages to a controller within the time after which it counts as hung."""


@final
class ElasticLauncher:
    """Runs one job to its end; it must own its process."""

    def __init__(self, elastic: ElasticJob) -> None:
        settings = elastic.job.settings
        if not elastic.reaches_out:  # no heartbeats on the controller's own host
            settings = msgspec.structs.replace(settings, host_timeout_s=0.0)
        self._elastic, self._settings = elastic, settings
        self._terms = Leadership.of(elastic.folder, settings) if elastic.folder is not None else None

    def run(self) -> JobResult:
        """Serve until the job is over, and clean up."""
        settings = self._settings
        if self._terms is not None:
            self._terms.folder.refuse_second()
            self._terms = self._terms.lead(self._elastic.job.command, settings.host_timeout_s)
        with contextlib.ExitStack() as held:
            spared = held.enter_context(process.no_descendants_left())
            interrupts = held.enter_context(process.signals_as_bytes((*process.INTERRUPTS, *process.PASSED_ON)))
            configure_logging(settings.log_level)
            monitor = begin_monitor(self._elastic.job.monitor, held, spared)
            journal, copy = os.memfd_create("journal"), _opened(settings.elastic_journal)
            agents = held.enter_context(Agents([], settings, captured=True, death_signal=signal.SIGTERM))
            supervisor = _ControllerSupervisor(self._elastic, settings, agents, interrupts, journal, copy, self._terms)
            supervisor.monitor = monitor
            result = supervisor.run()
            if monitor is not None:
                monitor.result = result.status, result.words
            return result


def _opened(path: str) -> int:
    """Descriptor of the file ``--elastic-journal``; -1 without that option."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666) if path else -1
    except OSError as error:
        raise UsageError(f"--elastic-journal {path}: {error.strerror}") from error


@final
class _ControllerSupervisor:
    """The launcher while its job runs: the agents, the signals, and one controller after another."""

    def __init__(
        self,
        elastic: ElasticJob,
        settings: Settings,
        agents: Agents,
        interrupts: int,
        journal: int,
        copy: int,
        terms: Leadership | None,
    ) -> None:
        self._elastic, self._settings, self._agents, self._interrupts = elastic, settings, agents, interrupts
        self.monitor: MonitorProcess | None = None
        self._terms = terms
        self._secret = terms.term.secret if terms is not None else new_secret()
        self._controller = ElasticController(elastic, settings, self._secret, journal, copy, terms)
        self._journals = journal, copy
        self._listen = everywhere(settings.ports) if elastic.reaches_out else own_host_only()
        self._addresses: list[str] = []
        """Addresses of the controller for agents on other hosts."""
        self._named: dict[str, AgentProcess] = {}
        self._names: dict[str, str] = {}
        self._said: dict[str, str] = {}
        self._signals: list[int] = []
        self._unpassed: list[int] = []
        """Signals for workers that no controller has passed on yet."""
        self._gone: list[str] = []
        """Leased hosts whose agents have exited or were given up: they are never admitted again."""
        self._deaths: list[float] = []
        self._decided: JobResult | None = None
        self._outcome: JobResult | None = None
        self._begin()

    def run(self) -> JobResult:
        """Serve until the job is over."""
        while self._outcome is None:
            ready = self._wait()
            if self._interrupts in ready:
                self._on_signals()
            for name, agent in list(self._named.items()):
                if not ready.isdisjoint(agent.fds):
                    self._attend(name, agent)
            self._line.flush()
            for message in self._line.receive():
                self._on_controller(message)
            self._controller.follow()
            if self._outcome is None:
                self._look_after()
        self._bury()
        if self._terms is not None:
            self._end_run(self._terms, self._outcome.status)
        return self._outcome

    # -- the controller -----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Fork the next controller, with the state that the previous one left."""
        ours, theirs = LauncherPipe.pair()
        live = [name for name, agent in self._named.items() if agent.code is None and agent.hosts]
        legacy = Handover(self._names, tuple(live), self._decided, tuple(self._gone))

        def serve() -> None:
            ours.close()  # an open copy in this process would hide the launcher's death
            self._controller.run(theirs, self._listen, legacy)

        for number in (*self._signals, *self._unpassed):
            ours.send(Signal(number))  # the first messages that the controller receives
        # ``ours`` as well: ``serve`` closes it as an object, so ``process.fork`` must not close it before.
        kept = (ours.fd, theirs.fd, *self._journals)
        self._pid = process.fork(serve, kept, signal.SIGKILL)
        theirs.close()  # now only the controller holds it: its death closes the pipe
        self._line, self._ending = ours, os.pidfd_open(self._pid)
        self._asked_s: float | None = None
        self._ask_s = time.monotonic()

    def _on_controller(self, message: object) -> None:
        self._asked_s = None  # the loop of the controller runs
        if isinstance(message, Listening):
            self._listen = message.address
            if self._elastic.reaches_out:
                self._addresses = own_endpoints(message.address, self._settings.network_interface)
            if self.monitor is not None:
                self.monitor.contact(self._addresses or [message.address], self._secret)
        elif isinstance(message, Signal):
            self._unpassed.remove(message.number)
        elif isinstance(message, Decided):
            self._decided = JobResult(message.status, message.words)
        elif isinstance(message, Finished):
            self._outcome = JobResult(message.status, message.words)
        else:
            self._on_host(message)

    def _on_host(self, message: object) -> None:
        """Handle a message about a host."""
        if isinstance(message, StartAgent):
            self._send_for(message.host, message.name)
        elif isinstance(message, AbandonHost) and message.name in self._named:
            self._named[message.name].give_up()
        elif isinstance(message, LentHostGone):
            self._gone.append(message.host)

    def _end_run(self, terms: Leadership, status: int) -> None:
        """Clean up after a run that is over; a run that its scheduler ended is requeued and keeps its held leases."""
        try:
            terms.require_lead()
        except SupersededError:
            return  # everything left belongs to the other leader
        except (OSError, UsageError) as error:  # the next leader, if any, uses these leases; else they end themselves
            print_now(printed(f"farandole: leases may be left, as nobody knows who leads this run now: {error}\n"))
            return
        terms.folder.withdraw(terms.term.epoch)
        if terms.supply.script and status != TOLD_TO_END:
            scheduler = SlurmScheduler(os.environ)
            try:
                arrays, doubted = arrays_of(terms.folder, terms.supply)
            except UsageError as error:
                print_now(printed(f"farandole: leases may be left: {error}\n"))
                arrays, doubted = [terms.supply.array] if terms.supply.array else [], []
            for text in cancelled(scheduler, arrays, doubted):
                print_now(printed(f"farandole: {text}\n"))
            scheduler.close()

    def _look_after(self) -> None:
        """Replace a controller that has exited; kill and replace a controller that hangs."""
        limit_s, now = self._settings.hang_timeout_s, time.monotonic()
        if _is_readable(self._ending):
            self._replace(f"the controller {process.describe(self._bury())}", now)
        elif self._asked_s is not None and now >= self._asked_s + limit_s:
            self._bury()
            self._replace(f"the controller was killed: it had not answered for {limit_s:g} s", now)
        elif limit_s and self._asked_s is None and now >= self._ask_s:
            self._asked_s, self._ask_s = now, now + limit_s / PINGS
            self._line.send(Ping())

    def _replace(self, why: str, now: float) -> None:
        """Start the next controller, unless the last message of this one was ``Finished``."""
        if self._outcome is not None:
            return
        self._deaths = [*(each for each in self._deaths if now - each < WITHIN_S), now]
        if len(self._deaths) >= MOST_DEATHS:
            self._outcome = JobResult(1, f"{why}; it is the {MOST_DEATHS}th within {WITHIN_S:g} s")
            return
        self._begin()
        print_now(printed(f"farandole: {why}: another one takes over\n"))  # last, because the write may block

    def _bury(self) -> int:
        """Kill and reap the controller; return its exit status or minus the signal, 0 if already reaped. Idempotent."""
        if not self._pid:
            return 0
        process.kill([self._pid])  # also an exited one: its pid is not reused before the next line
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        # Read once more after its exit: since the last read it may have requested agents, or decided the end.
        for message in self._line.receive():
            self._on_controller(message)
        os.close(self._ending)
        self._line.close()
        self._pid = 0
        return code

    # -- signals and agents -------------------------------------------------------------------------------------------

    def _wait(self) -> set[int]:
        poll = select.poll()
        fds = [self._interrupts, self._line.fd, self._ending, *(fd for each in self._named.values() for fd in each.fds)]
        for fd in fds:
            poll.register(fd, select.POLLIN)
        if self._line.is_behind:
            poll.modify(self._line.fd, select.POLLIN | select.POLLOUT)
        limit_s = self._settings.hang_timeout_s
        due_s = self._ask_s if self._asked_s is None else self._asked_s + limit_s
        patience_s = max(0.0, due_s - time.monotonic()) if limit_s else FOLLOW_S
        return {fd for fd, _ in poll.poll(min(patience_s, FOLLOW_S) * 1000)}

    def _on_signals(self) -> None:
        for number in os.read(self._interrupts, 4096):
            # Kept, because a controller that dies may not have received it.
            if number in process.INTERRUPTS:
                self._signals.append(number)
            elif number in process.PASSED_ON:
                self._unpassed.append(number)
            else:
                continue
            self._line.send(Signal(number))

    def _send_for(self, host: str, name: str) -> None:
        """Start an agent, or report why it cannot start."""
        self._names[host] = name  # also if it cannot start: the next controller must not reuse the name
        try:
            [group] = self._elastic.starter.groups([host], self._elastic.here)
            agent = self._agents.add(group)
            agent.config(self._config(host, name))
        except UsageError as error:
            self._line.send(AgentEnded(name, 1, str(error)))
        else:
            self._named[name] = agent

    def _config(self, host: str, name: str) -> LaunchedAgentConfig:
        config = LaunchedAgentConfig.of(self._settings, self._addresses or [self._listen], self._secret)
        return msgspec.structs.replace(config, host=host, stays=True, name=name)

    def _attend(self, name: str, agent: AgentProcess) -> None:
        agent.attend()
        if agent.code is not None:
            if agent.hosts:
                self._line.send(AgentEnded(name, agent.code, agent.explain()))
            del self._named[name]
            self._agents.drop(agent)
        elif agent.said != self._said.get(name, ""):
            self._said[name] = agent.said
            self._line.send(AgentSaid(name, agent.said))


def _is_readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
