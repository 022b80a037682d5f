"""Proposals by Optuna's samplers.

    advisor = OptunaAdvisor(space, "tpe", seed=7)
    advisor.ask(0)                                          # {"lr": 0.0123, ...}

``random`` draws from the space; ``tpe`` learns (Bergstra et al., Algorithms for Hyper-Parameter Optimization, 2011),
also from paused and running trials: running trials count as bad ones (the constant liar), so that proposals made at the
same time differ.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
from collections.abc import Container, Iterator
from typing import Literal, TypeAlias, final

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from farandole.errors import UsageError
from farandole.search.advisor import Advisor, Parameters, TrialResult
from farandole.search.space import Choices, Parameter, Space

Method: TypeAlias = Literal["random", "tpe"]
METHODS = ("random", "tpe")


@final
class OptunaAdvisor(Advisor):
    """Sampler of Optuna by its ``method``. The same seed, number and history give the same proposal."""

    def __init__(self, space: Space, method: str = "tpe", seed: int = 0) -> None:
        if method not in METHODS:
            raise UsageError(
                f"advisor={method!r}: use one of {', '.join(METHODS)}, cbo, a list of trials, or an Advisor"
            )
        self._method, self._seed = method, seed
        self._distributions = {name: distribution(each) for name, each in space.parameters.items()}
        self._known: dict[int, optuna.trial.FrozenTrial] = {}

    def ask(self, number: int) -> Parameters | None:
        """See ``Advisor``."""
        # A new study for each proposal, because a study of Optuna cannot resume a trial that was paused.
        with quiet():
            storage = _KnownTrials([self._known[each] for each in sorted(self._known)])
            study = optuna.create_study(storage=storage, sampler=self._sampler(number))
            return dict(study.ask(self._distributions).params)

    def tell(self, outcome: TrialResult) -> None:
        """See ``Advisor``."""
        self._known[outcome.number] = self._frozen(outcome)

    def _sampler(self, number: int) -> optuna.samplers.BaseSampler:
        seed = int.from_bytes(hashlib.blake2b(f"{self._seed} {number}".encode(), digest_size=4).digest(), "big")
        if self._method == "random":
            return optuna.samplers.RandomSampler(seed=seed)
        return optuna.samplers.TPESampler(seed=seed)

    def _frozen(self, outcome: TrialResult) -> optuna.trial.FrozenTrial:
        last = outcome.values[max(outcome.values)] if outcome.values else math.nan
        state = optuna.trial.TrialState.RUNNING
        if outcome.phase in ("complete", "paused", "pruned"):
            is_complete = outcome.phase == "complete" and math.isfinite(last)
            state = optuna.trial.TrialState.COMPLETE if is_complete else optuna.trial.TrialState.PRUNED
        elif outcome.phase == "failed":
            state = optuna.trial.TrialState.FAIL
        trial = optuna.trial.create_trial(
            state=state,
            value=last if state is optuna.trial.TrialState.COMPLETE else None,
            params=dict(outcome.parameters),
            distributions=self._distributions,
            intermediate_values=dict(outcome.values),
        )
        trial.number = outcome.number + 1  # the proposed trial has number 0
        return trial


@final
class _KnownTrials(optuna.storages.InMemoryStorage):
    """Storage of one study with known trials; ``Study.add_trials`` would copy and check all of them each time."""

    def __init__(self, known: list[optuna.trial.FrozenTrial]) -> None:
        super().__init__()
        self._given = known

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[optuna.trial.TrialState] | None = None
    ) -> list[optuna.trial.FrozenTrial]:
        """See Optuna."""
        own = super().get_all_trials(study_id, deepcopy, states)
        return [*(each for each in self._given if states is None or each.state in states), *own]


def distribution(parameter: Parameter) -> BaseDistribution:
    """Optuna's distribution for a hyper-parameter.

    >>> distribution(Choices(("sgd", "adam")))
    CategoricalDistribution(choices=('sgd', 'adam'))
    """
    if isinstance(parameter, Choices):
        return CategoricalDistribution(parameter.choices)
    if parameter.whole:
        return IntDistribution(int(parameter.low), int(parameter.high), parameter.log, int(parameter.step or 1))
    return FloatDistribution(parameter.low, parameter.high, parameter.log, parameter.step or None)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress Optuna's messages about new studies, but not its warnings."""
    logger = logging.getLogger("optuna")
    before = logger.level
    logger.setLevel(max(before, logging.WARNING))
    try:
        yield
    finally:
        logger.setLevel(before)
