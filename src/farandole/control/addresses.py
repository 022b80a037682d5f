"""Addresses by which other hosts may reach this one: all are offered, and who dials takes the first that answers.

    >>> endpoints(7000, ["10.0.0.1", "fd77::1", "node1"])
    ['tcp://10.0.0.1:7000', 'tcp://[fd77::1]:7000', 'tcp://node1:7000']

Nothing is probed here: which of these works is known only where somebody dials.
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
"""The address for a controller that other hosts have to reach: every interface, IPv4 and IPv6, a free port."""

IFF_UP = 1

OURS = range(15000, 32000)
"""Ports below those that Linux gives away by itself."""


def own_host_only() -> str:
    """A new address for a controller that no other host has to reach: less work for the kernel than TCP, and no file.

    It is a Unix socket in the abstract namespace, which ends with it.
    """
    return f"ipc://@farandole-{secrets.token_hex(8)}"


def everywhere(ports: str) -> str:
    """Address for a controller that other hosts have to reach at one of these ``ports``; "": at any that is free.

    >>> everywhere(""), everywhere("60001-63000")
    ('tcp://*:0', 'tcp://*:60001-63000')
    """
    return f"tcp://*:{ports}" if ports else EVERYWHERE


def ports_in(text: str) -> list[int]:
    """Ports of a range, ``FIRST-LAST``, in an order of chance, as others look for a free one, too; "": any (0).

    >>> ports_in(""), sorted(ports_in("7001-7003"))
    ([0], [7001, 7002, 7003])
    """
    ports = port_range(text)
    return random.SystemRandom().sample(ports, len(ports))  # not the generator of the script


def free_port(ports: str = "") -> int:
    """Port of this host that nobody listens on now, for a process that begins later; 0 if there is none."""
    return next(iter(free_ports(1, ports)), 0)


def free_ports(count: int, ports: str = "") -> tuple[int, ...]:
    """Ports of this host that nobody listens on now, ``count`` of them, or as many as there are.

    Of a range, ``FIRST-LAST``; else none of those that the kernel gives to whoever asks for any
    (``net.ipv4.ip_local_port_range``), so that they are not given away meanwhile.
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
    """The addresses to offer: IPv4 before IPv6, and the name of this host at last. Pure.

    ``only`` names the interfaces to be reached by, with commas between; then the name of the host, which may stand for
    another one, is left out. Raises ``UsageError`` if they do not exist or cannot be reached.
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
    """ZeroMQ endpoints of these addresses at ``port``; literals of IPv6 get brackets."""
    return [f"tcp://[{each}]:{port}" if ":" in each else f"tcp://{each}:{port}" for each in addresses]


def own_endpoints(listening: str, only: str = "") -> list[str]:
    """Endpoints for other hosts of a socket bound to ``EVERYWHERE``; ``listening`` is what ZeroMQ says of it."""
    port = int(listening.rpartition(":")[2])
    return endpoints(port, reachable_by(list(interfaces()), only, socket.gethostname()))


def is_own(name: str) -> bool:
    """True if ``name`` stands for an address of this host: one that a socket can be bound to."""
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
    """Leave out loopback, and addresses of one link: these mean nothing without its name, which differs by host."""
    addresses = {each: ipaddress.ip_address(each.address) for each in interfaces}
    return [each for each, address in addresses.items() if not address.is_loopback and not address.is_link_local]


# -- getifaddrs(3): Python's standard library names interfaces, but not their addresses -------------------------------


class _IfAddrs(ctypes.Structure):
    """``struct ifaddrs``, as far as it is read here."""


_IfAddrs._fields_ = [
    ("next", ctypes.POINTER(_IfAddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
]


def interfaces() -> Iterator[Interface]:
    """Every address of every interface of this host, loopback included."""
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
    """The address in a ``struct sockaddr``; "" for one that is neither IPv4 nor IPv6."""
    if not pointer:
        return ""
    (family,) = struct.unpack("=H", ctypes.string_at(pointer, 2))
    if family == socket.AF_INET:
        return socket.inet_ntop(family, ctypes.string_at(pointer + 4, 4))
    if family == socket.AF_INET6:
        return socket.inet_ntop(family, ctypes.string_at(pointer + 8, 16))
    return ""
