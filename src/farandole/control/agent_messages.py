"""Messages between agents and the controller; ``messages`` holds all others and the encoding."""

from __future__ import annotations

from typing import TypeAlias, final

import msgspec

from farandole.control.exits import WorkerExited
from farandole.control.message import Message

AGENT = b"agent-"
"""Prefix of the identity of every agent; the name of its host follows."""

RELAY = b"relay-"
"""Prefix of the identity of a host's relay: its agent's connection to the relay tree."""


@final
class LeaseOffer(msgspec.Struct, frozen=True):
    """Offer of a scheduler job to lend a node to a run.

    ``job``, ``index`` (in the job array, -1: in no array) and ``restart`` name the scheduler job; ``nonce`` is unique,
    also if the scheduler reuses the name. The job lends ``slots`` on ``node`` until ``ends_s``, in seconds since 1970
    (0: unknown).
    """

    job: str
    index: int
    restart: int
    nonce: str
    node: str
    slots: int
    ends_s: float = 0.0

    @property
    def title(self) -> str:
        """The scheduler's name of the job: ``812_3``."""
        return self.job if self.index < 0 else f"{self.job}_{self.index}"

    @property
    def host(self) -> str:
        """Unique host name of the leased slots; two leases on one node are two hosts."""
        return f"{self.node}+{self.title}{f'.{self.restart}' if self.restart else ''}"


@final
class AgentHello(Message, frozen=True):
    """An agent is up. ``host`` is the name that its config gives its host; ``relay`` are its relay's addresses, if any.

    An agent that connects to a replacement controller lists its ``running`` and recently ``ended`` workers. An agent
    that a lease started, not the launcher, sends the lease offer as ``lent``. ``ports`` are free on its host.
    """

    host: str
    pid: int
    version: str
    relay: tuple[str, ...] = ()
    running: tuple[Started, ...] = ()
    ended: tuple[WorkerExited, ...] = ()
    lent: LeaseOffer | None = None
    ports: tuple[int, ...] = ()


@final
class SetRelayParent(Message, frozen=True):
    """Parent of the agent's relay: the relay on ``host``, which listens at one of ``addresses``.

    No ``addresses``: the parent is the controller, at the address that the agent uses.
    """

    host: str = ""
    addresses: tuple[str, ...] = ()


@final
class RelayParentLost(Message, frozen=True):
    """The agent's relay lost the connection to its parent, and the workers below it are cut off."""

    reason: str


@final
class Alive(Message, frozen=True):
    """Heartbeat of an agent that had nothing else to send; not used on the controller's own host."""


@final
class WorkerSpec(msgspec.Struct, frozen=True):
    """One worker to start: its global rank at start, its command and the variables that differ from the agent's own."""

    worker_id: int
    command: list[str]
    environment: dict[str, str]


@final
class StartWorkers(Message, frozen=True):
    """Start ``workers``; write their output to ``output_dir`` if given, else to the launcher's standard streams.

    ``nested``: the launcher itself runs in a worker, whose own launcher tags the stream. ``environment`` applies to all
    workers; their own variables override it. ``size`` is the size of the job. Processes that workers leave behind when
    they exit get ``grace_s`` to end.
    """

    workers: list[WorkerSpec]
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    output_dir: str = ""
    timestamps: bool = False
    colour: bool = False
    nested: bool = False
    cwd: str = ""
    size: int = 1
    grace_s: float = 5.0


@final
class Started(Message, frozen=True):
    """A worker process runs."""

    worker_id: int
    pid: int


@final
class Watch(Message, frozen=True):
    """Order to report, by ``Report``, the exit of a process that the agent did not start."""

    worker_id: int
    pid: int


@final
class Report(Message, frozen=True):
    """A worker of the agent's host has exited. A wrapper: messages are encoded as arrays, events as objects."""

    exited: WorkerExited


@final
class Output(Message, frozen=True):
    """Whole lines for the launcher's standard output (``stream`` 0) or standard error (1)."""

    stream: int
    text: bytes


@final
class Written(Message, frozen=True):
    """Acknowledgement of ``size`` bytes of an agent's output that the launcher has written."""

    stream: int
    size: int


@final
class KillWorker(Message, frozen=True):
    """Kill one worker and the processes that it started; the other workers continue."""

    worker_id: int


@final
class PassSignal(Message, frozen=True):
    """Forward signal ``number`` to every worker that has a handler for it."""

    number: int


@final
class StopWorkers(Message, frozen=True):
    """End every worker: SIGTERM, then SIGKILL after ``grace_s``."""

    grace_s: float


@final
class DumpStack(Message, frozen=True):
    """Send the Python stack of the worker ``pid``, which registered ``signal`` and writes to its descriptor ``fd``."""

    worker_id: int
    pid: int
    signal: int
    fd: int


@final
class Stack(Message, frozen=True):
    """Answer to ``DumpStack``: the stack, or the reason why there is none."""

    worker_id: int
    text: str


@final
class Leaving(Message, frozen=True):
    """The scheduler takes the agent's host back; its workers leave the job at their next commit.

    On a leased host the controller sends them that order; on any other host the agent has already done so.
    """


@final
class Goodbye(Message, frozen=True):
    """The agent has ended all workers and is about to exit."""


AgentMessage: TypeAlias = (
    AgentHello | SetRelayParent | RelayParentLost | Alive | StartWorkers | Started | Watch | Report | Output | Written
    | KillWorker | PassSignal | StopWorkers | DumpStack | Stack | Leaving | Goodbye
)  # fmt: skip
