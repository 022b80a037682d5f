"""Starting of agents on their hosts: the abstract starter, and the launcher's child process behind every start.

    with Agents(starter.groups(hosts, here), settings, captured=True) as agents:
        for agent in agents: agent.config(config)
        ...                                     # an agent's fds are readable after output or its exit

A starter only knows its command and the meaning of its output; processes, pipes and exits are the same for all.

All of it runs in the thread of the launcher's loop, which must not block while an agent hangs: after the config is
written, the pipes do not block, and only ``wait``, at the end, waits for an exit. Only ``attend`` reaps a child, so
while ``code`` is ``None`` its pid is not reused. Watched descriptors are closed in ``wait`` and not before: the number
of a closed descriptor goes to the next opened file.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple, final

import msgspec

from farandole.control import process
from farandole.control.os_text import pack
from farandole.errors import UsageError
from farandole.launch.agents.agent_config import MODULE, LaunchedAgentConfig
from farandole.settings import Settings

END_S = 5.0
"""Time for agents to kill their workers at the end."""

SAID_BYTES = 2**14
"""Bytes kept of the output of a starter's child, which is used only if the start fails."""


class AgentStarter(ABC):
    """One way of starting agents. Pure: it makes commands and error texts."""

    passes_environment = True
    """True if agents inherit the launcher's environment variables."""

    is_foreign = False
    """True if workers have the variables of processes of another system, and none of the launcher's."""

    @abstractmethod
    def groups(self, hosts: Sequence[str], here: str) -> list[StarterGroup]:
        """Split the hosts into groups, each served by one child of the launcher; ``here`` is the name of this host."""

    @abstractmethod
    def command(self, hosts: Sequence[str], settings: Settings, module: str = MODULE) -> list[str]:
        """Command that starts an agent, or another ``module``, on each of these hosts; they get its standard input."""

    @abstractmethod
    def explain(self, hosts: Sequence[str], code: int, said: str) -> str:
        """Reason, from exit code and output, why the command ended before the agents did; with the remedy."""


class StarterGroup(NamedTuple):
    """Hosts whose agents are started by one command."""

    starter: AgentStarter
    hosts: tuple[str, ...]


