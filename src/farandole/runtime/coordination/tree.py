"""Tree of relays: the parent of each, by the order in which they appear; without any I/O.

    >>> tree = Tree(radix=2)
    >>> [tree.add(host) for host in "abcdefg"]
    ['', '', 'a', 'a', 'b', 'b', 'c']

The order in which relays appear is all that counts, so neither their number nor their names need be known beforehand,
and each has its parent as soon as it asks.
"""

from __future__ import annotations

from typing import final


@final
class Tree:
    """Heap of relays: the first ``radix`` are children of the controller, the next ones of these, and so on."""

    def __init__(self, radix: int) -> None:
        self._radix = radix
        self._position: dict[str, int] = {}
        self._hosts: list[str] = []

    def add(self, host: str) -> str:
        """Host whose relay is the parent of this host's; "" is the controller. Asking again changes nothing."""
        if host not in self._position:
            self._position[host] = len(self._hosts)
            self._hosts.append(host)
        parent = self._position[host] // self._radix - 1
        return self._hosts[parent] if parent >= 0 else ""
