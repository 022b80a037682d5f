"""Acknowledgements of a request to several ranks, until all have answered; without any I/O.

    >>> answers = Acknowledgements()
    >>> answers.begin(7, [1, 2])
    >>> answers.answered(1, 7)
    >>> answers.finished(), answers.gone(2), answers.finished(), answers.finished()
    (None, None, 7, None)

One request at a time: the next request replaces the previous one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final


@final
class Acknowledgements:
    """Ranks acknowledge by the number of the request; ranks that have left are not waited for."""

    def __init__(self) -> None:
        self._number: int | None = None
        self._missing: set[int] = set()

    def begin(self, number: int, ranks: Iterable[int]) -> None:
        """Wait for ``ranks`` to acknowledge the request ``number``, and for no earlier request."""
        self._number, self._missing = number, set(ranks)

    def answered(self, rank: int, number: int) -> None:
        """Record that ``rank`` has done request ``number``; ignored if that is an earlier request."""
        if number == self._number:
            self._missing.discard(rank)

    def gone(self, rank: int) -> None:
        """Stop waiting for ``rank``, which has left or exited."""
        self._missing.discard(rank)

    def finished(self) -> int | None:
        """Return the number of the request, once, when all ranks have acknowledged it; otherwise ``None``."""
        if self._number is None or self._missing:
            return None
        number, self._number = self._number, None
        return number
