"""Messages between a task of another system's cluster, which lends a slot for a worker, and the process that asked."""

from __future__ import annotations

from typing import TypeAlias, final

from farandole.control.message import Message

SLOT = b"slot-"
"""Prefix of the identity of every slot."""


@final
class SlotHello(Message, frozen=True):
    """I hold ``slot`` for you, on a host that calls itself ``host``; slots with the same ``node`` share it.

    ``command`` starts a worker here. ``devices`` is what ``CUDA_VISIBLE_DEVICES`` says here ("": no GPU was given).
    """

    slot: int
    host: str
    node: str
    command: list[str]
    devices: str = ""


@final
class HostAgent(Message, frozen=True):
    """Run the agent of your host with this config, a line of JSON."""

    config: bytes


@final
class SlotOver(Message, frozen=True):
    """The run is over: end what runs in your slot, and give it back."""


SlotMessage: TypeAlias = SlotHello | HostAgent | SlotOver
