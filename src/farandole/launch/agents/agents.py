"""Starts of agents on their hosts: the abstract starter, and the child of the launcher that every start comes down to.

    with Agents(starter.groups(hosts, here), settings, captured=True) as agents:
        for agent in agents: agent.config(config)
        ...                                     # an agent's fds are readable when it has said something, or ended

A starter only knows what to call and what its words mean; processes, pipes and ends are the same for all.

All of it runs in the thread of the launcher's loop, which must not wait while an agent hangs: once the config is
written, its pipes do not block, and only ``wait``, when all is over, waits for an end. A child is reaped in ``attend``
and nowhere else, so that while its ``code`` is ``None`` its number is no stranger's. What the loop watches is closed in
``wait`` and not before: the number of a descriptor that is closed goes to the next file that is opened.
"""

from __future__ import annotations

import contextlib
import os
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
"""Time for agents that are no longer wanted to kill their workers."""

SAID_BYTES = 2**14
"""Length of what is kept of the words of a starter's child: they are read only if the start fails."""


class AgentStarter(ABC):
    """One way of starting agents. Pure: it makes commands and words."""

    passes_environment = True
    """True if agents get the launcher's variables by themselves."""

    @abstractmethod
    def groups(self, hosts: Sequence[str], here: str) -> list[StarterGroup]:
        """Split the hosts into groups, each served by one child of the launcher; ``here`` is the name of this host."""

    @abstractmethod
    def command(self, hosts: Sequence[str], settings: Settings, module: str = MODULE) -> list[str]:
        """The command that starts an agent, or another ``module``, on each of these hosts; its input becomes theirs."""

    @abstractmethod
    def explain(self, hosts: Sequence[str], code: int, said: str) -> str:
        """The reason why the command ended before the agents did, by its code and its words; with the remedy."""


class StarterGroup(NamedTuple):
    """Hosts that get their agents by one command."""

    starter: AgentStarter
    hosts: tuple[str, ...]


