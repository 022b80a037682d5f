"""The launcher: runs the controller, starts the agents, and ends the job according to how its workers exit.

    result = Launcher(Job(["python", "train.py"], hosts=("here",) * 4)).run()

``loop`` serves the job while it runs.

The loop runs in the thread that calls ``run``. Its contexts are left in reverse order: the loop closes its descriptors
before agents and socket are closed; the agents exit before the socket is closed and the signal handlers are restored;
the orphans of a killed agent are killed last, when no more of them can appear. (After an interrupt of the loop, workers
still run; a worker that saw the socket close would print that it lost the controller.)
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Sequence
from typing import final

import msgspec

from farandole.control import process
from farandole.control.addresses import everywhere, free_ports, own_endpoints, own_host_only
from farandole.control.agent_messages import StartWorkers, WorkerSpec
from farandole.launch.agents.agent_config import LaunchedAgentConfig
from farandole.launch.agents.agents import Agents
from farandole.launch.agents.local import Local
from farandole.launch.hosts.places import ports_wanted, with_places
from farandole.launch.hosts.plan import Job, start_workers, workers
from farandole.launch.job.loop import JobResult
from farandole.launch.job.monitor_process import MonitorProcess, say_where
from farandole.launch.job.static_loop import StaticLoop


@final
class Launcher:
    """Runs one job to its end.

    ``task`` is sent to each worker that requests it; ``on_result`` is called with each result that a worker sends back
    (``farandole.run``). With ``owns_process`` (the command line) signals end the job, and orphans of a killed agent are
    killed too; without it (inside a user's program) the launcher touches neither signal handlers nor other children.
    """

    def __init__(
        self,
        job: Job,
        *,
        task: bytes = b"",
        on_result: Callable[[int, bool, bytes], None] | None = None,
        owns_process: bool = False,
    ) -> None:
        self._job = job
        self._hosts = list(dict.fromkeys(job.hosts))
        self._is_spread = job.starter is not None
        self._is_far = self._is_spread or job.monitor is not None
        """True if agents forward the output of workers: the agents run on other hosts, or a monitor records the job."""
        self._starter = job.starter or Local()
        self._settings = job.settings
        if not self._is_spread:  # no heartbeats on the controller's own host
            self._settings = msgspec.structs.replace(job.settings, host_timeout_s=0.0)
        self._task, self._on_result = task, on_result
        self._owns_process = owns_process

    def run(self) -> JobResult:
        """Start agents and workers, serve until the last worker has exited, and clean up."""
        with contextlib.ExitStack() as held:
            interrupts, spared = -1, None
            if self._owns_process:
                spared = held.enter_context(process.no_descendants_left())
                interrupts = held.enter_context(process.signals_as_bytes((*process.INTERRUPTS, *process.PASSED_ON)))
            monitor = MonitorProcess(self._job.monitor, spared) if self._job.monitor is not None else None
            if monitor is not None:
                held.enter_context(monitor)
            # Before the socket is opened: ZeroMQ starts threads, and a child with a death signal needs a fork.
            agents = held.enter_context(self._agents())
            # Imported only now, while the agents import their own modules.
            from farandole.control.channel import Router
            from farandole.control.keys import JobKeys, new_secret
            from farandole.runtime.controller.root import Root
            from farandole.runtime.session.init_arguments import configure_logging

            if self._owns_process:
                configure_logging(self._settings.log_level)
            secret = new_secret()
            address = everywhere(self._settings.ports) if self._is_spread else own_host_only()
            router = held.enter_context(Router(JobKeys.from_secret(secret), address))
            held.callback(agents.close)
            root = Root(router, self._settings, self._job.size)
            root.controller.task, root.controller.on_result = self._task, self._on_result
            loop = StaticLoop(self._job, agents, root, interrupts)
            held.enter_context(loop)
            if monitor is not None:
                say_where(monitor.await_ready())
                monitor.contact(self._addresses(router.address), secret)
            self._begin(loop, agents, self._addresses(router.address), secret)
            result = loop.run()
            if monitor is not None:
                monitor.result = result.status, result.words
            return result

    def _addresses(self, address: str) -> list[str]:
        return own_endpoints(address, self._settings.network_interface) if self._is_spread else [address]

    def _begin(self, loop: StaticLoop, agents: Agents, addresses: list[str], secret: str) -> None:
        """Order the agents to start the workers: at once, or after every agent has connected."""
        specs = workers(self._job, secret, os.environ)
        if self._is_far:
            self._config(agents, addresses, secret)
            loop.start_later({host: self._start(specs, host, agents) for host in self._hosts})
        else:
            start = self._start(specs, self._hosts[0], agents)
            ports = {self._hosts[0]: free_ports(ports_wanted(self._settings, self._job.hosts), self._settings.ports)}
            start = with_places(start, self._job.hosts, self._settings, ports, os.environ)
            self._config(agents, addresses, secret, start)

    def _agents(self) -> Agents:
        """Start the agents; no death signal in a user's program: it needs a fork, and the program may have threads."""
        groups = self._starter.groups(self._job.hosts, socket.gethostname())
        death_signal = signal.SIGTERM if self._owns_process and self._is_spread else None
        return Agents(groups, self._settings, captured=self._is_far, death_signal=death_signal)

    def _config(self, agents: Agents, addresses: list[str], secret: str, start: StartWorkers | None = None) -> None:
        is_large = self._is_spread and self._job.size > self._settings.tree_radix
        config = LaunchedAgentConfig.of(self._settings, addresses, secret)
        free = ports_wanted(self._settings, self._job.hosts)
        config = msgspec.structs.replace(config, start=start, relay=is_large, free_ports=free)
        for agent in agents:
            agent.config(msgspec.structs.replace(config, host=agent.hosts[0] if len(agent.hosts) == 1 else ""))

    def _start(self, specs: Sequence[WorkerSpec], host: str, agents: Agents) -> StartWorkers:
        """Order for the agent of ``host``, with the workers to start there."""
        own = [spec for spec in specs if self._job.hosts[spec.worker_id] == host]
        return start_workers(self._job, own, self._job.size, inherits=agents.of(host).inherits)
