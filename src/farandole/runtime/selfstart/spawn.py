"""Processes that a worker starts in a job without launcher: the controller, and an agent on every other host.

    contact = ensure_controller("job", ControllerConfig("tcp://*:0", "node-a", 4, secret), settings)
    ensure_agent(HostAgentConfig(["tcp://10.0.0.1:7000"], secret, "node-b", starter=os.getpid()), settings)

Both are separate processes, so that they can report the end of this process. They ignore signals sent to the job, and
end with it: after this process, if it left in order and other ranks are still in the job.

The controller's standard input is a pipe, unused after the first line. The kernel closes it however this process ends,
which makes the controller exit, so no other process may hold it open: no forked child (``_forget``), no started program
(the descriptor is not inheritable). An agent needs no such pipe; it watches this process. Only the thread that joins a
job calls this module, with the session's lock; ``_end_all`` runs at the interpreter's exit, ``_forget`` in a child with
one thread. So the two variables below need no lock.
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
"""Time that rank 0 waits at exit for its controller, and so for the other ranks: most exit at about the same time."""

FOR_WORKERS = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU
)  # fmt: skip
"""Signals that schedulers send to every process of a job, to end it or for a checkpoint; terminals send some, too."""


@final
class ControllerConfig(msgspec.Struct, frozen=True):
    """Config of a controller, one line of JSON on its standard input; it exits after that input is closed.

    ``listen``: ZeroMQ address to listen at; ``host``: name of its host; ``litter``: files to delete after all
    ``expected`` processes have sent their ``Hello``; ``in_cells``: the processes train in notebook cells.
    """

    listen: str
    host: str
    expected: int
    secret: str
    litter: list[str] = []
    in_cells: bool = False


@final
class HostAgentConfig(AgentConfig, frozen=True):
    """Config of an agent, passed like ``ControllerConfig``. It runs as long as ``starter`` or another watched process.

    With ``relay`` the workers of its host connect through it; they get its address from the socket ``claimed``.
    """

    starter: int = -1
    claimed: int = -1


@final
class _Controller:
    """Running controller: its process and addresses."""

    def __init__(self, config: ControllerConfig, settings: Settings) -> None:
        self.process = _start(CONTROLLER_MODULE, settings, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(msgspec.json.encode(config) + b"\n")
        self.process.stdin.flush()
        with self.process.stdout:
            addresses = self.process.stdout.readline()
        if not addresses:  # closed: it exits soon
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
    """Start the controller of ``job``, unless this process has already; return its addresses and key.

    Returns after it listens; raises ``StartError`` if it cannot.
    """
    running = _controllers.get(job)
    if running is None:
        _watch_exit()
        running = _controllers[job] = _Controller(config, settings)
    elif running.process.poll() is not None:
        raise StartError(f"the controller, a child of this process, has ended with {running.process.returncode}")
    return running.contact


def end_controller(job: str) -> None:
    """End the controller of ``job``, if this process has started one; its workers lose their controller."""
    running = _controllers.pop(job, None)
    if running is not None:
        _close(running.process, kill=True)


def ensure_agent(config: HostAgentConfig, settings: Settings) -> None:
    """Start the agent of this host, unless another process of the job has, or the controller runs on this host.

    Returns after the agent has sent its ``AgentHello``: when this worker's ``Hello`` follows, the job may begin, and
    from then on the controller must detect a silent host.
    """
    with claim(
        name_of(config.secret, config.host, config.addresses[0])
    ) as claimed:  # closed here after the agent has a copy
        if claimed is None:
            return
        _watch_exit()
        config = msgspec.structs.replace(config, claimed=claimed.fileno())
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        agent = _start(AGENT_MODULE, settings, pass_fds=[config.claimed], **pipes)
    _agents.append(agent)  # kept: subprocess warns about unreferenced running processes
    assert agent.stdin is not None
    assert agent.stdout is not None
    with agent.stdout, agent.stdin as pipe:
        pipe.write(msgspec.json.encode(config) + b"\n")
        pipe.flush()
        poll = select.poll()
        poll.register(agent.stdout, select.POLLIN)
        poll.poll(1000 * settings.start_timeout_s)  # its reply, or its exit, which the controller will notice


def _start(module: str, settings: Settings, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        entry_command(module),
        env={**os.environ, **settings.to_environment(Settings.resolve())},
        start_new_session=True,  # a terminal signals the whole foreground process group
        **options,
    )


@functools.cache
def _watch_exit() -> None:
    """Register handlers for the interpreter's exit and for forked children, at the first child."""
    # Once per process, including forked children: they inherit the registrations together with this cache.
    atexit.register(_end_all)
    os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    """Drop the parent's controllers and agents in a forked child."""
    for process in [*_agents, *(running.process for running in _controllers.values())]:
        process.returncode = 0  # subprocess must not warn about it here
    _controllers.clear()  # also closes this child's copy of the pipe, see the module docstring
    _agents.clear()


def _end_all() -> None:
    """Let the controllers end. Agents exit by themselves: their controller is lost, or no process is left to watch."""
    while _controllers:
        _close(_controllers.popitem()[1].process, kill=False)


def _close(process: subprocess.Popen[bytes], *, kill: bool) -> None:
    """Close the input of a controller, and wait up to ``EXIT_S`` for its exit; then ``kill`` it, or let it run on."""
    assert process.stdin is not None
    process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(EXIT_S)
        return
    if kill:
        process.kill()
        process.wait()
    process.returncode = 0  # subprocess must not warn about it here
