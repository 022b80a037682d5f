"""Shard tree: one order of adding up a batch's shards, so that any number of workers gets the same bits. Pure.

>>> combine(Shards(0, 5), {Shards(i, i + 1): str(i) for i in range(5)}, "({}+{})".format)
'(((0+1)+(2+3))+4)'

A range of n shards is split in two: the first 2^k, for the largest 2^k < n, and the rest. A worker has a block of
consecutive shards and adds up the ranges of the tree that lie within its block. Ranges that span several workers are
added after the exchange of the partial sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

Value = TypeVar("Value")


class Shards(NamedTuple):
    """Shards ``begin`` to ``end - 1`` of a batch."""

    begin: int
    end: int


def halves(shards: Shards) -> tuple[Shards, Shards]:
    """The two ranges that add up to a range of more than one shard.

    >>> halves(Shards(0, 5))
    (Shards(begin=0, end=4), Shards(begin=4, end=5))
    """
    middle = shards.begin + (1 << ((shards.end - shards.begin - 1).bit_length() - 1))
    return Shards(shards.begin, middle), Shards(middle, shards.end)


def block(rank: int, size: int, count: int) -> Shards:
    """Shards of worker ``rank`` of ``size``, out of ``count``; the first workers have one more.

    >>> [block(rank, 3, 8) for rank in range(3)]
    [Shards(begin=0, end=3), Shards(begin=3, end=6), Shards(begin=6, end=8)]
    """
    each, more = divmod(count, size)
    begin = rank * each + min(rank, more)
    return Shards(begin, begin + each + (rank < more))


def is_tree_of_blocks(size: int, count: int) -> bool:
    """True if each of ``size`` blocks is a range of the tree, and the tree above them is the tree over ``size`` shards.

    >>> is_tree_of_blocks(3, 12), is_tree_of_blocks(3, 8)
    (True, False)
    """
    each, more = divmod(count, size)
    return not more and each & (each - 1) == 0


def cover(whole: Shards, part: Shards) -> list[Shards]:
    """Largest ranges of the tree over ``whole`` that lie within ``part``, in order.

    >>> cover(Shards(0, 8), Shards(3, 6))
    [Shards(begin=3, end=4), Shards(begin=4, end=6)]
    """
    if part.begin <= whole.begin and whole.end <= part.end:
        return [whole]
    if part.end <= whole.begin or whole.end <= part.begin:
        return []
    left, right = halves(whole)
    return cover(left, part) + cover(right, part)


def combine(whole: Shards, sums: Mapping[Shards, Value], add: Callable[[Value, Value], Value]) -> Value:
    """Add up the ``sums`` that cover ``whole``, along the tree; ``add(left, right)`` may change ``left``."""
    if whole in sums:
        return sums[whole]
    left, right = halves(whole)
    return add(combine(left, sums, add), combine(right, sums, add))
