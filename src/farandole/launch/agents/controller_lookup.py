"""Lookup of the run's leader for a leased host: a fixed address for its workers, and the search for the next leader.

    way = ControllerLookup(read, secret, epoch=1, address="tcp://10.0.0.1:7000", patience_s=600.0)
    way.address                     # address for the workers
    way.follow("")                  # the leader is lost: search for the next one
    way.found()                     # its address after it has answered; way.fd is readable then
    way.follow(address)             # after the agent has connected there
    way.close()

Only a leader with a higher epoch than all earlier ones is found, so a leader that was replaced and reconnects is not
followed again.

Threads. The search runs in a thread, because the folder's file system may not answer: it owns ``_epoch``, and puts
addresses in ``_found``, or the reason to give up in ``over``. ``_seeks`` enables it; then it signals ``fd``. It
is a daemon: stuck in the kernel it cannot be joined.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import final

import msgspec

from farandole.control.dial import first_answering
from farandole.control.keys import JobKeys
from farandole.control.wakeup import Wakeup
from farandole.engines.reach import LOOPBACK, source_towards
from farandole.errors import ControlError, FarandoleError
from farandole.launch.agents.forwarder import Forwarder

LOOK_S = 0.5
"""Pause between two reads of the contact file."""

ANSWERS_S = 2.0
"""Time for a leader to answer at the address that it has published."""


@final
class LeaderContact(msgspec.Struct, frozen=True):
    """Contact of the leader with this ``epoch``: its addresses and the job's key."""

    epoch: int
    addresses: list[str]
    secret: str


@final
class ControllerLookup:
    """Lookup of one agent, connected to the leader of ``epoch`` at ``address``. ``read`` may raise or block."""

    def __init__(
        self, read: Callable[[], LeaderContact], secret: str, epoch: int, address: str, patience_s: float
    ) -> None:
        self.patience_s = patience_s
        """Time to wait for the next leader."""
        self.over = ""
        """Reason why no leader will adopt the workers; "" while one may."""
        host = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
        # Not the loopback: other hosts reach the workers at the address from which these reach their leader.
        self._forwarder = Forwarder(source_towards(host) or LOOPBACK)
        self.address = self._forwarder.address
        self._read, self._secret, self._epoch = read, secret, epoch
        self._found: deque[str] = deque()
        self._seeks = threading.Event()
        self._pause = threading.Event()
        self._closed = False
        self._wakeup = Wakeup()
        threading.Thread(target=self._search, name="farandole-next-lead", daemon=True).start()

    def follow(self, address: str) -> None:
        """Forward the workers to the controller at ``address``; "": it is lost, and the search begins."""
        self._forwarder.follow(address)
        if address:
            self._seeks.clear()
        else:
            self._seeks.set()

    def found(self) -> str:
        """Address of a leader found since the last call; "" for none."""
        return self._found.pop() if self._wakeup.clear() and self._found else ""

    @property
    def fd(self) -> int:
        """Descriptor that is readable when ``found`` or ``over`` has something."""
        return self._wakeup.fd

    def close(self) -> None:
        """End the search, and close all connections of the workers."""
        self._forwarder.close()
        self._closed = True
        self._wakeup.close()
        # After ``_closed``: the search, if not stuck in a read, wakes and ends without another read.
        self._seeks.set()
        self._pause.set()

    def _search(self) -> None:
        while not self._closed and not self.over:
            self._seeks.wait()
            if not self._closed and not self._look():
                self._pause.wait(LOOK_S)

    def _look(self) -> bool:
        """Check for a later leader that answers; True if there is one, or if none can adopt the workers."""
        try:
            contact = self._read()
            if contact.epoch <= self._epoch:
                return False
            if contact.secret != self._secret:
                self.over = "the next leader has started from the beginning, and adopts no workers of its predecessor"
            else:
                self._found.append(first_answering(contact.addresses, JobKeys.from_secret(self._secret), ANSWERS_S))
                self._epoch = contact.epoch
        except (FarandoleError, ControlError, OSError):  # not there yet, or unreadable now
            return False
        self._wakeup.signal()
        return True
