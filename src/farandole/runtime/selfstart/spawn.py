"""What a process starts for its job where no launcher does: the controller, and an agent on every other host.

    contact = ensure_controller("job", Charge("tcp://*:0", "node-a", 4, secret), settings)
    ensure_agent(AgentCharge("tcp://10.0.0.1:7000", "node-b", secret, os.getpid(), 3.0), settings)

Both are processes of their own, so that they can tell how ours ended. Signals that are for us pass them by; they end
with the job.
"""

from __future__ import annotations

import atexit
import functools
import os
import select
import signal
import subprocess
from typing import Any, final

import msgspec

from farandole.cluster.contact import Contact
from farandole.cluster.environment import CONTROLLER
from farandole.control.entry import entry_command
from farandole.errors import StartError
from farandole.runtime.selfstart.host_socket import claim
from farandole.settings import Settings

CONTROLLER_MODULE = "farandole.runtime.selfstart.own_controller"
AGENT_MODULE = "farandole.runtime.selfstart.host_agent"
EXIT_S = 2.0

FOR_WORKERS = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU
)  # fmt: skip
"""Schedulers send these to every process of a job, to announce its end or ask for a checkpoint; terminals send some."""


@final
class ControllerConfig(msgspec.Struct, frozen=True):
    """What the controller is told on its standard input, as one line of JSON; the input's end tells it to go.

    ``listen`` is where it is to listen, in ZeroMQ's words, and ``host`` how its host is called. ``litter`` are files
    that are to go once all ``expected`` processes have said hello.
    """

    listen: str
    host: str
    expected: int
    secret: str
    litter: list[str] = []


@final
class HostAgentConfig(msgspec.Struct, frozen=True):
    """The same for an agent. It stays as long as ``starter``, or another process that it is told to watch.

    With ``relay`` the workers of its host are reached through it, and ask by the descriptor ``claimed`` where.
    """

    address: str
    host: str
    secret: str
    starter: int
    silence_s: float
    relay: bool = False
    claimed: int = -1


@final
class _Controller:
    """A running controller: the process, and where it is reached."""

    def __init__(self, config: ControllerConfig, settings: Settings) -> None:
        self.process = _start(CONTROLLER_MODULE, settings, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(msgspec.json.encode(config) + b"\n")
        self.process.stdin.flush()
        with self.process.stdout:
            addresses = self.process.stdout.readline()
        if not addresses:
            self.process.stdin.close()
            raise StartError(
                f"the controller, a child of rank 0, could not listen at {config.listen}: it exited with "
                f"{self.process.wait(EXIT_S)} and said why on stderr. {CONTROLLER}, if you set it, must name this host "
                "and a free port"
            )
        self.contact = Contact(msgspec.json.decode(addresses), config.secret)


_controllers: dict[str, _Controller] = {}
_agents: list[subprocess.Popen[bytes]] = []


def ensure_controller(job: str, config: ControllerConfig, settings: Settings) -> Contact:
    """Start the controller of ``job``, unless this process has; returns where it is reached.

    Returns when it listens; raises ``StartError`` if it cannot.
    """
    running = _controllers.get(job)
    if running is None:
        _watch_exit()
        running = _controllers[job] = _Controller(config, settings)
    elif running.process.poll() is not None:
        raise StartError(f"the controller, a child of this process, has ended with {running.process.returncode}")
    return running.contact


def ensure_agent(config: HostAgentConfig, settings: Settings) -> None:
    """Start the agent of this host, unless another process of the job has, or the controller itself is here.

    Returns when it has called the controller: once this worker does, too, the job can begin, and a host that falls
    silent from then on has to be missed.
    """
    with claim(config.secret, config.host) as claimed:
        if claimed is None:
            return
        _watch_exit()
        config = msgspec.structs.replace(config, claimed=claimed.fileno())
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        agent = _start(AGENT_MODULE, settings, pass_fds=[config.claimed], **pipes)
    _agents.append(agent)
    assert agent.stdin is not None
    assert agent.stdout is not None
    with agent.stdout, agent.stdin as pipe:
        pipe.write(msgspec.json.encode(config) + b"\n")
        pipe.flush()
        poll = select.poll()
        poll.register(agent.stdout, select.POLLIN)
        poll.poll(1000 * settings.start_timeout_s)  # for its answer, or its end, which the controller will notice


def _start(module: str, settings: Settings, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        entry_command(module),
        env={**os.environ, **settings.to_environment(Settings.resolve())},
        start_new_session=True,
        **options,
    )


@functools.cache
def _watch_exit() -> None:
    """From the first child on: see controllers out at the interpreter's exit, and forget them in forked children."""
    atexit.register(_end_all)
    os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    """In a forked child: they are the parent's."""
    for process in [*_agents, *(running.process for running in _controllers.values())]:
        process.returncode = 0  # so that subprocess does not miss it here
    _controllers.clear()
    _agents.clear()


def _end_all() -> None:
    """Agents end by themselves when the controller has, or when nobody is left to be watched."""
    while _controllers:
        _, running = _controllers.popitem()
        process = running.process
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(EXIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
