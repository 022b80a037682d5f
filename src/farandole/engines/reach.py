"""Address by which other hosts reach this process, from the kernel's routes and name resolution.

    address = reachable_address(group, exchange)

No interface is probed: the kernel knows which of its addresses it would use towards a peer, without sending a packet.
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
    """Address of this process known without communication: that of an interface, or of the route to the controller.

    ``interface`` is the requested interface, or ""; ``controller`` is the address of the controller, or "".
    """
    if interface:
        return reachable_by(list(interfaces()), interface, "")[0]
    if not controller or is_loopback(controller):
        return ""
    return source_towards(controller.removeprefix("tcp://").rpartition(":")[0].strip("[]"))


def reachable_address(group: Group, exchange: Exchange) -> str:
    """Address at which this member should listen. Collective: all members first exchange their known addresses.

    Tried in this order: the known address of the group (of a requested network interface, or of the route to the
    controller), the route to a peer that knows its address, the route to a peer's host by its name, the name of this
    host. All members use the IP version of the first member with a known address, because members may have reached the
    controller by different versions. Raises ``EngineError`` on a member without any address.
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
    """Source address that the kernel would use towards ``destination``; "" if there is none but the loopback."""
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
    """IP version (address family) of a literal address."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False
