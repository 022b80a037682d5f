"""Base class of all messages of the control plane."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all messages. The tag is the class name."""
