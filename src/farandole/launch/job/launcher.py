"""The launcher: holds the controller, starts the agents, and turns the ends of workers into the end of the job.

    result = Launcher(Job(["python", "train.py"], hosts=("here",) * 4)).run()

What happens while the job runs is in ``loop``.

The loop runs in the thread that calls ``run``. What ``run`` enters last is left first: the loop lets go of its
descriptors before agents and socket are closed, agents end before the socket is closed and signals are again what they
were, and what a killed agent has left behind is killed when nothing more can come. (After an interrupt of the loop
workers are alive: one that saw the socket close would print that it has lost the controller.)
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

    ``task`` is what workers get that ask for it, ``on_result`` is called with what they send back (``farandole.run``).
    With ``owns_process`` (the command line) signals end the job and orphans of a killed agent are ended too; without it
    (inside somebody's program) neither handlers nor other children are touched.
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
        """True if agents send us what workers write: they are elsewhere, or somebody watches it."""
        self._starter = job.starter or Local()
        self._settings = job.settings
        if not self._is_spread:  # nobody's silence counts on the host of the controller
            self._settings = msgspec.structs.replace(job.settings, host_timeout_s=0.0)
        self._task, self._on_result = task, on_result
        self._owns_process = owns_process

    def run(self) -> JobResult:
        """Start everything, serve until the last worker has ended, and leave nothing behind."""
        with contextlib.ExitStack() as held:
            interrupts, spared = -1, None
            if self._owns_process:
                spared = held.enter_context(process.no_descendants_left())
                interrupts = held.enter_context(process.signals_as_bytes((*process.INTERRUPTS, *process.PASSED_ON)))
            monitor = MonitorProcess(self._job.monitor, spared) if self._job.monitor is not None else None
            if monitor is not None:
                held.enter_context(monitor)
            # Before there is a socket: ZeroMQ has threads, and a start with a death signal takes a fork.
            agents = held.enter_context(self._agents())
            # Loaded only now: the agents load their modules meanwhile.
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
        """Have the agents start the workers: at once, or when all of them have answered."""
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
        """Start the agents. Inside somebody's program there may be threads, which a death signal forbids."""
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
        """Order to the agent of ``host``, with the workers that it is to start."""
        own = [spec for spec in specs if self._job.hosts[spec.worker_id] == host]
        return start_workers(self._job, own, self._job.size, inherits=agents.of(host).inherits)
