"""Proposals by DeepHyper's CBO: Bayesian optimisation by extra trees, centralised.

    advisor = DeepHyperAdvisor(space, seed=7)               # pip install 'farandole[deephyper]'
    farandole.search(train, space, advisor=advisor)         # or advisor="cbo"

The method is that of Egele et al., Asynchronous Decentralized Bayesian Optimization for Large Scale Hyperparameter
Optimization, 2023, with one asking process. It does not know rungs: a trial counts with its last value, and running
trials without a value count as bad trials (the constant liar), so that proposals made at the same time differ.
"""

from __future__ import annotations

import hashlib
import math
import tempfile
from typing import Any, final

from farandole.search.advisor import Advisor, Parameters, TrialResult
from farandole.search.space import Choices, Parameter, Space, Value

FAILED = "F"
"""DeepHyper's objective of a trial without a value."""


@final
class DeepHyperAdvisor(Advisor):
    """CBO of DeepHyper. The same seed, number and history give the same proposal."""

    def __init__(self, space: Space, seed: int = 0) -> None:
        self._axes = {name: _Axis(each) for name, each in space.parameters.items()}
        self._seed = seed
        self._outcomes: dict[int, TrialResult] = {}

    def ask(self, number: int) -> Parameters | None:
        """See ``Advisor``."""
        # A new optimizer for each proposal, because an old one cannot replace the results of a trial that went on.
        from deephyper.hpo import CBO, HpProblem

        problem: Any = HpProblem()
        for name, axis in self._axes.items():
            problem.add(axis.bounds, name)
        seed = int.from_bytes(hashlib.blake2b(f"{self._seed} {number}".encode(), digest_size=4).digest(), "big")
        with tempfile.TemporaryDirectory() as folder:
            # By default DeepHyper uses a genetic algorithm to find the best proposal, and the search waits for seconds.
            options = {"acq_optimizer": "sampling", "checkpoint_history_to_csv": False}
            cbo: Any = CBO(problem, random_state=seed, log_dir=folder, **options)
            if told := self._told():
                cbo.tell(told)
            [proposed] = cbo.ask(1)
        return {name: axis.value(proposed[name]) for name, axis in self._axes.items()}

    def tell(self, outcome: TrialResult) -> None:
        """See ``Advisor``."""
        self._outcomes[outcome.number] = outcome

    def _told(self) -> list[tuple[dict[str, Any], float | str]]:
        """Points and objectives of all known trials; DeepHyper maximises objectives."""
        outcomes = [self._outcomes[number] for number in sorted(self._outcomes)]
        found = [_objective(each) for each in outcomes]
        worst = min((each for each in found if isinstance(each, float)), default=FAILED)
        return [
            (
                {name: axis.point(outcome.parameters[name]) for name, axis in self._axes.items()},
                worst if it is None else it,
            )
            for outcome, it in zip(outcomes, found, strict=True)
        ]


@final
class _Axis:
    """One hyper-parameter in DeepHyper's form: a range, or the indices of choices or steps."""

    def __init__(self, parameter: Parameter) -> None:
        self._parameter = parameter
        if isinstance(parameter, Choices):
            self.bounds: Any = [str(i) for i in range(len(parameter.choices))]  # choices may have several types
        elif parameter.low == parameter.high:
            self.bounds = ["0"]
        elif parameter.step:
            self.bounds = (0, int((parameter.high - parameter.low) / parameter.step + 1e-9))
        else:
            kind = int if parameter.whole else float
            ends = kind(parameter.low), kind(parameter.high)
            self.bounds = (*ends, "log-uniform") if parameter.log else ends

    def value(self, point: Any) -> Value:
        """Value of the hyper-parameter at a point of DeepHyper."""
        own = self._parameter
        if isinstance(own, Choices):
            return own.choices[int(point)]
        number = own.low + int(point) * own.step if own.step or own.low == own.high else float(point)
        number = min(max(number, own.low), own.high)
        return round(number) if own.whole else number

    def point(self, value: Value) -> Any:
        """Point of DeepHyper for a value."""
        own = self._parameter
        if isinstance(own, Choices):
            return str(next(i for i, each in enumerate(own.choices) if each == value and type(each) is type(value)))
        if own.low == own.high:
            return "0"
        if own.step:
            return round((float(value) - own.low) / own.step)
        return int(value) if own.whole else float(value)


def _objective(outcome: TrialResult) -> float | str | None:
    """Objective of a trial: its last value, negated; ``None`` for a running trial without a value."""
    last = outcome.values[max(outcome.values)] if outcome.values else None
    if outcome.phase == "failed" or (last is not None and not math.isfinite(last)):
        return FAILED
    if last is None:
        return None if outcome.phase == "running" else FAILED
    return -float(last)
