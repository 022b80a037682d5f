"""Offsets between the clocks of hosts, for texts and pictures that show their times side by side.

stamp = Stamp.now()                         # on the sender's host
offset_s = stamp.offset_s(time.monotonic()) # on the receiver's host, on receipt: add it to the times of this host
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
    """Time of sending, and the clock that it was read from."""

    clock: str
    time_s: float

    @classmethod
    def now(cls) -> Stamp:
        """Current time of this host's clock."""
        return cls(this_clock(), time.monotonic())

    def offset_s(self, received_s: float) -> float:
        """Seconds to add to this host's times to get the sender's; too small by the latency of the message."""
        return 0.0 if self.clock == this_clock() else self.time_s - received_s


@functools.cache
def this_clock() -> str:
    """Name of the clock: equal in two processes if ``time.monotonic()`` is the same clock in both."""
    boot, namespace = "", ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/time")  # containers may have clock offsets of their own
    return f"{boot} {namespace}"
