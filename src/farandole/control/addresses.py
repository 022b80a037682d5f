"""Addresses by which other hosts may reach this host: all are offered, and a client uses the first that answers.

    >>> endpoints(7000, ["10.0.0.1", "fd77::1", "node1"])
    ['tcp://10.0.0.1:7000', 'tcp://[fd77::1]:7000', 'tcp://node1:7000']

This module probes no address: only the connecting host can know which of them works.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import random
import secrets
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from farandole.errors import UsageError
from farandole.settings import port_range

EVERYWHERE = "tcp://*:0"
"""Address of a controller that other hosts must reach: every interface, IPv4 and IPv6, a free port."""

IFF_UP = 1

OURS = range(15000, 32000)
"""Ports below the ephemeral range of Linux."""


def own_host_only() -> str:
    """New address for a controller that only this host must reach: cheaper than TCP, and without a file.

    It is a Unix socket in the abstract namespace; the name disappears with the socket.
    """
    return f"ipc://@farandole-{secrets.token_hex(8)}"


def everywhere(ports: str) -> str:
    """Address of a controller that other hosts must reach at one of these ``ports``; "": any free port.

    >>> everywhere(""), everywhere("60001-63000")
    ('tcp://*:0', 'tcp://*:60001-63000')
    """
    return f"tcp://*:{ports}" if ports else EVERYWHERE


def ports_in(text: str) -> list[int]:
    """Ports of a range, ``FIRST-LAST``, in random order, because other processes search, too; "": any (0).

    >>> ports_in(""), sorted(ports_in("7001-7003"))
    ([0], [7001, 7002, 7003])
    """
    ports = port_range(text)
    return random.SystemRandom().sample(ports, len(ports))  # not the random state of the script


def free_port(ports: str = "") -> int:
    """A free port of this host, for a process that starts later; 0 if there is none."""
    return next(iter(free_ports(1, ports)), 0)


def free_ports(count: int, ports: str = "") -> tuple[int, ...]:
    """Free ports of this host, ``count`` of them or as many as there are.

    From ``ports``, a range ``FIRST-LAST``; "": from outside the kernel's ephemeral range
    (``net.ipv4.ip_local_port_range``), so that the kernel assigns none of them to another process meanwhile.
    """
    found: list[int] = []
    for port in ports_in(ports) if ports else random.SystemRandom().sample(OURS, 100 + count):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            found.append(port)
        if len(found) == count:
            break
    return tuple(found)


class Interface(NamedTuple):
    """One address of a network interface."""

    name: str
    address: str
    up: bool


def reachable_by(interfaces: Sequence[Interface], only: str, hostname: str) -> list[str]:
    """Addresses to offer: IPv4 before IPv6, and this host's name last. Pure.

    ``only`` is a comma-separated list of interfaces to use; then the host name, which may resolve to another interface,
    is left out. Raises ``UsageError`` if an interface does not exist or all are down.
    """
    wanted = [name.strip() for name in only.split(",") if name.strip()]
    names = dict.fromkeys(interface.name for interface in interfaces)
    for name in wanted:
        if name not in names:
            raise UsageError(
                f"--network-interface {only}: this host has no interface {name}, but {', '.join(names) or 'none'}"
            )
    usable = [each for each in interfaces if each.name in wanted] if wanted else _beyond_this_host(interfaces)
    found = dict.fromkeys(each.address for each in usable if each.up)
    if wanted and not found:
        raise UsageError(f"--network-interface {only}: it has no address, or is down")
    return sorted(found, key=lambda address: ":" in address) + ([] if wanted else [hostname])


def endpoints(port: int, addresses: Sequence[str]) -> list[str]:
    """ZeroMQ endpoints of these addresses at ``port``; IPv6 literals get brackets."""
    return [f"tcp://[{each}]:{port}" if ":" in each else f"tcp://{each}:{port}" for each in addresses]


def own_endpoints(listening: str, only: str = "") -> list[str]:
    """Endpoints by which other hosts reach a socket bound to ``EVERYWHERE``; ``listening`` is its ``LAST_ENDPOINT``."""
    port = int(listening.rpartition(":")[2])
    return endpoints(port, reachable_by(list(interfaces()), only, socket.gethostname()))


def is_own(name: str) -> bool:
    """True if ``name`` resolves to an address of this host (a socket can be bound to it)."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return False
    return any(_can_bind(family, address) for family, _, _, _, address in found)


def _can_bind(family: int, address: tuple[Any, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def _beyond_this_host(interfaces: Sequence[Interface]) -> list[Interface]:
    """Leave out loopback and link-local addresses; the latter need an interface name, which differs by host."""
    addresses = {each: ipaddress.ip_address(each.address) for each in interfaces}
    return [each for each, address in addresses.items() if not address.is_loopback and not address.is_link_local]


# -- getifaddrs(3): Python's standard library names interfaces, but not their addresses -------------------------------


class _IfAddrs(ctypes.Structure):
    """``struct ifaddrs``: the fields that are read here."""


_IfAddrs._fields_ = [
    ("next", ctypes.POINTER(_IfAddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
]


def interfaces() -> Iterator[Interface]:
    """Yield every address of every interface of this host, loopback included."""
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_IfAddrs)()
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"getifaddrs: {os.strerror(number)}")
    try:
        entry = first
        while entry:
            if address := _address_at(entry.contents.address):
                yield Interface(entry.contents.name.decode(), address, bool(entry.contents.flags & IFF_UP))
            entry = entry.contents.next
    finally:
        libc.freeifaddrs(first)


def _address_at(pointer: int | None) -> str:
    """Address in a ``struct sockaddr``; "" if it is neither IPv4 nor IPv6."""
    if not pointer:
        return ""
    (family,) = struct.unpack("=H", ctypes.string_at(pointer, 2))
    if family == socket.AF_INET:
        return socket.inet_ntop(family, ctypes.string_at(pointer + 4, 4))
    if family == socket.AF_INET6:
        return socket.inet_ntop(family, ctypes.string_at(pointer + 8, 16))
    return ""
