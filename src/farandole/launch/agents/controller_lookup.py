"""Way of a lent host to whoever leads its run: where the workers dial, and the search for the next lead.

    way = ControllerLookup(read, secret, epoch=1, address="tcp://10.0.0.1:7000", patience_s=600.0)
    way.address                     # what workers are told
    way.follow("")                  # the lead is gone: look for the next one
    way.found()                     # its address, once it has answered; way.fd is readable then
    way.follow(address)             # the agent is connected there
    way.close()

Only a lead of a higher epoch than any that was followed is ever found, so that one that was cut off and comes back is
followed no more.

Threads. The search has one, as the file system of the folder may not answer: it owns ``_epoch``, and leaves what it
finds in ``_found``, or the reason why there is no sense in going on in ``over``. ``_seeks`` lets it work; ``fd`` is
rung under ``_lock``, which guards ``_closed`` and the number of that descriptor. It is a daemon: stuck in the kernel it
cannot be joined.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import final

import msgspec

from farandole.control.dial import first_answering
from farandole.control.keys import JobKeys
from farandole.engines.reach import LOOPBACK, source_towards
from farandole.errors import ControlError, FarandoleError
from farandole.launch.agents.forwarder import Forwarder

LOOK_S = 0.5
"""Pause between two looks."""

ANSWERS_S = 2.0
"""Time for a lead to answer that has just said where it is."""


@final
class LeadContact(msgspec.Struct, frozen=True):
    """Contact of a lead, by its ``epoch``: its addresses, and the key that it asks for."""

    epoch: int
    addresses: list[str]
    secret: str


@final
class ControllerLookup:
    """Way of one agent, which is connected to the lead of ``epoch`` at ``address``. ``read`` may raise, or wait."""

    def __init__(
        self, read: Callable[[], LeadContact], secret: str, epoch: int, address: str, patience_s: float
    ) -> None:
        self.patience_s = patience_s
        """Time for the next lead to come."""
        self.over = ""
        """Reason why none will."""
        host = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
        # Not the loopback: other hosts reach the workers by the address that they reach their lead with.
        self._forwarder = Forwarder(source_towards(host) or LOOPBACK)
        self.address = self._forwarder.address
        self._read, self._secret, self._epoch = read, secret, epoch
        self._found: deque[str] = deque()
        self._seeks = threading.Event()
        self._pause = threading.Event()
        self._lock = threading.Lock()
        self._closed = False
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when ``found`` or ``over`` has something."""
        threading.Thread(target=self._search, name="farandole-next-lead", daemon=True).start()

    def follow(self, address: str) -> None:
        """Lead the workers to the controller at ``address``; "": it is gone, and another one is looked for."""
        self._forwarder.follow(address)
        if address:
            self._seeks.clear()
        else:
            self._seeks.set()

    def found(self) -> str:
        """Address of a lead that has come since this was last asked; "" for none."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return ""
        return self._found.pop() if self._found else ""

    def close(self) -> None:
        """End the search, and all connections of the workers."""
        self._forwarder.close()
        with self._lock:
            self._closed = True
            os.close(self.fd)
        # After ``_closed``: the search, if it is not stuck in a read, wakes to an end and not to another look.
        self._seeks.set()
        self._pause.set()

    def _search(self) -> None:
        while not self._closed and not self.over:
            self._seeks.wait()
            if not self._closed and not self._look():
                self._pause.wait(LOOK_S)

    def _look(self) -> bool:
        """Look for a later lead that answers; True if there is one, or none can come."""
        try:
            contact = self._read()
            if contact.epoch <= self._epoch:
                return False
            if contact.secret != self._secret:
                self.over = "the next lead has begun anew, and goes on with no workers of the one before"
            else:
                self._found.append(first_answering(contact.addresses, JobKeys.from_secret(self._secret), ANSWERS_S))
                self._epoch = contact.epoch
        except (FarandoleError, ControlError, OSError):  # it is not there yet, or not to be read now
            return False
        with self._lock:
            if not self._closed:
                os.eventfd_write(self.fd, 1)
        return True
