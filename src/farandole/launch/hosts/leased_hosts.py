"""Hosts of a training that are lent to it: those of its lead, which stay, and those of leases, which come and go.

    hosts = LeasedHosts(Fixed([Host("node1", 4)]), guests=True)
    hosts.admit(terms)                  # "" or why not; from here on hosts.look(now) has terms.host, too
    hosts.release(terms.host)           # it is to leave: its workers do so at the next commit
    hosts.gone(terms.host)

An agent that calls is admitted once. One that comes back after it was given up is refused, as what it lent counts for
nothing any more: its job ends, and the next lease has another name.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import final

from farandole.control.agent_messages import LeaseOffer
from farandole.launch.hosts.discovery import Discovery
from farandole.launch.hosts.plan import Host

LENT = "+"
"""Sign in the names of hosts that are lent, see ``LeaseOffer.host``."""


@final
class LeasedHosts(Discovery):
    """Hosts of the lead, which ``own`` finds, and then the lent ones, in the order of their coming."""

    def __init__(self, own: Discovery) -> None:
        super().__init__("the lead's own")
        self._own = own
        self._found: tuple[Host, ...] | None = None
        self._lent: dict[str, int] = {}
        self._leaving: set[str] = set()
        self._seen: set[str] = set()
        self._is_news = False

    @property
    def deadline_s(self) -> float | None:
        """See ``Discovery``; 0 while there is something new."""
        return 0.0 if self._is_news else self._own.deadline_s

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors of the lead's own discovery."""
        return self._own.fds

    @property
    def leaving(self) -> frozenset[str]:
        """Hosts that are to leave, and have agents still."""
        return frozenset(self._leaving)

    def admit(self, terms: LeaseOffer) -> str:
        """Take in a host that is lent; returns why it cannot be, or ""."""
        if terms.host in self._seen:
            return f"{terms.host} has been here before, and was given up"
        if terms.slots < 1:
            return f"{terms.host} lends {terms.slots} workers"
        self.keep(terms.host, terms.slots)
        return ""

    def keep(self, host: str, slots: int) -> None:
        """Go on with a host that the controller before has admitted."""
        self._seen.add(host)
        self._lent[host] = slots
        self._is_news = True

    def refuse(self, gone: Collection[str]) -> None:
        """Refuse hosts that the controllers before have given up."""
        self._seen.update(gone)

    def release(self, host: str) -> bool:
        """Have the workers of a lent host leave at their next commit; False if it is not lent, or leaves already."""
        if host not in self._lent:
            return False
        del self._lent[host]
        self._leaving.add(host)
        self._is_news = True
        return True

    def gone(self, host: str) -> None:
        """Forget a host whose agent has ended, or is lost."""
        self._leaving.discard(host)
        if self._lent.pop(host, None) is not None:
            self._is_news = True

    def hurry(self) -> None:
        """See ``Discovery``."""
        self._own.hurry()

    def inherit(self) -> None:
        """See ``Discovery``."""
        super().inherit()
        self._own.inherit()

    def _find(self, now: float) -> tuple[Host, ...] | None:
        own = self._own.look(now)
        if own is None and not self._is_news:
            return None
        self._found, self._is_news = own if own is not None else self._found, False
        return None if self._found is None else (*self._found, *(Host(*each) for each in self._lent.items()))

    def close(self) -> None:
        """See ``Discovery``."""
        self._own.close()


def is_lent(host: str) -> bool:
    """True for the name of a host that a lease lends."""
    return LENT in host


def title_of(host: str) -> str:
    """Name of the lease that lends a host, see ``LeaseOffer.title``.

    >>> title_of("node1+812_3.1")
    '812_3'
    """
    return host.partition(LENT)[2].partition(".")[0]
