"""Hosts of a training with leases: the leader's own hosts, which stay, and leased hosts, which join and leave.

    hosts = LeasedHosts(Fixed([Host("node1", 4)]))
    hosts.admit(terms)                  # "" or why not; then hosts.look(now) includes terms.host
    hosts.release(terms.host)           # its workers leave at the next commit
    hosts.gone(terms.host)

A connecting agent is admitted once. An agent that reconnects after it was given up is refused, because its lease no
longer counts: its job ends, and the next lease has another name.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import final

from farandole.control.agent_messages import LeaseOffer
from farandole.launch.hosts.discovery import Discovery
from farandole.launch.hosts.plan import Host

LENT = "+"
"""Character that marks names of leased hosts, see ``LeaseOffer.host``."""


@final
class LeasedHosts(Discovery):
    """Hosts of the leader, found by ``own``, then the leased ones, in the order of admission."""

    def __init__(self, own: Discovery) -> None:
        super().__init__("the leader's own")
        self._own = own
        self._found: tuple[Host, ...] | None = None
        self._lent: dict[str, int] = {}
        self._leaving: set[str] = set()
        self._seen: set[str] = set()
        self._is_news = False

    @property
    def deadline_s(self) -> float | None:
        """See ``Discovery``; 0 while there are changes."""
        return 0.0 if self._is_news else self._own.deadline_s

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors of the leader's own discovery."""
        return self._own.fds

    @property
    def leaving(self) -> frozenset[str]:
        """Hosts that must leave and still have agents."""
        return frozenset(self._leaving)

    def admit(self, terms: LeaseOffer) -> str:
        """Admit a leased host; return why it is refused, or ""."""
        if terms.host in self._seen:
            return f"{terms.host} has been here before, and was given up"
        if terms.slots < 1:
            return f"{terms.host} lends {terms.slots} workers"
        self.keep(terms.host, terms.slots)
        return ""

    def keep(self, host: str, slots: int) -> None:
        """Continue with a host that the previous controller admitted."""
        self._seen.add(host)
        self._lent[host] = slots
        self._is_news = True

    def refuse(self, gone: Collection[str]) -> None:
        """Refuse hosts that previous controllers gave up."""
        self._seen.update(gone)

    def release(self, host: str) -> bool:
        """Make the workers of a leased host leave at the next commit; False if it is not leased, or already leaves."""
        if host not in self._lent:
            return False
        del self._lent[host]
        self._leaving.add(host)
        self._is_news = True
        return True

    def gone(self, host: str) -> None:
        """Remove a host whose agent has exited or is lost."""
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
    """True for the name of a leased host."""
    return LENT in host


def title_of(host: str) -> str:
    """Name of the lease of a host, see ``LeaseOffer.title``.

    >>> title_of("node1+812_3.1")
    '812_3'
    """
    return host.partition(LENT)[2].partition(".")[0]
