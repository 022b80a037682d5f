"""Who this process is, as whatever started it says.

    >>> seat = Plain({"FARANDOLE_RANK": "1", "FARANDOLE_SIZE": "2", "FARANDOLE_CONTROLLER": "tcp://10.0.0.1:7000",
    ...               "FARANDOLE_KEY": "aa" * 32})
    >>> seat.place, seat.size, seat.starts_controller
    (1, 2, False)

One class per way to be started, each in a file of its own unless it only reads the variables below. ``detect`` picks.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, final

import msgspec

from farandole.errors import SettingsError
from farandole.topology import Topology


@final
class Vocabulary(msgspec.Struct, frozen=True):
    """The variables that say who a process is: Farandole's own name, and Horovod's for those that scripts read."""

    rank: str
    size: str
    local_rank: str
    local_size: str
    cross_rank: str
    cross_size: str
    hostname: str


OWN = Vocabulary(*(f"FARANDOLE_{name.upper()}" for name in Vocabulary.__struct_fields__))
HOROVOD = Vocabulary(*(f"HOROVOD_{name.upper()}" for name in Vocabulary.__struct_fields__))

CONTROLLER = "FARANDOLE_CONTROLLER"
"""Where the controller listens, ``tcp://host:port``."""

KEY = "FARANDOLE_KEY"
"""The secret of the job, in hexadecimal."""

LAUNCHED = "FARANDOLE_LAUNCHED"
"""``1`` if a launcher has the controller; otherwise the process of rank 0 starts it."""


def variables_for(topology: Topology, controller: str, key: str) -> dict[str, str]:
    """All variables that a launcher sets for the worker at ``topology.rank``; Horovod's names without the key."""
    values = (
        topology.rank,
        topology.size,
        topology.local_rank,
        topology.local_size,
        topology.cross_rank,
        topology.cross_size,
        topology.host,
    )
    told = {CONTROLLER: controller, KEY: key, LAUNCHED: "1"}
    for names in (OWN, HOROVOD):
        told.update({name: str(value) for name, value in zip(msgspec.structs.astuple(names), values, strict=True)})
    return told


class Environment(ABC):
    """The place of this process in its job. Made from the variables alone; nothing is contacted, nothing is written."""

    name: ClassVar[str]

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables

    @classmethod
    @abstractmethod
    def recognises(cls, variables: Mapping[str, str]) -> bool:
        """True if the variables say that this is what started the process."""

    @property
    @abstractmethod
    def place(self) -> int:
        """The rank this process was started as."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many processes were started."""

    @property
    @abstractmethod
    def controller(self) -> str:
        """The address of the controller; "" where there is none."""

    @property
    @abstractmethod
    def key(self) -> str:
        """The job's secret; "" where there is none."""

    @property
    def starts_controller(self) -> bool:
        """True if this process has to start the controller."""
        return False

    @property
    def host(self) -> str:
        """How this host is called in texts and by the local and cross ranks."""
        return self._variables.get(OWN.hostname) or socket.gethostname()


@final
class Single(Environment):
    """No variable says anything: a job of one process."""

    name = "single process"
    place = 0
    size = 1
    controller = ""
    key = ""

    @classmethod
    def recognises(cls, variables: Mapping[str, str]) -> bool:  # noqa: ARG003
        """Always: it is the last that is asked."""
        return True


class _Told(Environment):
    """Reads Farandole's own variables; raises ``SettingsError`` for what is missing or cannot be."""

    @property
    def place(self) -> int:
        place, size = self._number(OWN.rank), self._number(OWN.size)
        if not 0 <= place < size:
            raise SettingsError(
                f"{OWN.rank}={place} is no rank of a job with {OWN.size}={size}: ranks count from 0 to {size - 1}"
            )
        return place

    @property
    def size(self) -> int:
        return self._number(OWN.size)

    @property
    def controller(self) -> str:
        return self._variables.get(CONTROLLER, "")

    @property
    def key(self) -> str:
        return self._variables.get(KEY, "")

    def _number(self, variable: str) -> int:
        text = self._variables.get(variable, "")
        if not text.isdecimal():
            raise SettingsError(
                f"{variable} must be a whole number, found {text!r}: set {OWN.rank} and {OWN.size} for every process, "
                "or start the job with: farandole run -np N COMMAND"
            )
        return int(text)


@final
class Launched(_Told):
    """Started by ``farandole run``: the launcher has the controller."""

    name = "farandole run"

    @classmethod
    def recognises(cls, variables: Mapping[str, str]) -> bool:
        """True if the launcher's mark is there."""
        return variables.get(LAUNCHED) == "1"


@final
class Plain(_Told):
    """Started by plain variables: ``FARANDOLE_RANK``, ``_SIZE``, ``_CONTROLLER`` and ``_KEY``.

    Rank 0 starts the controller. A job of size 1 needs neither controller nor key.
    """

    name = "environment variables"

    @classmethod
    def recognises(cls, variables: Mapping[str, str]) -> bool:
        """True if a rank or a size is given."""
        return OWN.rank in variables or OWN.size in variables

    @property
    def controller(self) -> str:
        """The address; raises ``SettingsError`` if it is missing and needed."""
        return self._needed(CONTROLLER, f"export {CONTROLLER}=tcp://HOST:PORT with a free port on the host of rank 0")

    @property
    def key(self) -> str:
        """The secret; raises ``SettingsError`` if it is missing and needed."""
        make = "export FARANDOLE_KEY=\"$(python -c 'import secrets; print(secrets.token_hex(32))')\""
        return self._needed(KEY, f"the same secret for all processes, kept from others: {make}")

    @property
    def starts_controller(self) -> bool:
        """True on rank 0."""
        return self.size > 1 and self.place == 0

    def _needed(self, variable: str, remedy: str) -> str:
        value = self._variables.get(variable, "")
        if not value and self.size > 1:
            raise SettingsError(f"{OWN.size}={self.size}, but {variable} is not set. Set it: {remedy}")
        return value
