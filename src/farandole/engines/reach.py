"""The address that other hosts reach this process by, as the kernel's routes and name resolution have it.

    address = reachable_address(group, exchange)

No interface is tried: the kernel knows which of its addresses it would use towards a peer, and says so without sending.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket

from farandole.cluster.contact import is_loopback
from farandole.control.addresses import interfaces, reachable_by
from farandole.engines.engine import Exchange, Group
from farandole.errors import EngineError

LOOPBACK = "127.0.0.1"
_ANY_PORT = 9


def known_address(interface: str, controller: str) -> str:
    """The address that a process knows without asking anybody: that of an interface, or its side of a connection.

    ``interface`` names the one that was asked for, or is ""; ``controller`` is where that is, or "".
    """
    if interface:
        return reachable_by(list(interfaces()), interface, "")[0]
    if not controller or is_loopback(controller):
        return ""
    return source_towards(controller.removeprefix("tcp://").rpartition(":")[0].strip("[]"))


def reachable_address(group: Group, exchange: Exchange) -> str:
    """The address at which this member should listen. Collective: each member first says which one it knows of.

    Tried in this order: what the group knows (a network interface that was asked for, or this side of the connection to
    the controller), the route to a peer that knows its address, the route to a peer's host by its name, the name of
    this host. All listen by the same version of IP, that of the first member that knows: each may have found the
    controller by the other. Raises ``EngineError`` on a member that finds nothing.
    """
    if len(set(group.hosts)) == 1:
        return LOOPBACK
    known = "" if _is_loopback(group.address) else group.address
    said = [answer.decode() for answer in exchange(known.encode())]
    family = next((family_of(address) for address in said if address), socket.AF_UNSPEC)
    if known and family_of(known) == family:
        return known
    here = group.hosts[group.rank]
    others = [member for member, host in enumerate(group.hosts) if host != here]
    for destination in (*(said[member] for member in others), *dict.fromkeys(group.hosts[p] for p in others)):
        if destination and (found := source_towards(destination, family)):
            return found
    if found := _own_address(family):
        return found
    raise EngineError(
        f"{group.name(group.rank)} does not know by which address other hosts reach it: no other host's name resolves "
        f"here, nor {socket.gethostname()!r} to anything but the loopback. Name the interface: --network-interface eth0"
    )


def source_towards(destination: str, family: int = socket.AF_UNSPEC) -> str:
    """The address of this host that the kernel would send from to ``destination``; "" if only the loopback, or none."""
    with contextlib.suppress(OSError):
        for found, kind, protocol, _, address in socket.getaddrinfo(destination, _ANY_PORT, family, socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(found, kind, protocol) as asking:
                asking.connect(address)
                source = str(asking.getsockname()[0])
                if not _is_loopback(source):
                    return source
    return ""


def _own_address(family: int) -> str:
    with contextlib.suppress(OSError):
        for *_, address in socket.getaddrinfo(socket.gethostname(), None, family, socket.SOCK_STREAM):
            if not _is_loopback(str(address[0])):
                return str(address[0])
    return ""


def family_of(address: str) -> int:
    """The version of IP of a literal address."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False
