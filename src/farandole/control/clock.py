"""Clocks of several hosts, for texts and pictures that show them side by side.

stamp = Stamp.now()                         # on one host, sent to another
offset_s = stamp.offset_s(time.monotonic()) # there, when it has come: add it to times of that host
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from pathlib import Path
from typing import final

import msgspec


@final
class Stamp(msgspec.Struct, frozen=True, array_like=True):
    """The time at which something was sent, and the clock that showed it."""

    clock: str
    time_s: float

    @classmethod
    def now(cls) -> Stamp:
        """The present, by this host's clock."""
        return cls(this_clock(), time.monotonic())

    def offset_s(self, received_s: float) -> float:
        """Seconds to add to this host's times to have the sender's; too few by the time that the message took."""
        return 0.0 if self.clock == this_clock() else self.time_s - received_s


@functools.cache
def this_clock() -> str:
    """A name that two processes share if ``time.monotonic()`` means the same to both."""
    boot, namespace = "", ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/time")  # containers may have times of their own
    return f"{boot} {namespace}"
