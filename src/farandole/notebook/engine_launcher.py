"""Launcher of IPython Parallel that starts each engine by itself: here, over ssh or by ``srun``.

    cluster = ipyparallel.Cluster(engines="farandole", n=4)        # the hosts of the Slurm allocation, or this one

    config = traitlets.config.Config()
    config.FarandoleEngineSetLauncher.hosts = "node1:2,node2:2"     # as farandole run -H
    cluster = ipyparallel.Cluster(engines="farandole", n=4, controller_ip="*", config=config)

An engine that is started later, for example by ``ranks.replace()``, gets the place of an engine that has died.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

import psutil
from ipyparallel.cluster.launcher import LocalEngineLauncher, LocalEngineSetLauncher
from traitlets import Unicode

from farandole.control.addresses import is_own
from farandole.errors import UsageError
from farandole.launch.agents.agents import AgentStarter
from farandole.launch.agents.local import Local
from farandole.launch.hosts.placement import read_hosts
from farandole.launch.hosts.plan import Host, by_own_name
from farandole.launch.hosts.remote_environment import for_other_hosts
from farandole.launch.hosts.starters import Means, choose_starter, own_allocation
from farandole.notebook.engine_process import EngineConfig, EngineSignal, encode_line
from farandole.settings import Settings

MODULE = "farandole.notebook.engine_process"

GONE_S, LOOK_S = 5.0, 0.05
"""Time for the local process (such as ssh) of a dead engine to exit, and the polling interval."""


def free_hosts(hosts: Sequence[Host], taken: Iterable[str], n: int) -> list[str]:
    """Hosts for ``n`` more engines, in order, beside engines on ``taken``; hosts without a number of slots fill evenly.

    >>> free_hosts([Host("a", 2), Host("b", 2)], ["a", "b", "b"], 1)
    ['a']
    >>> free_hosts([Host("a"), Host("b")], [], 3)
    ['a', 'b', 'a']
    """
    busy, found = Counter(taken), list[str]()
    while len(found) < n:
        free = [host for host in hosts if not host.slots or busy[host.name] < host.slots]
        if not free:
            named = ",".join(f"{host.name}:{host.slots}" for host in hosts)
            raise UsageError(
                f"{n} engines are asked for, and {named} have place for {len(found)} more: ask for fewer, or name more "
                "in FarandoleEngineSetLauncher.hosts"
            )
        found.append(min(free, key=lambda host: 0 if host.slots else busy[host.name]).name)
        busy[found[-1]] += 1
    return found


class FarandoleEngineLauncher(LocalEngineLauncher):
    """Launcher of one engine. Its local process (such as ssh) and the engine end together."""

    host = Unicode().tag(to_dict=True)
    starter: AgentStarter = Local()

    def find_args(self) -> list[str]:
        """Command that starts the engine's process on its host."""
        return self.starter.command([self.host], Settings.resolve(), MODULE)

    def start(self) -> None:
        """See ``LocalProcessLauncher``; the configuration goes to standard input, because command lines are public."""
        kept = {} if isinstance(self.starter, Local) else for_other_hosts(os.environ)
        told = {**kept, **self.get_env()}
        config = EngineConfig([*self.cluster_args, *self.engine_args], os.path.abspath(self.work_dir), told)
        with open(self.output_file, "ab") as file:
            process = self._popen_process = subprocess.Popen(
                self.args,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=self.work_dir,
                start_new_session=True,
            )
        self.pid, self.process = process.pid, psutil.Process(process.pid)
        self._write(encode_line(config))
        self.notify_start(self.pid)
        self._start_waiting()

    def signal(self, sig: int | str) -> None:
        """Send a signal to the engine, on any host."""
        number = getattr(signal, f"SIG{sig}") if isinstance(sig, str) and not sig.isdigit() else int(sig)
        if self.is_alive:
            self._write(encode_line(EngineSignal(number)))

    async def stop(self) -> None:
        """End the engine, and kill its local process if it does not exit then."""
        if self._popen_process is not None and self._popen_process.stdin is not None:
            self._popen_process.stdin.close()
        try:
            await self.join(timeout=self.stop_seconds_until_kill)
        except TimeoutError:
            self.process.kill()
            await self.join(timeout=self.stop_timeout)

    @property
    def is_alive(self) -> bool:
        """True while its process runs; ``state`` would wait for a loop that may not run."""
        return self._wait_thread is not None and self._wait_thread.is_alive()

    def await_end(self, timeout_s: float) -> None:
        """Wait for the exit of its process, at most ``timeout_s``."""
        self._wait_thread.join(timeout_s)

    def _write(self, line: bytes) -> None:
        stdin = None if self._popen_process is None else self._popen_process.stdin
        if stdin is not None and not stdin.closed:
            try:
                stdin.write(line)
                stdin.flush()
            except BrokenPipeError:
                self.log.debug("the process of engine %s has ended", self.identifier)

    def _log_output(self, stop_data: Any = None) -> None:
        code = (stop_data or {}).get("exit_code") or 0
        if code and not isinstance(self.starter, Local):
            self.log.warning("%s", self.starter.explain([self.host], code, self.get_output()))
        super()._log_output(stop_data)


class FarandoleEngineSetLauncher(LocalEngineSetLauncher):
    """Launcher of a set of engines, each with a launcher of its own; see the module."""

    hosts = Unicode("", config=True, help="Hosts of engines and how many each takes, as in farandole run -H a:2,b:2.")
    launcher_class = FarandoleEngineLauncher

    def start(self, n: int) -> list[Any]:
        """Start ``n`` engines in free places."""
        variables, here = os.environ, socket.gethostname()
        slurm, here = own_allocation(Means(), variables, here)
        named: Sequence[Host] = read_hosts(self.hosts, "")
        if not named:
            named = [Host(*each) for each in slurm.tasks.items()] if slurm is not None else [Host(here)]
        hosts = by_own_name(named, here, is_own)
        starter = choose_starter(Means(), slurm, [host.name for host in hosts], here)
        places = iter(self._places(hosts, n))

        @final
        class Placed(FarandoleEngineLauncher):
            """Launcher of an engine of this set, on the next place."""

            def __init__(self, **options: Any) -> None:
                super().__init__(**options)
                self.host = next(places)
                groups = [] if starter is None else starter.groups([self.host], here)
                self.starter = groups[0].starter if groups else Local()

        self.launcher_class = Placed
        started: list[Any] = super().start(n)
        return started

    def _places(self, hosts: Sequence[Host], n: int) -> list[str]:
        """Hosts for ``n`` more engines; a dead engine keeps its place until its local process has exited, too."""
        until_s = time.monotonic() + GONE_S
        while True:
            alive = self._alive()
            try:
                return free_hosts(hosts, [each.host for each in alive], n)
            except UsageError:
                if not alive or time.monotonic() > until_s:
                    raise
            for each in alive:
                each.await_end(LOOK_S)

    def _alive(self) -> list[FarandoleEngineLauncher]:
        """Launchers of the running engines in all sets of this cluster."""
        sets: Mapping[str, Any] = getattr(self.parent, "engines", {})
        known = [each for one in sets.values() for each in getattr(one, "launchers", {}).values()]
        return [each for each in known if isinstance(each, FarandoleEngineLauncher) and each.is_alive]
