"""Processes that a worker starts where no launcher does: the controller, and an agent on every other host.

    contact = ensure_controller("job", ControllerConfig("tcp://*:0", "node-a", 4, secret), settings)
    ensure_agent(HostAgentConfig(["tcp://10.0.0.1:7000"], secret, "node-b", starter=os.getpid()), settings)

Both are processes of their own, so that they can tell how ours ended. Signals that are for us pass them by; they end
with the job: after this process, if it left in good order and other ranks are still in the job.

The controller's standard input is a pipe that nobody writes to after the first line. The kernel closes it however this
process ends, and that is what lets the controller end, so nothing else may hold it open: not a forked child
(``_forget``), not a program that is started (the descriptor is not inheritable). An agent needs no such pipe; it
watches this process. All is called by the one thread that joins a job, with the lock of the session; ``_end_all`` by
the interpreter's exit, ``_forget`` in a child with one thread. So the two variables below need no lock.
"""

from __future__ import annotations

import atexit
import contextlib
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
from farandole.runtime.relay.agent import AgentConfig
from farandole.runtime.selfstart.host_socket import claim, name_of
from farandole.settings import Settings

CONTROLLER_MODULE = "farandole.runtime.selfstart.own_controller"
AGENT_MODULE = "farandole.runtime.selfstart.host_agent"
EXIT_S = 2.0
"""How long rank 0 waits at its exit for the other ranks, and so for its controller: most end at about the same time."""

FOR_WORKERS = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU
)  # fmt: skip
"""Signals that schedulers send to every process of a job, for its end or a checkpoint; terminals send some."""


@final
class ControllerConfig(msgspec.Struct, frozen=True):
    """Config of a controller, one line of JSON on its standard input; the end of that input tells it to go.

    ``listen`` is where it is to listen, in ZeroMQ's words, and ``host`` how its host is called. ``litter`` are files
    that are to go once all ``expected`` processes have said hello. With ``in_cells`` they train in those of a notebook.
    """

    listen: str
    host: str
    expected: int
    secret: str
    litter: list[str] = []
    in_cells: bool = False


@final
class HostAgentConfig(AgentConfig, frozen=True):
    """Config of an agent, in the same way. It stays as long as ``starter``, or another process it is told to watch.

    With ``relay`` the workers of its host are reached through it, and ask by the descriptor ``claimed`` where.
    """

    starter: int = -1
    claimed: int = -1


@final
class _Controller:
    """Running controller: the process, and its addresses."""

    def __init__(self, config: ControllerConfig, settings: Settings) -> None:
        self.process = _start(CONTROLLER_MODULE, settings, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(msgspec.json.encode(config) + b"\n")
        self.process.stdin.flush()
        with self.process.stdout:
            addresses = self.process.stdout.readline()
        if not addresses:  # its end: the status cannot be long in coming
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
    """Start the controller of ``job``, unless this process has done so; returns its addresses and key.

    Returns when it listens; raises ``StartError`` if it cannot.
    """
    running = _controllers.get(job)
    if running is None:
        _watch_exit()
        running = _controllers[job] = _Controller(config, settings)
    elif running.process.poll() is not None:
        raise StartError(f"the controller, a child of this process, has ended with {running.process.returncode}")
    return running.contact


def end_controller(job: str) -> None:
    """End the controller of ``job``, if this process has started one; its workers lose it."""
    running = _controllers.pop(job, None)
    if running is not None:
        _close(running.process, kill=True)


def ensure_agent(config: HostAgentConfig, settings: Settings) -> None:
    """Start the agent of this host, unless another process of the job has, or the controller itself is here.

    Returns when it has called the controller: once this worker does, too, the job can begin, and a host that falls
    silent from then on has to be missed.
    """
    with claim(
        name_of(config.secret, config.host, config.addresses[0])
    ) as claimed:  # closed here as soon as the agent has a copy
        if claimed is None:
            return
        _watch_exit()
        config = msgspec.structs.replace(config, claimed=claimed.fileno())
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        agent = _start(AGENT_MODULE, settings, pass_fds=[config.claimed], **pipes)
    _agents.append(agent)  # kept: subprocess warns of a running process that nobody refers to
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
        start_new_session=True,  # a terminal sends its signals to the whole foreground group
        **options,
    )


@functools.cache
def _watch_exit() -> None:
    """Register, at the first child, what is to happen at the interpreter's exit and in forked children."""
    # Once per process, a forked child included: it has inherited the registrations as well as this cache.
    atexit.register(_end_all)
    os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    """Give up, in a forked child, what is the parent's: controllers and agents."""
    for process in [*_agents, *(running.process for running in _controllers.values())]:
        process.returncode = 0  # so that subprocess does not miss it here
    _controllers.clear()  # with the last reference goes this child's copy of the pipe, see above
    _agents.clear()


def _end_all() -> None:
    """Let the controllers end. Agents end by themselves: their controller has gone, or nobody is left to be watched."""
    while _controllers:
        _close(_controllers.popitem()[1].process, kill=False)


def _close(process: subprocess.Popen[bytes], *, kill: bool) -> None:
    """Close the input of a controller, and wait a little for its end; ``kill`` what goes on then for other ranks."""
    assert process.stdin is not None
    process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(EXIT_S)
        return
    if kill:
        process.kill()
        process.wait()
    process.returncode = 0  # so that subprocess does not miss it here
