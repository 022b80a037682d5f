"""The network between hosts: a bridge in a namespace of its own, a cable to each host, and their faults.

Nothing appears in the machine's own network namespace, several clusters may use the same addresses at once, and
nothing on a host can reach the outside.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from workbench.cluster.helpers import PATIENCE_S, enter_network, helper, ready
from workbench.cluster.needs import ClusterError, search_path

_SEGMENT_BYTES = 1500 - 72
"""Payload of a full packet, without the headers of IPv6 and TCP, and TCP's timestamps."""


@final
@dataclass(frozen=True)
class Address:
    """Addresses of a host, by its number at the switch: 1 to 254."""

    number: int

    @property
    def ipv4(self) -> str:
        return f"10.77.0.{self.number}"

    @property
    def ipv6(self) -> str:
        return f"fd77::{self.number:x}"

    @property
    def mac(self) -> str:
        """Hardware address, always the same: peers would keep an old one in their caches for seconds after a reboot."""
        return f"02:77:00:00:00:{self.number:02x}"

    @property
    def port(self) -> str:
        """The switch's end of the cable."""
        return f"port{self.number}"


@final
class Network:
    """The bridge in the namespace of process ``switch``; hosts are named by the number of their first process."""

    def __init__(self, switch: int, *, ipv4: bool, ipv6: bool) -> None:
        self._switch = switch
        self._ipv4, self._ipv6 = ipv4, ipv6
        self._delays: dict[Address, subprocess.Popen[bytes]] = {}

    def build(self) -> None:
        """Make the bridge."""
        bridge = "link add switch type bridge stp_state 0 forward_delay 0 mcast_snooping 0"
        _ip(self._switch, [bridge, "link set switch up"])

    def resolve(self, address: Address) -> str:
        """Resolve the name of a host: to its IPv4 address if it has one, as on most clusters."""
        return address.ipv4 if self._ipv4 else address.ipv6

    def plug(self, host: int, address: Address) -> None:
        """Connect a host to the switch, with both ends of the cable created in their namespaces."""
        cable = f"link add {address.port} type veth peer name eth0 address {address.mac} netns {host}"
        _ip(self._switch, [cable, f"link set {address.port} master switch up"])
        families = [f"addr add {address.ipv4}/24 brd + dev eth0"] if self._ipv4 else []
        families += [f"addr add {address.ipv6}/64 dev eth0 nodad"] if self._ipv6 else []
        _ip(host, ["link set lo up", "link set eth0 up", *families])

    def unplug(self, address: Address) -> None:
        """Pull the cable out of the switch."""
        _ip(self._switch, [f"link set {address.port} nomaster"])

    def replug(self, address: Address, hosts: Iterable[int]) -> None:
        """Plug the cable in again; hosts forget failed look-ups, and try again at once, not seconds later."""
        _ip(self._switch, [f"link set {address.port} master switch"])
        for host in hosts:
            _in_network(host, ["ip", "neigh", "flush", "dev", "eth0"])

    def remove(self, address: Address) -> None:
        """Remove the cable for good."""
        self._end_delay(address)
        _ip(self._switch, [f"link del {address.port}"])

    def part(self, host: int, peer: Address) -> None:
        """Drop everything that a host sends to a peer, by a false hardware address in its neighbour table."""
        _ip(host, [f"neigh replace {each} lladdr 02:77:ff:ff:ff:ff dev eth0 nud permanent" for each in self._all(peer)])

    def join(self, host: int, peer: Address) -> None:
        """Undo ``part``."""
        _ip(host, [f"neigh replace {each} lladdr {peer.mac} dev eth0 nud reachable" for each in self._all(peer)])

    def limit(self, host: int, address: Address, rate: str | None) -> None:
        """Limit the rate of a cable in both directions; ``None``: no longer."""
        discipline = f"tbf rate {rate} burst 128kb latency 100ms" if rate else "noqueue"
        for pid, device in ((host, "eth0"), (self._switch, address.port)):
            _in_network(pid, ["tc", "qdisc", "replace", "dev", device, "root", *discipline.split()])

    def delay(self, host: int, address: Address, seconds: float) -> None:
        """Delay what a host receives; 0: no longer."""
        self._end_delay(address)  # waiting packets are lost with the queue; later ones bypass it
        for command in ("iptables", "ip6tables"):
            _in_network(host, [command, "-t", "mangle", "-F", "PREROUTING"])
        if not seconds:
            return
        self._delays[address] = helper("lag.py", "queue", f"{seconds * 1e6:.0f}", network_of=host)
        ready(self._delays[address])  # first: the rule lets packets pass undelayed while no process serves the queue
        for command in ("iptables", "ip6tables"):
            rule = "-A PREROUTING -i eth0 -j NFQUEUE --queue-num 0 --queue-bypass"
            _in_network(host, [command, "-t", "mangle", *rule.split()])

    def close(self) -> None:
        """End the helpers of delays."""
        for address in list(self._delays):
            self._end_delay(address)

    def _end_delay(self, address: Address) -> None:
        if process := self._delays.pop(address, None):
            process.kill()
            process.wait(PATIENCE_S)

    def _all(self, address: Address) -> Iterable[str]:
        return ([address.ipv4] if self._ipv4 else []) + ([address.ipv6] if self._ipv6 else [])


def traffic(host: int) -> tuple[int, int]:
    """Bytes that the interface of a host has received and sent since it booted, link headers included."""
    for line in Path(f"/proc/{host}/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == "eth0":
            fields = counters.split()
            return int(fields[0]), int(fields[8])
    raise ClusterError(f"process {host} has no interface eth0")


def repeated(host: int) -> int:
    """Payload that a host's TCP has retransmitted since it booted: the kernel counts segments, here taken as full."""
    names, values = (line.split() for line in Path(f"/proc/{host}/net/snmp").read_text().splitlines() if "Tcp:" in line)
    return _SEGMENT_BYTES * int(dict(zip(names, values, strict=True))["RetransSegs"])


def _ip(pid: int, lines: Sequence[str]) -> None:
    _in_network(pid, ["ip", "-batch", "-"], "\n".join(lines))


def _in_network(pid: int, command: Sequence[str], text: str = "") -> None:
    inside = [*enter_network(pid), *command]
    environment = {**os.environ, "PATH": search_path()}
    done = subprocess.run(
        inside, input=text, capture_output=True, text=True, timeout=PATIENCE_S, env=environment, check=False
    )
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(command)} failed\n{text}\n{done.stderr}")
