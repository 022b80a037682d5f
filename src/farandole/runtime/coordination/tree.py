"""Tree of relays: the parent of each relay, by their order of appearance; without any I/O.

    >>> tree = Tree(radix=2)
    >>> [tree.add(host) for host in "abcdefg"]
    ['', '', 'a', 'a', 'b', 'b', 'c']

Only the order of appearance matters, so neither the number nor the names of the relays must be known beforehand, and
each relay gets its parent as soon as it connects.
"""

from __future__ import annotations

from typing import final


@final
class Tree:
    """Heap of relays: the first ``radix`` are children of the controller, the next ones their children, and so on."""

    def __init__(self, radix: int) -> None:
        self._radix = radix
        self._position: dict[str, int] = {}
        self._hosts: list[str] = []

    def add(self, host: str) -> str:
        """Host of the parent of this host's relay; "" is the controller. Idempotent."""
        if host not in self._position:
            self._position[host] = len(self._hosts)
            self._hosts.append(host)
        parent = self._position[host] // self._radix - 1
        return self._hosts[parent] if parent >= 0 else ""
