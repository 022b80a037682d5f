"""Slurm's compressed host lists; pure.

    >>> expand("node[01-03,07],login")
    ('node01', 'node02', 'node03', 'node07', 'login')
    >>> repeat("2(x3),1")
    (2, 2, 2, 1)

``scontrol show hostnames`` does the same; unlike it, this module refuses likely typing errors (``n[1-]``).
"""

from __future__ import annotations

import itertools
import re

from farandole.errors import UsageError

MOST_HOSTS = 2**16
"""Largest number of hosts, that of Slurm; a typing error must not fill the memory."""

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_REPEATED = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def split(text: str) -> list[str]:
    """Split a list at the commas outside of brackets.

    >>> split("node[1,3]:2,login")
    ['node[1,3]:2', 'login']
    """
    items, depth = [""], 0
    for character in text:
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            items.append("")
        else:
            items[-1] += character
    return items


def expand(text: str) -> tuple[str, ...]:
    """Expand a list to all its hosts, in order. Raises ``UsageError`` for an invalid list."""
    hosts: list[str] = []
    for item in split(text):
        hosts.extend(_expand_one(item))
        if len(hosts) > MOST_HOSTS:
            raise UsageError(f"the list {text!r} names more than {MOST_HOSTS} hosts")
    return tuple(hosts)


def repeat(text: str) -> tuple[int, ...]:
    """Expand a list of numbers per host, as in ``SLURM_TASKS_PER_NODE``. Raises ``UsageError`` if it is invalid."""
    numbers: list[int] = []
    for item in text.split(","):
        match = _REPEATED.fullmatch(item)
        if match is None or int(match[2] or 1) > MOST_HOSTS:
            raise UsageError(f"{text!r} is no list of numbers as Slurm writes it, such as 2(x3),1")
        numbers += [int(match[1])] * int(match[2] or 1)
    return tuple(numbers)


def _expand_one(item: str) -> list[str]:
    """Expand an item such as ``rack[1-2]node[3,5]``: text and brackets alternate."""
    words = re.split(r"\[([^\[\]]*)\]", item)
    if not item or any(bracket in text for text in words for bracket in "[]"):
        raise _no_host(item)
    choices = [_numbers(word, item) if i % 2 else [word] for i, word in enumerate(words)]
    total = 1
    for choice in choices:
        total *= len(choice)
    if total > MOST_HOSTS:
        raise UsageError(f"{item!r} names more than {MOST_HOSTS} hosts")
    return ["".join(parts) for parts in itertools.product(*choices)]


def _numbers(text: str, item: str) -> list[str]:
    """Expand ranges such as ``01-03,07``; each number has as many digits as the first of its range."""
    found: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise _no_host(item)
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < first + MOST_HOSTS:
            raise _no_host(item)
        found += [str(number).zfill(len(match[1])) for number in range(first, last + 1)]
    return found


def _no_host(item: str) -> UsageError:
    return UsageError(f"{item!r} is no host, and no short form of several such as node[01-04,07]")
