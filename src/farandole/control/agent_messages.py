"""Messages between agents and the controller; ``messages`` holds all others, and the way on and off the wire."""

from __future__ import annotations

from typing import TypeAlias, final

import msgspec

from farandole.control.exits import WorkerExited
from farandole.control.message import Message

AGENT = b"agent-"
"""Prefix of the identity of every agent; the name of its host follows."""

RELAY = b"relay-"
"""Prefix of the identity of a host's relay: its agent's connection to the tree of the control plane."""


@final
class LeaseOffer(msgspec.Struct, frozen=True):
    """Terms on which a job of a scheduler lends a node: who it is, and what it gives.

    ``job``, ``index`` (in its array, -1: it is in none) and ``restart`` name it as its scheduler does, ``nonce`` tells
    it from any other that ever had this name. It gives ``slots`` on ``node`` until ``ends_s``, in seconds since 1970
    (0: it does not know).
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
        """The scheduler's name for it: ``812_3``."""
        return self.job if self.index < 0 else f"{self.job}_{self.index}"

    @property
    def host(self) -> str:
        """The name of what it lends. It is no other's: two leases on one node are two hosts."""
        return f"{self.node}+{self.title}{f'.{self.restart}' if self.restart else ''}"


@final
class AgentHello(Message, frozen=True):
    """An agent is up. ``host`` is what it was told its host is called; ``relay`` is where its relay listens, if any.

    One that had another controller before says which workers it has, and which have ended lately. One that nobody has
    sent for says on which terms its host is ``lent``. ``ports`` are free there.
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
    """Your relay's parent is that of ``host``, and listens at one of these addresses.

    None of them: it is the controller, where you have reached it.
    """

    host: str = ""
    addresses: tuple[str, ...] = ()


@final
class RelayParentLost(Message, frozen=True):
    """My relay has lost its parent, and the workers below it are cut off."""

    reason: str


@final
class Alive(Message, frozen=True):
    """An agent on another host than the controller's has been silent for a while, and is well."""


@final
class WorkerSpec(msgspec.Struct, frozen=True):
    """One worker to start: its global rank at start, its command and the variables that differ from the agent's own."""

    worker_id: int
    command: list[str]
    environment: dict[str, str]


@final
class StartWorkers(Message, frozen=True):
    """Start ``workers``; write their output to ``output_dir`` if given, else to the launcher's standard streams.

    ``nested`` if those streams are themselves the output of a worker, whose launcher says which of them it is.
    ``environment`` is for all of them, before their own. ``size`` is that of the job; ``grace_s`` is for what workers
    leave running when they end.
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
    """A worker runs."""

    worker_id: int
    pid: int


@final
class Watch(Message, frozen=True):
    """Tell me, by a ``Report``, when this process of your host has ended; you did not start it."""

    worker_id: int
    pid: int


@final
class Report(Message, frozen=True):
    """A worker of my host has ended. An envelope: messages are arrays, and events objects, as journals show them."""

    exited: WorkerExited


@final
class Output(Message, frozen=True):
    """Whole lines for the launcher's standard output (``stream`` 0) or standard error (1)."""

    stream: int
    text: bytes


@final
class Written(Message, frozen=True):
    """Receipt for ``size`` bytes of an agent's output, which the launcher has written."""

    stream: int
    size: int


@final
class KillWorker(Message, frozen=True):
    """End one worker and what it has started, now; the others go on."""

    worker_id: int


@final
class PassSignal(Message, frozen=True):
    """Send this signal to every worker that has a handler for it."""

    number: int


@final
class StopWorkers(Message, frozen=True):
    """End every worker: TERM, then KILL after ``grace_s``."""

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
    """The stack asked for, or why there is none."""

    worker_id: int
    text: str


@final
class Leaving(Message, frozen=True):
    """A scheduler wants my host back: its workers are to leave at their next commit.

    Those of a host that is lent wait to be told so by you; all others have been told.
    """


@final
class Goodbye(Message, frozen=True):
    """The agent has ended all workers and is about to exit."""


AgentMessage: TypeAlias = (
    AgentHello | SetRelayParent | RelayParentLost | Alive | StartWorkers | Started | Watch | Report | Output | Written
    | KillWorker | PassSignal | StopWorkers | DumpStack | Stack | Leaving | Goodbye
)  # fmt: skip
