"""Messages between a task of a Spark, Ray or Dask cluster, which provides one worker slot, and the launcher.

The launcher of an elastic job is another process than the one that has asked the cluster: it requests agents there.
"""

from __future__ import annotations

from typing import TypeAlias, final

from farandole.control.message import Message

SLOT = b"slot-"
"""Prefix of the identity of every slot."""


@final
class SlotHello(Message, frozen=True):
    """A task holds ``slot`` on a host with hostname ``host``; slots with the same ``node`` share that host.

    ``command`` starts a worker there. ``devices`` is the task's ``CUDA_VISIBLE_DEVICES`` ("": no GPU is assigned).
    """

    slot: int
    host: str
    node: str
    command: list[str]
    devices: str = ""


@final
class HostAgent(Message, frozen=True):
    """Order to a task: run the agent of its host with this config, a line of JSON."""

    config: bytes


@final
class SlotOver(Message, frozen=True):
    """The run is over: the task ends the processes in its slot and releases the slot."""


@final
class RunAgent(Message, frozen=True):
    """Request of the launcher of an elastic job: run the agent of ``host`` in one of its slots with this config."""

    host: str
    config: bytes


@final
class EndAgent(Message, frozen=True):
    """The launcher no longer needs the agent that it requested on this connection."""


@final
class AgentOver(Message, frozen=True):
    """The agent of a slot has exited, for this ``reason`` if it failed; or a ``RunAgent`` cannot be obeyed."""

    reason: str


SlotMessage: TypeAlias = SlotHello | HostAgent | SlotOver | RunAgent | EndAgent | AgentOver
