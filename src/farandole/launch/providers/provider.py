"""Provider: a place where processes can run; abstract interface.

    with LocalProvider(2, output) as provider:
        provider.open(contact, router.send)
        provider.events(now)                                # [HostOffered("node7", 2)]
        provider.start("node7", [WorkerSpec(0, command, {})])
        provider.events(now)                                # [Started(0, pid=4711)]
        ready = router.wait()                               # until one of ``provider.fds`` is readable
        provider.events(now, ready)                         # [WorkerExited(0, code=-9)]

A provider knows how processes start and end on one kind of host: as children, by agents, by tasks of a cluster. It
keeps the handles that this takes, by worker id, and decides nothing: which processes run is a ``Fleet``'s decision.

There are six verbs and five events, and verbs return nothing: all that follows from one is an event, so that a fault
during ``start`` is handled where a fault at any other time is. ``events`` is the only entrance: it takes ready
descriptors, messages of agents and the time, because most events depend on two of these. A worker is named by host and
worker id in ``kill``, too, so that a provider whose agents know their workers needs no table.
"""

from __future__ import annotations

import math
import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, final

from farandole.cluster.contact import Contact
from farandole.control.agent_messages import Started, WorkerSpec
from farandole.control.exits import HostLost, WorkerExited
from farandole.control.process import describe
from farandole.control.run_messages import LeaseView, RunOrder, RunReply
from farandole.runtime.coordination.downlink import Send
from farandole.settings import IDENTITY

if TYPE_CHECKING:
    from typing_extensions import Self

LEAVE_S, END_S = 0.5, 5.0
"""Seconds from ``close`` until processes that still run get SIGTERM, and until they are killed."""


@final
class HostOffered(NamedTuple):
    """The host has ``slots`` for processes now; a later offer of the same host replaces it, and 0 takes it away.

    ``running``: all ordered workers that run there, and ``ended``: some that have exited, if the provider has lost
    sight of the host meanwhile; it may then have lost orders. ``None``: there is nothing to compare.
    """

    host: str
    slots: int
    running: Sequence[Started] | None = None
    ended: Sequence[WorkerExited] = ()


@final
class HostLeaving(NamedTuple):
    """The host must be given back: its workers leave at the next commit, and ``Provider.release`` follows."""

    host: str


ProviderEvent: TypeAlias = HostOffered | HostLeaving | HostLost | Started | WorkerExited
"""``HostLost``: nothing runs there any more. ``Started`` precedes the ``WorkerExited`` of the same worker, if that has
run, and each of the two is reported once."""


class Provider(ABC):
    """Place where processes can run. One thread calls all methods, and must live as long as the processes."""

    slots: Mapping[str, int]
    """Slots of the hosts that are known before ``open``; without any, hosts may be offered at any time."""

    reaches_out = False
    """True if processes may run on other hosts than this one."""

    lends = False
    """True if a scheduler may take hosts back: it sends SIGTERM to all processes there, which they must ignore."""

    heed_s = 0.0
    """Seconds that a process has to heed an interrupt until it is killed; 0: it is killed at once."""

    remedy = "the same call with other hosts goes on"
    """Advice in the error that too few slots are left."""

    def __init__(self) -> None:
        self._news: list[ProviderEvent] = []
        """Events that ``events`` has yet to return."""

    @property
    def fds(self) -> Collection[int]:
        """Descriptors that become readable when there are events; ``events`` may close those that are."""
        return ()

    @property
    def deadline_s(self) -> float:
        """Time at which ``events`` is due."""
        return -math.inf if self._news else math.inf

    @abstractmethod
    def open(self, contact: Contact, send: Send) -> None:
        """Begin to offer hosts. Agents find this process by ``contact``; ``send`` sends them messages."""

    @abstractmethod
    def start(self, host: str, workers: Sequence[WorkerSpec]) -> None:
        """Start processes on an offered host; one that cannot be started is reported as ``WorkerExited``."""

    @abstractmethod
    def kill(self, host: str, worker_id: int, number: int = signal.SIGKILL) -> None:
        """Kill a process and its children, or interrupt it, if the provider has ``heed_s``; its exit is reported."""

    def release(self, host: str) -> None:  # noqa: B027 (hosts of most providers do not leave)
        """Give back a host that is leaving, with all that runs there; ``HostLost`` follows. Idempotent."""

    def want(self, slots: int, busy: Collection[str]) -> None:  # noqa: B027 (most providers offer all that they have)
        """Note that so many slots would be used now, and which hosts have work.

        A provider that can get hosts offers some, or gives some back.
        """

    @abstractmethod
    def events(
        self, now: float, ready: Collection[int] = (), mail: Sequence[tuple[bytes, Any]] = ()
    ) -> list[ProviderEvent]:
        """Events since the last call, in order; ``ready`` descriptors, and ``mail``: messages by identity.

        All messages of agents that have arrived must be in ``mail``, as one may be a heartbeat, and hellos of workers.
        """

    @abstractmethod
    def close(self) -> None:
        """End all processes, which first get some time to exit by themselves. Idempotent."""

    def explain(self, exited: WorkerExited) -> str:
        """Words that follow "the last one", on a process that exited before it connected."""
        return f" {words_of(exited)}"

    def obey(self, order: RunOrder, identity: bytes) -> RunReply | None:
        """Obey the order of a user to get more or fewer hosts, or refuse it.

        ``None``: the reply is sent to ``identity`` once a crash would not lose the order.
        """
        text = "this is a search, which takes the nodes that your jobs lend it: submit further ones, or cancel some"
        return RunReply(False, text)

    def lease_views(self) -> tuple[list[LeaseView], list[str]]:
        """Leases that the provider has, and the last decisions about them, for users."""
        return [], []

    def _told(self) -> list[ProviderEvent]:
        """Take the events that are left to return."""
        news, self._news = self._news, []
        return news

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def words_of(exited: WorkerExited) -> str:
    """Describe an exit in words that follow the name of the process.

    >>> words_of(WorkerExited(3, -9))
    'was killed by SIGKILL'
    """
    return exited.description or exited.error or describe(exited.code)


def environment_of(inherited: Mapping[str, str], python_path: Sequence[str]) -> dict[str, str]:
    """Environment of workers, from that of this process, which may be a worker of another job.

    >>> environment_of({"FARANDOLE_RANK": "1", "PYTHONUNBUFFERED": "0"}, ["/a"])
    {'PYTHONUNBUFFERED': '0', 'PYTHONPATH': '/a'}
    """
    kept = {name: value for name, value in inherited.items() if name not in IDENTITY}
    kept.setdefault("PYTHONUNBUFFERED", "1")
    known = kept.get("PYTHONPATH", "")
    return {**kept, "PYTHONPATH": os.pathsep.join([*python_path, *([known] if known else [])])}


def own_path() -> list[str]:
    """Folders in which this process finds modules; a function that is pickled by name needs them in the workers."""
    return [os.path.abspath(each or ".") for each in sys.path]
