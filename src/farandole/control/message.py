"""What all messages of the control plane have in common."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all messages. The tag is the class name."""
