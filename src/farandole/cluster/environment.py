"""Rank, size and job of this process, from the environment variables of its starter.

    >>> plain = Plain({"FARANDOLE_RANK": "1", "FARANDOLE_SIZE": "2", "FARANDOLE_CONTROLLER": "tcp://10.0.0.1:7000",
    ...                "FARANDOLE_KEY": "aa" * 32})
    >>> plain.worker_id, plain.size, plain.spans_hosts
    (1, 2, True)

One class per kind of starter, each in a file of its own unless it only reads the variables below. ``detect`` chooses.
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
    """Names of a starter's variables for rank, size and so on; "" for a value that it does not set.

    ``job`` is the variable with the name of the job, equal on all hosts and unique to the job.
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
"""Variable with the controller's address, ``tcp://host:port``, or several, separated by commas."""

KEY = "FARANDOLE_KEY"
"""Variable with the secret of the job, in hexadecimal."""

LAUNCHED = "FARANDOLE_LAUNCHED"
"""``1`` if a launcher has the controller; otherwise the process of rank 0 starts it."""


WATCHED = "FARANDOLE_WATCHED"
"""``1`` if the controller forwards the workers' metrics: then even a job of one worker connects to it."""

WORKER_ID = "FARANDOLE_WORKER_ID"
"""Number of a worker in an elastic job, never reused within the job."""

CALLER = "FARANDOLE_CALLER"
"""``Contact`` (JSON) of the process with the function of an elastic ``farandole.run``; unset: the controller."""

OUTPUT = "FARANDOLE_OUTPUT"
"""Inodes of the pipes that are a worker's standard output and standard error."""


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
    """A kind of starter, and its settings for this process, from variables alone; only ``share`` communicates.

    Raises ``SettingsError`` for missing or invalid variables, with their names and the remedy.
    """

    name: ClassVar[str]
    remedy: ClassVar[str] = ""
    """Advice how to start a job so that its variables are right."""
    marks: ClassVar[tuple[str, ...]] = (CONTROLLER, KEY, WORKER_ID)
    """Variables, besides those of the vocabulary, that distinguish jobs, or ranks of a job."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables

    @classmethod
    @abstractmethod
    def recognises(cls, variables: Mapping[str, str]) -> bool:
        """True if the variables show that this starter started the process."""

    @property
    @abstractmethod
    def vocabulary(self) -> Vocabulary:
        """Variables that this starter sets."""

    @property
    def worker_id(self) -> int:
        """Rank with which this process was started."""
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
        """Value that is equal in all processes with this rank in this job, and differs in all others."""
        names = (self.vocabulary.job, self.vocabulary.rank, self.vocabulary.size, *self.marks)
        return (self.name, *(self._variables.get(name, "") for name in names))

    @property
    def local_worker_id(self) -> int:
        """Index among the processes of this host, if the starter sets it; else 0."""
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
        """True if a user sends the code to run, cell by cell (notebook)."""
        return False

    @property
    def is_watched(self) -> bool:
        """True if a monitor receives the metrics of the processes, even of a single one."""
        return self._variables.get(WATCHED) == "1" and self.launched

    @property
    def is_elastic(self) -> bool:
        """True if processes may join and leave while the job runs; ``size`` is then the size at this one's start."""
        return False

    @property
    def controller(self) -> str:
        """Address of the controller in the variables; "" if the process that starts it may choose."""
        return self._variables.get(CONTROLLER, "")

    @property
    def key(self) -> str:
        """Secret of the job; "" if the process that starts the controller generates it."""
        return self._variables.get(KEY, "")

    def file(self, meeting: Meeting) -> SharedFile | None:
        """File that ``share`` may create, to be removed once all processes have it; ``None`` if it needs none."""
        return None

    @abstractmethod
    def share(self, contact: Contact | None, meeting: Meeting) -> Contact:
        """Send the ``contact`` from the first process of the job to all others, which pass ``None``; returns it.

        Called again, it returns the latest contact. Raises ``StartError`` if the first process is not there in time.
        """

    def _number(self, variable: str) -> int:
        text = self._variables.get(variable, "")
        if not text.isdecimal():
            raise SettingsError(f"{variable} must be a whole number, found {text!r}. {self.remedy}")
        return int(text)


class ManualEnvironment(Environment):
    """Environment in which variables give every process the controller's address; ``share`` does not communicate."""

    remedy = f"Set {OWN.rank} and {OWN.size} for every process, or start the job with: farandole run -np N COMMAND"
    vocabulary = OWN

    def share(self, contact: Contact | None, meeting: Meeting) -> Contact:
        """Return the ``contact``, or else the contact in the variables."""
        return contact or Contact.read(self.controller, self.key)


@final
class Single(ManualEnvironment):
    """Environment without any variables: a job of one process."""

    name = "single process"
    worker_id = 0
    size = 1
    spans_hosts = False

    @classmethod
    def recognises(cls, variables: Mapping[str, str]) -> bool:  # noqa: ARG003
        """Always true: it is checked last."""
        return True


@final
class Launched(ManualEnvironment):
    """Environment of workers of ``farandole run``: the launcher has the controller."""

    name = "farandole run"
    launched = True

    @classmethod
    def recognises(cls, variables: Mapping[str, str]) -> bool:
        """True if the launcher's variable is set."""
        return variables.get(LAUNCHED) == "1"

    @property
    def worker_id(self) -> int:
        """Rank with which this process was started; in an elastic job its number, which is never reused."""
        return self._number(WORKER_ID) if self.is_elastic else super().worker_id

    @property
    def is_elastic(self) -> bool:
        """True if the launcher has numbered its workers."""
        return WORKER_ID in self._variables


@final
class Plain(ManualEnvironment):
    """Environment given by plain variables: ``FARANDOLE_RANK``, ``_SIZE``, ``_CONTROLLER`` and ``_KEY``.

    Rank 0 starts the controller. A job of size 1 needs neither controller nor key.
    """

    name = "environment variables"

    @classmethod
    def recognises(cls, variables: Mapping[str, str]) -> bool:
        """True if a rank or a size is set."""
        return OWN.rank in variables or OWN.size in variables

    @property
    def spans_hosts(self) -> bool:
        """False if other hosts could not reach the controller's address."""
        return not is_loopback(self.controller)

    @property
    def controller(self) -> str:
        """Address of the controller; raises ``SettingsError`` if it is missing and needed."""
        return self._needed(CONTROLLER, f"export {CONTROLLER}=tcp://HOST:PORT with a free port on the host of rank 0")

    @property
    def key(self) -> str:
        """Secret of the job; raises ``SettingsError`` if it is missing and needed."""
        make = "export FARANDOLE_KEY=\"$(python -c 'import secrets; print(secrets.token_hex(32))')\""
        return self._needed(KEY, f"the same secret for all processes, kept from others: {make}")

    def _needed(self, variable: str, remedy: str) -> str:
        value = self._variables.get(variable, "")
        if not value and self.size > 1:
            raise SettingsError(f"{OWN.size}={self.size}, but {variable} is not set. Set it: {remedy}")
        return value