@final
class AgentProcess:
    """A child of the launcher that is, or starts, the agents of some hosts.

    Its output is ``captured`` (it is no worker's), or goes where the launcher's goes. ``death_signal`` is what the
    kernel sends it when the launcher dies, see ``process.spawn``.
    """

    def __init__(
        self, group: StarterGroup, settings: Settings, *, captured: bool, death_signal: int | None = None
    ) -> None:
        self.hosts = group.hosts
        self.code: int | None = None
        """Its exit status, or minus the signal that killed it; ``None`` while it runs."""
        self._starter = group.starter
        self._said = b""
        self._told = self._killed = False
        self._unheard = -1
        """The other end of its input, once that is closed; what it has not read is there."""
        self._captured = self._listening = captured
        reader, self._input = os.pipe()
        writer = None
        if captured:
            self._output, writer = os.pipe()
            os.set_blocking(self._output, False)  # our end only: the child may wait when it writes
        try:
            command = self._starter.command(self.hosts, settings)
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
        """True if its agents get the launcher's variables by themselves."""
        return self._starter.passes_environment

    @property
    def has_ended(self) -> bool:
        """True if nothing need be waited for: it has ended, or was told to."""
        return self.code is not None or self._killed

    @property
    def said(self) -> str:
        """The last line that it wrote."""
        return next(reversed(self._said.decode(errors="replace").strip().splitlines()), "")

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors to watch; when one of them is readable, call ``attend``."""
        return (*((self._ending,) if self.code is None else ()), *((self._output,) if self._listening else ()))

    def config(self, config: LaunchedAgentConfig) -> None:
        """Write the config of its agents to its standard input; if it has died already this does nothing."""
        with contextlib.suppress(BrokenPipeError), open(self._input, "wb", closefd=False) as file:
            file.write(pack(msgspec.json.encode, config, exact=True) + b"\n")
        os.set_blocking(self._input, False)  # only now: the line above has to arrive whole

    def tell(self, text: bytes) -> bytes:
        """Write to the agent's standard input, once it has read its config, without waiting; returns what is left."""
        self._told = True
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            return text[os.write(self._input, text) :]
        return text

    def attend(self) -> None:
        """Take in what it has said, and whether it has ended."""
        # The end before the output: what it wrote is all there then, and is read below for ``explain``.
        if self.code is None and os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        with contextlib.suppress(BlockingIOError):
            while self._listening:
                text = os.read(self._output, 2**16)
                self._said = (self._said + text)[-SAID_BYTES:]
                self._listening = bool(text)

    def explain(self) -> str:
        """The reason why it has ended, in the words of its starter."""
        assert self.code is not None
        return self._starter.explain(self.hosts, self.code, self._said.decode(errors="replace"))

    def kill(self, number: int = signal.SIGTERM) -> None:
        """End it; its agents end then, and the kernel kills their workers."""
        self._killed = True
        if self.code is None:  # not reaped, so its number is still its own
            os.kill(self._pid, number)

    def give_up(self) -> None:
        """End it as its hosts are lost; what it says counts no more, and others may serve them."""
        self.kill()
        self.hosts = ()

    def dismiss(self) -> None:
        """Close its input, which is the end for its agents. Idempotent."""
        if self._unheard >= 0:
            return
        # Opened before our end is closed: with the last descriptor the kernel drops what the pipe holds.
        self._unheard = os.open(f"/proc/self/fd/{self._input}", os.O_RDONLY | os.O_NONBLOCK)
        os.close(self._input)

    def wait(self, until_s: float) -> bytes:
        """Wait for its end until ``until_s``, then kill it; returns what it was told and has not read."""
        end = select.poll()  # unlike select(), it takes descriptors of any number
        end.register(self._ending, select.POLLIN)
        if self.code is None and not end.poll(max(0.0, until_s - time.monotonic()) * 1000):
            self.kill(signal.SIGKILL)
            end.poll()
        self.attend()
        self._close_output()
        os.close(self._ending)
        with open(self._unheard, "rb") as file:
            return (file.read() or b"") if self._told else b""  # else it is the config, with the job's secret

    def _close_output(self) -> None:
        if self._captured:
            os.close(self._output)


@final
class Agents:
    """The children of one job, started with the construction; gone, with all agents, when the block is left."""

    def __init__(
        self, groups: Sequence[StarterGroup], settings: Settings, *, captured: bool, death_signal: int | None = None
    ) -> None:
        self._settings, self._death_signal = settings, death_signal
        self._processes: list[AgentProcess] = []
        try:
            for group in groups:
                self._processes.append(AgentProcess(group, settings, captured=captured, death_signal=death_signal))
        except BaseException:  # a Ctrl-C, too: those that have started must not stay
            self.close()
            raise

    def __iter__(self) -> Iterator[AgentProcess]:
        return iter(self._processes)

    def of(self, host: str) -> AgentProcess:
        """The child that started, or is, the agent of ``host``."""
        return next(each for each in self._processes if host in each.hosts)

    def add(self, group: StarterGroup) -> AgentProcess:
        """Start one more, while the job runs."""
        one = AgentProcess(group, self._settings, captured=True, death_signal=self._death_signal)
        self._processes.append(one)
        return one

    def drop(self, agent: AgentProcess) -> None:
        """Free what belongs to this one, which has ended; nobody may look at its descriptors any more."""
        self._processes.remove(agent)
        agent.dismiss()
        agent.wait(time.monotonic())

    def close(self) -> None:
        """Dismiss all, and wait for their ends; what one has not read is printed. Goes on where it was interrupted."""
        until_s = time.monotonic() + END_S
        for each in self._processes:  # all before the first wait, so that they end side by side
            each.dismiss()
        while self._processes:
            print_now(self._processes[0].wait(until_s))
            del self._processes[0]

    def __enter__(self) -> Agents:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def print_now(text: bytes) -> None:
    """Write on standard error, whatever else is written there."""
    with contextlib.suppress(OSError):  # nobody is left to tell
        while text:
            text = text[os.write(2, text) :]
