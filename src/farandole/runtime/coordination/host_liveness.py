"""Liveness of the hosts of a job: which have answered, and which are lost; without any I/O.

    >>> hosts = HostLiveness(silence_s=3.0)
    >>> hosts.expect("b", until_s=30.0)
    >>> hosts.heard("b", now=1.0)
    >>> hosts.lost(now=3.25), hosts.deadline_s
    ([], 4.0)
    >>> [lost.host for lost in hosts.lost(now=4.0)]
    ['b']

Each host has an agent that speaks at least four times within ``silence_s``. A host that is lost stays lost, until it
is readmitted: what it says counts for nothing.

Who asks may have stood still, and have heard nobody meanwhile: what was said waits in the kernel, where the thread that
reads sockets has yet to find it, or the agent has given up and calls again. So no host is lost at first sight. The
first look at one that is silent is due three heartbeats after its last word, and gives it the fourth; a look that comes
more than a heartbeat too late gives it the whole time again, once. A machine that was suspended is no such case: the
clock stands still with it (``CLOCK_MONOTONIC`` of Linux), and hosts have what was left of their time.
"""

from __future__ import annotations

from typing import NamedTuple, final

HEARTBEATS = 4
"""How often an agent speaks within the time after which it would count as lost."""


class LostHost(NamedTuple):
    """A host that will not take part any more, and why."""

    host: str
    reason: str


@final
class HostLiveness:
    """Heartbeats of agents on other hosts than the controller's. On its own host none is needed: it is their parent.

    With ``silence_s=0`` no host is ever lost for its silence.
    """

    def __init__(self, silence_s: float) -> None:
        self._silence_s, self._pause_s = silence_s, silence_s / HEARTBEATS
        self._due_s: dict[str, float] = {}
        self._up: set[str] = set()
        self._gone: set[str] = set()
        self._borne: set[tuple[str, bool]] = set()
        """Hosts that have been given more time since they were last heard, and whether as this process stood still."""

    def expect(self, host: str, until_s: float) -> None:
        """Await the first answer of an agent that was sent for, until ``until_s``."""
        self._due_s[host] = until_s
        self._borne -= {(host, False), (host, True)}

    def readmit(self, host: str) -> None:
        """Forget what became of the last agent of ``host``: another one is sent for."""
        self._gone.discard(host)
        self._up.discard(host)

    def heard(self, host: str, now: float) -> None:
        """Note a message from the agent of ``host``, unless the host is lost."""
        if host in self._gone:
            return
        self._up.add(host)
        if self._silence_s:
            self._due_s[host] = now + self._silence_s - self._pause_s
            self._borne -= {(host, False), (host, True)}
        else:
            self._due_s.pop(host, None)

    def ended(self, host: str) -> None:
        """Note that the agent of ``host`` has ended, which is known by other means than its silence."""
        self._gone.add(host)
        self._borne -= {(host, False), (host, True)}
        self._due_s.pop(host, None)

    def is_up(self, host: str) -> bool:
        """True once its agent has answered, until it is lost or has ended."""
        return host in self._up and host not in self._gone

    @property
    def deadline_s(self) -> float | None:
        """Time at which ``lost`` may find something."""
        return min(self._due_s.values(), default=None)

    def lost(self, now: float) -> list[LostHost]:
        """Hosts lost since the last call. First take in all that has arrived: a heartbeat may wait to be read."""
        overdue = [(host, due_s) for host, due_s in self._due_s.items() if due_s <= now]
        lost = [LostHost(host, self._reason(host)) for host, due_s in overdue if not self._bear(host, now - due_s, now)]
        for host, _ in lost:
            self.ended(host)
        return lost

    def _bear(self, host: str, late_s: float, now: float) -> bool:
        """Give a host more time that is late for the first time since it was heard; False where it has had that."""
        stood_still = late_s > self._pause_s
        if not self._silence_s or (host, stood_still) in self._borne or not (stood_still or host in self._up):
            return False
        self._borne.add((host, stood_still))
        self._due_s[host] = now + (self._silence_s if stood_still else self._pause_s)
        return True

    def _reason(self, host: str) -> str:
        if host in self._up:
            return (
                f"host {host} has not been heard of for {self._silence_s:g} s: it is down, frozen, or cut off "
                "(FARANDOLE_HOST_TIMEOUT_S says how long a host may be silent)"
            )
        return f"host {host} did not answer in time (--start-timeout): its agent could not be started there"
