"""Who has yet to say that something asked of all is done; without any I/O.

    >>> roll_call = RollCall()
    >>> roll_call.begin(7, [1, 2])
    >>> roll_call.answered(1, 7)
    >>> roll_call.finished(), roll_call.gone(2), roll_call.finished(), roll_call.finished()
    (None, None, 7, None)

One at a time: the next question ends the one before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final


@final
class Acknowledgements:
    """Ranks answer by the number of the question; who is gone is not waited for."""

    def __init__(self) -> None:
        self._number: int | None = None
        self._missing: set[int] = set()

    def begin(self, number: int, ranks: Iterable[int]) -> None:
        """These were asked."""
        self._number, self._missing = number, set(ranks)

    def answered(self, rank: int, number: int) -> None:
        """``rank`` has done what was asked under ``number``."""
        if number == self._number:
            self._missing.discard(rank)

    def gone(self, rank: int) -> None:
        """``rank`` has left or ended."""
        self._missing.discard(rank)

    def finished(self) -> int | None:
        """The number of the question, once, when nobody is missing any more."""
        if self._number is None or self._missing:
            return None
        number, self._number = self._number, None
        return number
