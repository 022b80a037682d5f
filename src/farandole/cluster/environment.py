"""Rank, size and job of this process, by the variables of whatever started it.

    >>> plain = Plain({"FARANDOLE_RANK": "1", "FARANDOLE_SIZE": "2", "FARANDOLE_CONTROLLER": "tcp://10.0.0.1:7000",
    ...                "FARANDOLE_KEY": "aa" * 32})
    >>> plain.worker_id, plain.size, plain.spans_hosts
    (1, 2, True)

One class per way to be started, each in a file of its own unless it only reads the variables below. ``detect`` picks.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, final

import msgspec

from farandole.cluster.contact import Contact, Meeting, is_loopback
from farandole.cluster.shared_file import SharedFile
from farandole.errors import SettingsError
from farandole.topology import Topology


@final
class Vocabulary(msgspec.Struct, frozen=True):
    """The variables by which a starter says who a process is; "" for what it does not say.

    ``job`` names the job, the same on all hosts and to no other job.
    """

    rank: str = ""
    size: str = ""
    local_rank: str = ""
    local_size: str = ""
    cross_rank: str = ""
    cross_size: str = ""
    hostname: str = ""
    job: str = ""


def _vocabulary(prefix: str) -> Vocabulary:
    names = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "hostname")
    return Vocabulary(**{name: f"{prefix}_{name.upper()}" for name in names})


OWN = _vocabulary("FARANDOLE")
HOROVOD = _vocabulary("HOROVOD")
"""The same for scripts that read Horovod's names."""

CONTROLLER = "FARANDOLE_CONTROLLER"
"""The variable for the controller's address, ``tcp://host:port``; several with commas between."""

KEY = "FARANDOLE_KEY"
"""The secret of the job, in hexadecimal."""

LAUNCHED = "FARANDOLE_LAUNCHED"
"""``1`` if a launcher has the controller; otherwise the process of rank 0 starts it."""


WATCHED = "FARANDOLE_WATCHED"
"""``1`` if the controller passes on what the workers tell: then it is of use to one that has no other."""

WORKER_ID = "FARANDOLE_WORKER_ID"
"""The number of a worker in an elastic job; no other worker of the job ever has it."""

CALLER = "FARANDOLE_CALLER"
"""The process that has the function of an elastic ``farandole.run``, a ``Contact`` in JSON; else the controller."""

OUTPUT = "FARANDOLE_OUTPUT"
"""The inodes of the pipes that a worker got as standard output and standard error."""


def variables_for(topology: Topology, controller: str, key: str) -> dict[str, str]:
    """All variables that a launcher sets for the worker at ``topology.rank``; Horovod's names without the key."""
    values = {
        "rank": topology.rank,
        "size": topology.size,
        "local_rank": topology.local_rank,
        "local_size": topology.local_size,
        "cross_rank": topology.cross_rank,
        "cross_size": topology.cross_size,
        "hostname": topology.host,
    }
    told = {CONTROLLER: controller, KEY: key, LAUNCHED: "1"}
    for names in (OWN, HOROVOD):
        told.update({getattr(names, name): str(value) for name, value in values.items()})
    return told


