"""Advisors, which propose hyper-parameters: the abstract class, and a fixed list of proposals.

    advisor = FixedList([{"lr": 0.1}, {"lr": 0.01}])
    advisor.ask(0)                                          # {"lr": 0.1}
    advisor.tell(TrialResult(0, {"lr": 0.1}, {1: 0.9}))         # as often as there is news
    advisor.ask(2)                                          # None: there are no more

Advisors only propose: the search decides on rungs, hosts and sizes of trials.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, final

import msgspec

from farandole.errors import UsageError
from farandole.search.space import Space, Value

Phase: TypeAlias = Literal["running", "paused", "complete", "pruned", "failed"]
"""State of a trial; a paused trial may go on, a pruned trial was paused when the search ended."""

Parameters: TypeAlias = "dict[str, Value]"


@final
class TrialResult(msgspec.Struct, frozen=True):
    """Known results of a trial: its values by epoch, to be minimised. A trial that is not over may get more values."""

    number: int
    parameters: dict[str, bool | int | float | str]
    values: dict[int, float] = {}
    phase: Phase = "running"


class Advisor(ABC):
    """Source of hyper-parameters, called from one thread.

    A search that is resumed after a crash makes a new advisor and passes it all trials (``tell``) before it calls
    ``ask``. A proposal may depend only on the number of the trial and on the results passed, so that a crash changes no
    proposal. The suite ``farandole.testing.advisor_contract`` checks this.
    """

    @abstractmethod
    def ask(self, number: int) -> Parameters | None:
        """Hyper-parameters for trial ``number``; ``None`` if there is nothing left to try. Numbers ascend."""

    @abstractmethod
    def tell(self, outcome: TrialResult) -> None:
        """Take the results of a trial, which may still run; they replace earlier results of the same trial."""


@final
class FixedList(Advisor):
    """Trials from a list that the user gives: each once, in the order of the list.

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
