"""Proposals of hyper-parameters: the abstract class, and the one that knows them beforehand.

    advisor = FixedList([{"lr": 0.1}, {"lr": 0.01}])
    advisor.ask(0)                                          # {"lr": 0.1}
    advisor.tell(TrialResult(0, {"lr": 0.1}, {1: 0.9}))         # as often as there is news
    advisor.ask(2)                                          # None: there are no more

Advisors propose, and decide nothing else: rungs, places and sizes of trials are the search's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, final

import msgspec

from farandole.errors import UsageError
from farandole.search.space import Space, Value

Phase: TypeAlias = Literal["running", "paused", "complete", "pruned", "failed"]
"""State of a trial; a paused one may go on, a pruned one was paused when the search ended."""

Parameters: TypeAlias = "dict[str, Value]"


@final
class TrialResult(msgspec.Struct, frozen=True):
    """Known results of a trial: its values by epoch, to be minimised. Until it is over there may be more of them."""

    number: int
    parameters: dict[str, bool | int | float | str]
    values: dict[int, float] = {}
    phase: Phase = "running"


class Advisor(ABC):
    """Source of hyper-parameters, asked by one thread.

    A search that goes on after a crash makes a new advisor and tells it of all trials before it asks: what is proposed
    may depend on the number of the trial, on what was told, and on nothing else, so that a crash changes no proposal.
    The suite ``farandole.testing.advisor_contract`` checks this.
    """

    @abstractmethod
    def ask(self, number: int) -> Parameters | None:
        """Hyper-parameters for trial ``number``; ``None`` if there is nothing left to try. Numbers ascend."""

    @abstractmethod
    def tell(self, outcome: TrialResult) -> None:
        """Take in what is known of a trial, also of one that still runs; it replaces what was told of it before."""


@final
class FixedList(Advisor):
    """Trials that somebody has chosen: each once, in their order.

    >>> FixedList([{"lr": 0.1}]).ask(0)
    {'lr': 0.1}
    """

    def __init__(self, trials: Sequence[Mapping[str, Value]]) -> None:
        self._trials = [dict(each) for each in trials]
        if not self._trials:
            raise UsageError("a list of no trials was given: name the values of at least one")

    def check(self, space: Space) -> None:
        """Raise ``UsageError`` for a trial that is not in ``space``."""
        for each in self._trials:
            space.check(each)

    def ask(self, number: int) -> Parameters | None:
        """See ``Advisor``."""
        return dict(self._trials[number]) if number < len(self._trials) else None

    def tell(self, outcome: TrialResult) -> None:
        """See ``Advisor``; a list learns nothing."""
