"""What an agent and the controller say to each other; ``messages`` holds the rest and the way on and off the wire."""

from __future__ import annotations

from typing import final

import msgspec

from farandole.control.message import Message

AGENT = b"agent-"
"""What the identity of every agent begins with; the name of its host follows."""


@final
class AgentHello(Message, frozen=True):
    """An agent is up. ``host`` is what it was told its host is called."""

    host: str
    pid: int
    version: str


@final
class Alive(Message, frozen=True):
    """An agent on another host than the controller's has been silent for a while, and is well."""


@final
class WorkerSpec(msgspec.Struct, frozen=True):
    """One worker to start: its global rank at start, its command and the variables that differ from the agent's own."""

    place: int
    command: list[str]
    environment: dict[str, str]


@final
class StartWorkers(Message, frozen=True):
    """Start these; write their output to ``output_dir`` if given, else to the agent's own standard streams.

    ``size`` is that of the job; ``grace_s`` is for what workers leave running when they end.
    """

    workers: list[WorkerSpec]
    output_dir: str = ""
    timestamps: bool = False
    colour: bool = False
    cwd: str = ""
    size: int = 1
    grace_s: float = 5.0


@final
class Started(Message, frozen=True):
    """A worker runs."""

    place: int
    pid: int


@final
class Watch(Message, frozen=True):
    """Tell me, by ``Exited``, when this process of your host has ended; you did not start it."""

    place: int
    pid: int


@final
class Exited(Message, frozen=True):
    """A worker ended. ``code`` is the exit status, or minus the signal; ``tail`` the last lines of its stderr."""

    place: int
    pid: int
    code: int
    tail: str
    error: str = ""


@final
class StopWorkers(Message, frozen=True):
    """End every worker: TERM, then KILL after ``grace_s``."""

    grace_s: float


@final
class DumpStack(Message, frozen=True):
    """Send the Python stacks of the worker ``pid``, which registered ``signal`` and writes to its descriptor ``fd``."""

    place: int
    pid: int
    signal: int
    fd: int


@final
class Stack(Message, frozen=True):
    """The stacks asked for, or why there are none."""

    place: int
    text: str


@final
class Goodbye(Message, frozen=True):
    """The agent has ended all workers and is about to exit."""
