"""Several hosts on one machine, made of Linux namespaces; see the docstring of the package."""

# Processes of a cluster, beside those that run on its hosts, all started by this one (the owner):
#
#   switch     holds the network of the bridge and the files that hosts share; the first to start, the last to end
#   helper     one for each host, outside of it: it waits for the host's first process, and ends with it
#   first      the helper's child, process 1 in the host's namespaces: when it dies the kernel kills all others in them
#   enter      one for each command that runs on a host, outside of it: it passes signals on, and the exit status back
#
# Nothing outlives the owner, even if it is killed: switch and first watch it by a pidfd, and an ``enter`` ends with its
# command, which dies with the host. A ``Cluster`` has no lock: it is for one thread.

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, final

from workbench.cluster import needs
from workbench.cluster.files import HOME, share
from workbench.cluster.helpers import PATIENCE_S, helper, ready, script_line
from workbench.cluster.namespaces import SHARED_MEMORY
from workbench.cluster.needs import ClusterError
from workbench.cluster.network import Address, Network, repeated, traffic

HEAD = "head"
_HEAD_NUMBER = 254


@final
class Process(subprocess.Popen[str]):
    """A command on a host; a ``with`` block ends by killing it, so that a test that fails in it does not hang."""

    def __exit__(self, *error: Any) -> None:
        self.kill()
        super().__exit__(*error)


@final
@dataclass(frozen=True)
class _Host:
    """A host that is up: the helper, and the first process of its namespaces, whose death is power loss."""

    process: subprocess.Popen[bytes]
    first: int
    held: int
    """A pidfd of the first process: its number may be reused as soon as the helper has reaped it."""

    @classmethod
    def of(cls, process: subprocess.Popen[bytes]) -> _Host:
        """Wait until the host of this helper is up."""
        first = ready(process)
        return cls(process, first, os.pidfd_open(first))

    def end(self) -> None:
        """Kill the first process, and with it all others; called once."""
        with contextlib.suppress(ProcessLookupError):  # the host has ended by itself
            signal.pidfd_send_signal(self.held, signal.SIGKILL)
        os.close(self.held)