class Environment(ABC):
    """A way to start jobs, and what it tells this process: by variables alone; only ``share`` contacts anybody.

    Raises ``SettingsError`` for variables that are missing or cannot be, naming them and what to do.
    """

    name: ClassVar[str]
    remedy: ClassVar[str] = ""
    """Advice how to start a job so that its variables are right."""
    marks: ClassVar[tuple[str, ...]] = (CONTROLLER, KEY, WORKER_ID)
    """Variables, besides those of the vocabulary, by which jobs, or ranks of one, differ."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables

    @classmethod
    @abstractmethod
    def recognises(cls, variables: Mapping[str, str]) -> bool:
        """True if the variables say that this is what started the process."""

    @property
    @abstractmethod
    def vocabulary(self) -> Vocabulary:
        """The variables that this starter sets."""

    @property
    def worker_id(self) -> int:
        """The rank this process was started as."""
        worker_id, size = self._number(self.vocabulary.rank), self.size
        if worker_id >= size:
            raise SettingsError(
                f"{self.vocabulary.rank}={worker_id} is no rank of a job with {self.vocabulary.size}={size}: ranks "
                f"count from 0 to {size - 1}. {self.remedy}"
            )
        return worker_id

    @property
    def size(self) -> int:
        """Number of processes that were started."""
        size = self._number(self.vocabulary.size)
        if size < 1:
            raise SettingsError(f"{self.vocabulary.size} must be at least 1, found {size}. {self.remedy}")
        return size

    @property
    def identity(self) -> tuple[str, ...]:
        """A value that all processes with this rank of this job share, and no other has."""
        names = (self.vocabulary.job, self.vocabulary.rank, self.vocabulary.size, *self.marks)
        return (self.name, *(self._variables.get(name, "") for name in names))

    @property
    def local_worker_id(self) -> int:
        """Index among the processes of this host, as far as the starter says; 0 if it does not."""
        told = self._variables.get(self.vocabulary.local_rank)
        return self._number(self.vocabulary.local_rank) if told else 0

    @property
    def spans_hosts(self) -> bool:
        """False if all processes are known to be on this host."""
        return self._variables.get(self.vocabulary.local_size) != str(self.size)

    @property
    def host(self) -> str:
        """Name of this host, for texts and for the local and cross ranks."""
        return self._variables.get(OWN.hostname) or socket.gethostname()

    @property
    def launched(self) -> bool:
        """True if a launcher has the controller; otherwise the first process of the job starts it."""
        return False

    @property
    def has_controller(self) -> bool:
        """True if the controller runs before any process calls ``init``."""
        return self.launched

    @property
    def is_interactive(self) -> bool:
        """True if a person sends what the processes run, one cell after another."""
        return False

    @property
    def is_watched(self) -> bool:
        """True if a person or a record gets what the processes tell, be it only one."""
        return self._variables.get(WATCHED) == "1" and self.launched

    @property
    def is_elastic(self) -> bool:
        """True if processes may come and go while the job runs; ``size`` is then what it was when this one started."""
        return False

    @property
    def controller(self) -> str:
        """Address of the controller by the variables; "" if the process that starts it may choose."""
        return self._variables.get(CONTROLLER, "")

    @property
    def key(self) -> str:
        """The job's secret; "" if the process that starts the controller is to make it."""
        return self._variables.get(KEY, "")

    def file(self, meeting: Meeting) -> SharedFile | None:
        """The file that ``share`` may leave, to be removed once all have met; ``None`` if it needs none."""
        return None

    @abstractmethod
    def share(self, contact: Contact | None, meeting: Meeting) -> Contact:
        """Give the ``contact`` from the first process of the job, which knows it, to all others, which say ``None``.

        Called again, it says what is known then. Raises ``StartError`` if the first one has not come in time.
        """

    def _number(self, variable: str) -> int:
        text = self._variables.get(variable, "")
        if not text.isdecimal():
            raise SettingsError(f"{variable} must be a whole number, found {text!r}. {self.remedy}")
        return int(text)


class ManualEnvironment(Environment):
    """All processes are told where the controller is; nothing needs to travel."""

    remedy = f"Set {OWN.rank} and {OWN.size} for every process, or start the job with: farandole run -np N COMMAND"
    vocabulary = OWN

    def share(self, contact: Contact | None, meeting: Meeting) -> Contact:
        """Return the ``contact``, or else the one in the variables."""
        return contact or Contact.read(self.controller, self.key)


@final
class Single(ManualEnvironment):
    """No variable says anything: a job of one process."""

    name = "single process"
    worker_id = 0
    size = 1
    spans_hosts = False

    @classmethod
    def recognises(cls, variables: Mapping[str, str]) -> bool:  # noqa: ARG003
        """Always: it is the last that is asked."""
        return True


@final
class Launched(ManualEnvironment):
    """Started by ``farandole run``: the launcher has the controller."""

    name = "farandole run"
    launched = True

    @classmethod
    def recognises(cls, variables: Mapping[str, str]) -> bool:
        """True if the launcher's mark is there."""
        return variables.get(LAUNCHED) == "1"

    @property
    def worker_id(self) -> int:
        """The rank this process was started as; in an elastic job its number, which no other worker ever has."""
        return self._number(WORKER_ID) if self.is_elastic else super().worker_id

    @property
    def is_elastic(self) -> bool:
        """True if the launcher has numbered its workers."""
        return WORKER_ID in self._variables


@final
class Plain(ManualEnvironment):
    """Started by plain variables: ``FARANDOLE_RANK``, ``_SIZE``, ``_CONTROLLER`` and ``_KEY``.

    Rank 0 starts the controller. A job of size 1 needs neither controller nor key.
    """

    name = "environment variables"

    @classmethod
    def recognises(cls, variables: Mapping[str, str]) -> bool:
        """True if a rank or a size is given."""
        return OWN.rank in variables or OWN.size in variables

    @property
    def spans_hosts(self) -> bool:
        """False if others could not reach the controller's address."""
        return not is_loopback(self.controller)

    @property
    def controller(self) -> str:
        """The address; raises ``SettingsError`` if it is missing and needed."""
        return self._needed(CONTROLLER, f"export {CONTROLLER}=tcp://HOST:PORT with a free port on the host of rank 0")

    @property
    def key(self) -> str:
        """The secret; raises ``SettingsError`` if it is missing and needed."""
        make = "export FARANDOLE_KEY=\"$(python -c 'import secrets; print(secrets.token_hex(32))')\""
        return self._needed(KEY, f"the same secret for all processes, kept from others: {make}")

    def _needed(self, variable: str, remedy: str) -> str:
        value = self._variables.get(variable, "")
        if not value and self.size > 1:
            raise SettingsError(f"{OWN.size}={self.size}, but {variable} is not set. Set it: {remedy}")
        return value