@final
class AgentProcess:
    """A child of the launcher that is, or starts, the agents of some hosts.

    Its output is ``captured`` (it contains no worker's output), or goes to the launcher's streams. The kernel sends it
    ``death_signal`` when the launcher dies: by ``process.spawn``, or by ``process.bound`` where ``threads`` run.
    """

    def __init__(
        self,
        group: StarterGroup,
        settings: Settings,
        *,
        captured: bool,
        death_signal: int | None = None,
        threads: bool = False,
    ) -> None:
        self.hosts = group.hosts
        self.code: int | None = None
        """Its exit status, or minus the signal that killed it; ``None`` while it runs."""
        self._starter = group.starter
        self._said = b""
        self._told = self._killed = False
        self._unheard = -1
        """Read end of its input, opened when the input is closed, for the bytes that the child has not read."""
        self._captured = self._listening = captured
        reader, self._input = os.pipe()
        writer = None
        if captured:
            self._output, writer = os.pipe()
            os.set_blocking(self._output, False)  # our end only: the child's writes may block
        try:
            command = self._starter.command(self.hosts, settings)
            if death_signal and threads:
                command, death_signal = process.bound(command, death_signal, os.environ), None
            self._pid = process.spawn(command, death_signal=death_signal, stdin=reader, stdout=writer, stderr=writer)
        except OSError as error:
            os.close(self._input)
            self._close_output()
            raise UsageError(f"{process.refusal(command, error)[1]}: it is needed to start agents") from error
        finally:
            os.close(reader)
            if writer is not None:
                os.close(writer)
        self._ending = os.pidfd_open(self._pid)

    @property
    def inherits(self) -> bool:
        """True if its agents inherit the launcher's environment variables."""
        return self._starter.passes_environment

    @property
    def has_ended(self) -> bool:
        """True if the loop need not wait for it: it has exited, or was killed."""
        return self.code is not None or self._killed

    @property
    def said(self) -> str:
        """Last line that it printed."""
        return next(reversed(self._said.decode(errors="replace").strip().splitlines()), "")

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors to watch; when one of them is readable, call ``attend``."""
        return (*((self._ending,) if self.code is None else ()), *((self._output,) if self._listening else ()))

    def config(self, config: LaunchedAgentConfig) -> None:
        """Write the config of its agents to its standard input; does nothing if the child has died."""
        with contextlib.suppress(BrokenPipeError), open(self._input, "wb", closefd=False) as file:
            file.write(pack(msgspec.json.encode, config, exact=True) + b"\n")
        os.set_blocking(self._input, False)  # only now: the line above must be written completely

    def limit_descriptors(self, limits: tuple[int, int]) -> None:
        """Set its soft and hard limit, which workers inherit; call it before ``config``, without which none start."""
        with contextlib.suppress(OSError):  # it has exited
            resource.prlimit(self._pid, resource.RLIMIT_NOFILE, limits)

    def print_text(self, text: bytes) -> bytes:
        """Write to the agent's standard input, after its config, without blocking; return the bytes not written."""
        self._told = True
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            return text[os.write(self._input, text) :]
        return text

    def attend(self) -> None:
        """Read its output and its exit status."""
        # Exit status before output: then all its output has arrived, and is read below for ``explain``.
        if self.code is None and (ended := os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)):
            # Before it is reaped: a controller that failed in between would leave a child of which nobody can hear.
            self.code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            os.waitpid(self._pid, 0)
        with contextlib.suppress(BlockingIOError):
            while self._listening:
                text = os.read(self._output, 2**16)
                self._said = (self._said + text)[-SAID_BYTES:]
                self._listening = bool(text)

    def explain(self) -> str:
        """The reason why it exited, by its starter."""
        assert self.code is not None
        return self._starter.explain(self.hosts, self.code, self._said.decode(errors="replace"))

    def kill(self, number: int = signal.SIGTERM) -> None:
        """Kill it; its agents exit then, and the kernel kills their workers."""
        self._killed = True
        if self.code is None:  # not reaped, so the pid is still its own
            os.kill(self._pid, number)

    def give_up(self) -> None:
        """Kill it because its hosts are lost; ignore its output from now on. Other agents may serve the hosts."""
        self.kill()
        self.hosts = ()

    def dismiss(self) -> None:
        """Close its input, which makes its agents exit. Idempotent."""
        if self._unheard >= 0:
            return
        # Opened before our end is closed: the kernel drops a pipe's contents with its last descriptor.
        self._unheard = os.open(f"/proc/self/fd/{self._input}", os.O_RDONLY | os.O_NONBLOCK)
        os.close(self._input)

    def wait(self, until_s: float) -> bytes:
        """Wait for its exit until ``until_s``, then kill it; return the text of ``print_text`` that it has not read."""
        end = select.poll()  # unlike select(), no limit on descriptor numbers
        end.register(self._ending, select.POLLIN)
        if self.code is None and not end.poll(max(0.0, until_s - time.monotonic()) * 1000):
            self.kill(signal.SIGKILL)
            end.poll()
        self.attend()
        self._close_output()
        os.close(self._ending)
        with open(self._unheard, "rb") as file:
            return (file.read() or b"") if self._told else b""  # else it may be the config, with the secret

    def _close_output(self) -> None:
        if self._captured:
            os.close(self._output)


@final
class Agents:
    """Children of one job, started by the constructor; they and their agents have exited when the block is left."""

    def __init__(
        self, groups: Sequence[StarterGroup], settings: Settings, *, captured: bool, death_signal: int | None = None
    ) -> None:
        self._settings, self._death_signal = settings, death_signal
        self._descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._processes: list[AgentProcess] = []
        try:
            for group in groups:
                self._processes.append(AgentProcess(group, settings, captured=captured, death_signal=death_signal))
        except BaseException:  # also Ctrl-C: started children must not stay
            self.close()
            raise

    def __iter__(self) -> Iterator[AgentProcess]:
        return iter(self._processes)

    def of(self, host: str) -> AgentProcess:
        """The child that started, or is, the agent of ``host``."""
        return next(each for each in self._processes if host in each.hosts)

    def add(self, group: StarterGroup) -> AgentProcess:
        """Start another child while the job runs, whose router has threads and has raised the limit of descriptors."""
        one = AgentProcess(group, self._settings, captured=True, death_signal=self._death_signal, threads=True)
        self._processes.append(one)
        one.limit_descriptors(self._descriptors)
        return one

    def drop(self, agent: AgentProcess) -> None:
        """Free the resources of an exited child; the loop must no longer watch its descriptors."""
        self._processes.remove(agent)
        agent.dismiss()
        agent.wait(time.monotonic())

    def close(self) -> None:
        """Dismiss all children and wait for their exits; print text they have not read. Resumes after an interrupt."""
        until_s = time.monotonic() + END_S
        for each in self._processes:  # all before the first wait, so that they exit in parallel
            each.dismiss()
        while self._processes:
            print_now(self._processes[0].wait(until_s))
            del self._processes[0]

    def __enter__(self) -> Agents:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def print_now(text: bytes) -> None:
    """Write to standard error at once."""
    with contextlib.suppress(OSError):  # stderr is closed
        while text:
            text = text[os.write(2, text) :]
