"""The launcher of an elastic job, which runs its controller.

    result = ElasticLauncher(ElasticJob(job, Watched("hosts.txt", 1), Ssh(), here="node1")).run()

The loop of the controller runs in the thread that calls ``run``, as in a static job. If it raises an error that nobody
has foreseen, the launcher starts the next controller, in this process and at the same address: agents and workers
reconnect, and go on with the membership in the journal (``Recorded``). The launcher keeps what the next controller
needs: the agents, the journal, the output, and the ``Handover``. When the launcher dies, the job ends.

ZeroMQ, the copy of the journal and the output have threads: so a child with a death signal is started by
``process.bound``, and nothing forks. The contexts of a controller are left before the next one begins: its loop
unwatches its descriptors, and its socket is closed, before the same address is bound again.
"""

from __future__ import annotations

import contextlib
import copy
import signal
import time
import traceback
from functools import partial
from typing import final

import msgspec

from farandole.control import process
from farandole.control.addresses import everywhere, own_endpoints, own_host_only
from farandole.control.channel import Router
from farandole.control.keys import JobKeys, new_secret
from farandole.control.os_text import printed
from farandole.elastic.membership.formation import ElasticFormation
from farandole.elastic.membership.journal import Recorded
from farandole.elastic.membership.policy import Policy
from farandole.engines.choose import choose
from farandole.errors import FarandoleError, UsageError
from farandole.launch.agents.agents import Agents, print_now
from farandole.launch.agents.output import STDERR, Receipts
from farandole.launch.hosts.elastic_job import ElasticJob
from farandole.launch.hosts.leader_log import SupersededError
from farandole.launch.job.elastic_agents import ElasticAgents
from farandole.launch.job.elastic_loop import ElasticLoop, Handover
from farandole.launch.job.job_journal import Journal
from farandole.launch.job.leadership import Leadership
from farandole.launch.job.leased_loop import LeasedLoop
from farandole.launch.job.loop import GIVE_UP_S, JobResult
from farandole.launch.job.monitor_process import MonitorProcess, begin_monitor
from farandole.launch.leases.ending import end_leases
from farandole.launch.sbatch.options import TOLD_TO_END
from farandole.runtime.controller.inherited_generation import InheritedGeneration
from farandole.runtime.controller.root import Root
from farandole.runtime.coordination.stall import Limits
from farandole.runtime.session.init_arguments import ANY, configure_logging
from farandole.settings import Settings

MOST_FAILURES = 5
"""Failures of controllers within ``WITHIN_S`` that end the job: the next controller would fail of the same, too."""

WITHIN_S = 60.0


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
            journal = held.enter_context(Journal(settings.elastic_journal))
            receipts = Receipts.own()
            held.callback(receipts.close, GIVE_UP_S)
            # An agent on this host exits with its standard input; ssh and srun may hang, and get the signal.
            death_signal = signal.SIGTERM if self._elastic.reaches_out else None
            children = held.enter_context(Agents([], settings, captured=True, death_signal=death_signal))
            controllers = _Controllers(self._elastic, self._terms, children, interrupts, journal, receipts, monitor)
            result = controllers.serve(settings)
            if self._terms is not None:
                _end_run(self._terms, result.status)
            if monitor is not None:
                monitor.result = result.status, result.words
            return result


