"""Contact of a job's controller (its addresses and the job's secret), and its encoding.

>>> Contact.read("tcp://10.0.0.1:7000,tcp://[fd00::1]:7000", "aa" * 32).addresses
['tcp://10.0.0.1:7000', 'tcp://[fd00::1]:7000']
"""

from __future__ import annotations

import ipaddress
from typing import final

import msgspec

from farandole.errors import StartError


@final
class Contact(msgspec.Struct, frozen=True):
    """All addresses of a controller (use the first that answers), and the secret of its job."""

    addresses: list[str]
    key: str

    @classmethod
    def read(cls, controller: str, key: str) -> Contact:
        """Make it from ``FARANDOLE_CONTROLLER``, a comma-separated list of addresses, and ``FARANDOLE_KEY``."""
        return cls(controller.split(","), key)

    def encode(self) -> bytes:
        """Encode it as bytes for the other processes."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, payload: bytes) -> Contact:
        """Decode such bytes, with optional spaces around them; raises ``StartError`` for any others."""
        try:
            return msgspec.json.decode(payload, type=cls)
        except msgspec.DecodeError as error:
            raise StartError(f"the message from rank 0 names no controller: {error}") from error


def is_loopback(address: str) -> bool:
    """True for an address that only processes of the same host can reach.

    >>> is_loopback("tcp://127.0.0.1:7000"), is_loopback("ipc://@farandole-1f"), is_loopback("tcp://node1:7000")
    (True, True, False)
    """
    if address.startswith("ipc://"):
        return True
    host = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@final
class Meeting(msgspec.Struct, frozen=True):
    """Parameters by which the processes of a job get the contact from the first process.

    ``folder`` is visible to all of them. ``label`` distinguishes jobs of some of the started processes
    (``init(comm=[0, 2])``); "" is the job of all.
    """

    folder: str
    timeout_s: float
    label: str = ""

    @property
    def suffix(self) -> str:
        """Suffix that makes a name unique to this job; "" for the job of all processes."""
        return f"-{self.label}" if self.label else ""
