"""Liveness of the hosts of a job: which hosts have answered, and which are lost; without any I/O.

    >>> hosts = HostLiveness(silence_s=3.0)
    >>> hosts.expect("b", until_s=30.0)
    >>> hosts.heard("b", now=1.0)
    >>> hosts.lost(now=3.25), hosts.deadline_s
    ([], 4.0)
    >>> [lost.host for lost in hosts.lost(now=4.0)]
    ['b']

Each host has an agent that sends at least four messages within ``silence_s``. A lost host stays lost until it is
readmitted: its messages are ignored.

The process that checks may have been stopped, and have received nothing meanwhile: messages wait in the kernel, where
the socket thread has not read them yet, or the agent has given up and reconnects. So the first check never loses a
host. The first check of a silent host is due three heartbeats after its last message, and grants it the fourth; a check
that runs more than a heartbeat too late grants the whole time again, once. A suspended machine is different: its clock
stops, too (``CLOCK_MONOTONIC`` of Linux), and hosts keep the rest of their time.
"""

from __future__ import annotations

from typing import final

from farandole.control.exits import HostLost

HEARTBEATS = 4
"""Number of messages that an agent sends within the silence after which it counts as lost."""


@final
class HostLiveness:
    """Heartbeats of agents on hosts other than the controller's, which is the parent of the agent on its own host.

    With ``silence_s=0`` no host is ever lost for its silence.
    """

    def __init__(self, silence_s: float) -> None:
        self._silence_s, self._pause_s = silence_s, silence_s / HEARTBEATS
        self._due_s: dict[str, float] = {}
        self._up: set[str] = set()
        self._gone: set[str] = set()
        self._borne: set[tuple[str, bool]] = set()
        """Hosts granted more time since their last message, each with True if because this process was stopped."""

    def expect(self, host: str, until_s: float) -> None:
        """Wait for the first message of a started agent until ``until_s``."""
        self._due_s[host] = until_s
        self._borne -= {(host, False), (host, True)}

    def readmit(self, host: str) -> None:
        """Forget the state of the last agent of ``host``: another agent is being started."""
        self._gone.discard(host)
        self._up.discard(host)

    def heard(self, host: str, now: float) -> None:
        """Record a message from the agent of ``host``, unless the host is lost."""
        if host in self._gone:
            return
        self._up.add(host)
        if self._silence_s:
            self._due_s[host] = now + self._silence_s - self._pause_s
            self._borne -= {(host, False), (host, True)}
        else:
            self._due_s.pop(host, None)

    def ended(self, host: str) -> None:
        """Record that the agent of ``host`` has ended, as detected by other means than its silence."""
        self._gone.add(host)
        self._borne -= {(host, False), (host, True)}
        self._due_s.pop(host, None)

    def is_up(self, host: str) -> bool:
        """True once the agent of ``host`` has answered, until it is lost or has ended."""
        return host in self._up and host not in self._gone

    @property
    def deadline_s(self) -> float | None:
        """Time at which ``lost`` may find a lost host."""
        return min(self._due_s.values(), default=None)

    def lost(self, now: float) -> list[HostLost]:
        """Hosts lost since the last call. Read all pending messages first: a heartbeat may be among them."""
        overdue = [(host, due_s) for host, due_s in self._due_s.items() if due_s <= now]
        lost = [HostLost(host, self._reason(host)) for host, due_s in overdue if not self._bear(host, now - due_s, now)]
        for each in lost:
            self.ended(each.host)
        return lost

    def _bear(self, host: str, late_s: float, now: float) -> bool:
        """Grant more time to a host that is late for the first time since its last message; False the second time."""
        stood_still = late_s > self._pause_s
        if not self._silence_s or (host, stood_still) in self._borne or not (stood_still or host in self._up):
            return False
        self._borne.add((host, stood_still))
        self._due_s[host] = now + (self._silence_s if stood_still else self._pause_s)
        return True

    def _reason(self, host: str) -> str:
        if host in self._up:
            return (
                f"host {host} has sent nothing for {self._silence_s:g} s: it is down, frozen, or cut off "
                "(FARANDOLE_HOST_TIMEOUT_S sets how long a host may be silent)"
            )
        return f"host {host} did not answer in time (--start-timeout): its agent could not be started there"