@final
class _Controllers:
    """The controllers of a job, one after another, and what they share."""

    def __init__(
        self,
        elastic: ElasticJob,
        terms: Leadership | None,
        children: Agents,
        interrupts: int,
        journal: Journal,
        receipts: Receipts,
        monitor: MonitorProcess | None,
    ) -> None:
        self._elastic, self._terms, self._children, self._interrupts = elastic, terms, children, interrupts
        self._journal, self._monitor, self._handover = journal, monitor, Handover(receipts)
        self._secret = terms.term.secret if terms is not None else new_secret()
        self._listen = ""

    def serve(self, settings: Settings) -> JobResult:
        """Serve until the job is over."""
        agents = ElasticAgents(self._elastic, settings, self._secret, self._children)
        failures: list[float] = []
        while True:
            try:
                return self._serve(settings, agents)
            except Exception as error:
                if not self._listen and isinstance(error, FarandoleError):
                    raise  # the settings are wrong: this controller could not even listen
                now = time.monotonic()
                failures = [*(each for each in failures if now - each < WITHIN_S), now]
                why = f"the controller has failed: {type(error).__name__}: {error}"
                if len(failures) >= MOST_FAILURES:
                    decided = self._handover.result or JobResult(1, "")  # what was decided before stays
                    why += f"; it is the {MOST_FAILURES}th within {WITHIN_S:g} s"
                    return decided._replace(words="\n".join(filter(None, [decided.words, why])))
                self._print_text(f"{traceback.format_exc()}farandole: {why}: another one takes over\n")
            agents.keep_running()

    def _print_text(self, text: str) -> None:
        output = self._handover.output.output
        if output.has_ended:
            print_now(printed(text))
        else:  # the next controller does not wait for a reader who does not read
            output.queue_lines(STDERR, printed(text))

    def _serve(self, settings: Settings, agents: ElasticAgents) -> JobResult:
        with contextlib.ExitStack() as held:
            # A copy, as it was at the beginning: the next controller looks for hosts anew.
            elastic = msgspec.structs.replace(self._elastic, discovery=copy.deepcopy(self._elastic.discovery))
            router = held.enter_context(Router(JobKeys.from_secret(self._secret), self._listen or self._first()))
            held.push(self._end_children)  # after the loop, which watches their descriptors
            agents.addresses = self._addresses(router.address, settings)
            self._listen = router.address
            if self._monitor is not None:
                self._monitor.contact(agents.addresses, self._secret)
            lines = self._journal.lines()
            membership = Recorded(Policy.of(settings), self._journal.write, lines)
            adopts = self._adopt(membership)
            engine = partial(choose, settings.engine, across=settings.across)
            formation = ElasticFormation(membership, engine, time.monotonic)
            held.callback(elastic.discovery.close)  # after the loop, which watches its fds
            root = Root(router, settings, ANY, formation)
            root.controller.watching.resizable = self._terms is None  # else: farandole scale
            parts = elastic, agents, root, self._interrupts, self._handover, formation, self._secret
            loop = ElasticLoop(*parts) if self._terms is None else LeasedLoop(*parts, self._terms, adopts=adopts)
            held.enter_context(loop)
            if lines or adopts:
                found = membership.generation, membership.members, membership.over
                limits = Limits.of(settings)
                root.controller.inherited = InheritedGeneration(router.send, formation, time.monotonic, *found, limits)
                formation.orders.extend([membership.finish] if membership.finish else [])
                loop.take_over()
            return loop.run()

    def _end_children(self, failed: type[BaseException] | None, *_: object) -> None:
        """End the agents before the socket is closed: a worker that saw that would print so."""
        if failed is None:
            self._children.close()

    def _first(self) -> str:
        return everywhere(self._elastic.job.settings.ports) if self._elastic.reaches_out else own_host_only()

    def _addresses(self, listen: str, settings: Settings) -> list[str]:
        return own_endpoints(listen, settings.network_interface) if self._elastic.reaches_out else [listen]

    def _adopt(self, membership: Recorded) -> bool:
        """Give a new membership the workers of the previous leader; False if there are none."""
        if self._terms is None or not self._terms.term.past.generation or membership.generation or membership.workers:
            return False
        membership.on(time.monotonic(), self._terms.term.adopted())
        return True


def _end_run(terms: Leadership, status: int) -> None:
    """Clean up after a run that is over; a run that its scheduler ended is requeued and keeps its held leases."""
    try:
        terms.require_lead()
    except SupersededError:
        return  # everything left belongs to the other leader
    except (OSError, UsageError) as error:  # the next leader, if any, uses these leases; else they end themselves
        print_now(printed(f"farandole: leases may be left, because it is unknown who leads this run now: {error}\n"))
        return
    terms.folder.withdraw(terms.term.epoch)
    if terms.supply.script and status != TOLD_TO_END:
        for text in end_leases(terms.folder, terms.supply)[1]:
            print_now(printed(f"farandole: {text}\n"))