@final
class Cluster:
    """A head and some nodes: ``head``, ``node1``, ``node2``... Close it, or use it in a ``with`` block.

    Raises ``UnavailableError``, with what is missing and the remedy, if the machine cannot have one. ``etc`` are
    further files below ``/etc`` of all hosts: ``{"slurm/slurm.conf": "..."}``. ``daemons`` are programs that an idle
    host may run, by their names in ``ps -o comm``.
    """

    def __init__(
        self,
        nodes: int,
        *,
        ipv4: bool = True,
        ipv6: bool = True,
        etc: Mapping[str, str] | None = None,
        daemons: Collection[str] = (),
    ) -> None:
        if not 1 <= nodes < _HEAD_NUMBER:
            raise ValueError(f"a cluster of {nodes} nodes was asked for: 1 to {_HEAD_NUMBER - 1} are possible")
        needs.require(needs.HOSTS)
        self._addresses = {HEAD: Address(_HEAD_NUMBER)} | {f"node{i}": Address(i) for i in range(1, nodes + 1)}
        self._up: dict[str, _Host] = {}
        self._daemons = frozenset(daemons)
        self._idle: dict[str, frozenset[int]] = {}
        self._started: list[Process] = []
        self._switch = helper("namespaces.py", "switch")
        self._network = Network(self._switch.pid, ipv4=ipv4, ipv6=ipv6)
        try:
            ready(self._switch)
            self._network.build()
            names = {host: self._network.resolve(address) for host, address in self._addresses.items()}
            share(Path(f"/proc/{self._switch.pid}/root{SHARED_MEMORY}"), names, etc or {})
            self._boot(self.hosts)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def hosts(self) -> list[str]:
        """All hosts, the head first."""
        return list(self._addresses)

    @property
    def nodes(self) -> list[str]:
        """All hosts but the head."""
        return self.hosts[1:]

    def address(self, host: str) -> Address:
        """The addresses of a host: ``.ipv4``, ``.ipv6``."""
        if host not in self._addresses:
            raise ClusterError(f"there is no host {host!r}, but {', '.join(self.hosts)}")
        return self._addresses[host]

    def path(self, host: str, file: str | Path) -> Path:
        """Path by which this process finds a host's file: ``cluster.path("node1", "/run/sshd.log").read_text()``."""
        return Path(f"/proc/{self._first(host)}/root") / str(file).lstrip("/")

    def command(self, host: str, command: Sequence[str]) -> list[str]:
        """A command of this machine that runs ``command`` on a host, for as long as the host is up."""
        return [*script_line("namespaces.py"), "enter", str(self._first(host)), *command]

    def popen(
        self,
        host: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        stdin: int | IO[str] | None = subprocess.DEVNULL,
        stdout: int | IO[str] | None = None,
        stderr: int | IO[str] | None = None,
    ) -> Process:
        """Start a command on a host as ``subprocess.Popen`` would: signals reach it, its exit status comes back.

        It has the caller's environment with the variables in ``env`` added, and the cluster's home directory. It is
        killed with the returned process, with the host, and with the caller.
        """
        environment = {**os.environ, "HOME": str(HOME), "PATH": needs.search_path(), **(env or {})}
        process = Process(
            self.command(host, command), env=environment, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr, text=True
        )
        self._started = [each for each in self._started if each.poll() is None] + [process]
        return process

    def run(
        self,
        host: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        check: bool = True,
        timeout_s: float = 60.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host to its end; raises ``ClusterError`` with its output if it fails or takes too long."""
        process = self.popen(host, command, env=env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with process:
            try:
                stdout, stderr = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                stdout, stderr = process.communicate()
                raise ClusterError(_account(host, command, f"ran for {timeout_s} s", stdout, stderr)) from None
        if check and process.returncode != 0:
            raise ClusterError(_account(host, command, f"ended with {process.returncode}", stdout, stderr))
        return subprocess.CompletedProcess(list(command), process.returncode, stdout, stderr)

    def processes(self, host: str) -> dict[int, str]:
        """Processes of a host besides those of an idle host: process numbers there, and command lines.

        Sessions of the ssh server do not count, because they wait for hours for a silent client.
        """
        # Daemons are matched by name: they fork at any time, and one that writes its title has no command line.
        running = _running(self.path(host, "/proc"), self._daemons)
        return {
            pid: words
            for pid, words in running.items()
            if pid not in self._idle[host] and not words.startswith("sshd: ")
        }

    def received_bytes(self, host: str) -> int:
        """Bytes that a host received over its cable since it booted, headers included."""
        return traffic(self._first(host))[0]

    def sent_bytes(self, host: str) -> int:
        """Bytes that a host sent over its cable since it booted, headers included."""
        return traffic(self._first(host))[1]

    def resent_bytes(self, host: str) -> int:
        """Bytes that a host's TCP has retransmitted: on busy processors packets overtake each other, or wait too long.

        It is a lower bound, because headers are left out.
        """
        return repeated(self._first(host))

    def cut(self, host: str, peer: str | None = None, *, one_way: bool = False) -> None:
        """Pull a host's cable, or drop what two hosts send to each other. Peers get no error: they see silence.

        With ``one_way`` only what ``host`` sends to ``peer`` is dropped.
        """
        if peer is None:
            self._network.unplug(self.address(host))
            return
        for here, there in ((host, peer),) if one_way else ((host, peer), (peer, host)):
            self._network.part(self._first(here), self.address(there))

    def heal(self, host: str, peer: str | None = None) -> None:
        """Undo ``cut``."""
        if peer is None:
            self._network.replug(self.address(host), [each.first for each in self._up.values()])
            return
        for here, there in ((host, peer), (peer, host)):
            self._network.join(self._first(here), self.address(there))

    def rate(self, host: str, rate: str | None) -> None:
        """Limit a host's cable in both directions, in words of ``tc``: ``"1gbit"``, ``"10mbit"``; ``None``: no more."""
        self._network.limit(self._first(host), self.address(host), rate)

    def lag(self, host: str, milliseconds: float) -> None:
        """Delay all that a host receives; a round trip takes the sum of both hosts' lags. 0: no more."""
        needs.require(needs.LAG)
        self._network.delay(self._first(host), self.address(host), milliseconds / 1e3)

    def freeze(self, host: str) -> None:
        """Stop every process of a host; its kernel still answers."""
        self.run(host, ["bash", "-c", "kill -STOP -1"])

    def thaw(self, host: str) -> None:
        """Undo ``freeze``."""
        self.run(host, ["bash", "-c", "kill -CONT -1"])

    def kill(self, host: str) -> None:
        """Cut a host's power: peers see silence, and everything on it is lost. ``boot`` starts it again, empty."""
        self._first(host)
        self._network.remove(self.address(host))  # first, else its kernel would still close its connections
        struck = self._up.pop(host)
        struck.end()
        struck.process.wait(PATIENCE_S)  # the helper ends when all processes of the host are gone

    def boot(self, host: str) -> None:
        """Start a host that was killed."""
        if host not in self._up:
            self._boot([host])

    def close(self) -> None:
        """End everything that runs on the hosts, and the hosts."""
        with contextlib.ExitStack() as left:  # in reverse order, and each even if an earlier one failed
            # Commands have ended with their hosts, but must be reaped, or they stay as zombies.
            helpers: list[subprocess.Popen[Any]] = [self._switch, *self._started]
            for process in helpers:
                left.callback(process.wait, PATIENCE_S)
                left.callback(process.kill)
            left.callback(self._network.close)
            for host in self._up.values():
                left.callback(host.process.wait, PATIENCE_S)
            for host in self._up.values():  # a second loop, so that all hosts go down at the same time
                left.callback(host.end)
            self._up.clear()

    def _first(self, host: str) -> int:
        self.address(host)
        if host not in self._up or self._up[host].process.poll() is not None:
            raise ClusterError(f"{host} has no power: boot({host!r})")
        return self._up[host].first

    def _boot(self, hosts: Sequence[str]) -> None:
        # All are started before the first wait, so that they boot in parallel.
        starting = {host: helper("namespaces.py", "host", str(self._switch.pid), host) for host in hosts}
        try:
            for host, process in starting.items():
                self._up[host] = _Host.of(process)
            for host in hosts:
                self._network.plug(self._up[host].first, self._addresses[host])
                self._idle[host] = frozenset(
                    int(each.name) for each in self.path(host, "/proc").iterdir() if each.name.isdigit()
                )
        except BaseException:  # an interrupt, too, must not leave hosts behind
            for host, process in starting.items():
                if up := self._up.pop(host, None):  # else ``close`` would end it once more
                    up.end()
                else:
                    process.kill()  # and the kernel kills the first process with it, if there is one yet
                process.wait(PATIENCE_S)
                if process.stdout is not None:
                    process.stdout.close()
            raise


def _account(host: str, command: Sequence[str], ending: str, stdout: str, stderr: str) -> str:
    return f"{' '.join(command)} on {host} {ending}\n--- stdout\n{stdout}\n--- stderr\n{stderr}"


def _running(proc: Path, daemons: Collection[str]) -> dict[int, str]:
    """Process numbers and command lines of all processes that ``proc`` shows, except daemons."""
    found = {}
    for entry in proc.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                words = (entry / "cmdline").read_text().replace("\0", " ").strip()
                if words and (entry / "comm").read_text().rstrip("\n") not in daemons:
                    found[int(entry.name)] = words
    return found
