"""Importance of hyper-parameters, by Optuna's PED-ANOVA, for the page of a search.

study = ValuesAtFirstRung({"lr": {"low": 1e-4, "high": 1.0, "log": True, ...}}, 1, True, [({"lr": 0.1}, 0.25), ...])
importance(study)                           # {"lr": 1.0}; {} for too few trials, or without Optuna

Trials of a search train for different times: only values at the first rung, which all have, can be compared. The method
(Watanabe et al., PED-ANOVA: Efficiently Quantifying Hyperparameter Importance in Arbitrary Subspaces, 2023) compares
the distribution of the best trials with that of all trials.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, final

LEAST_TRIALS = 8
"""Fewest trials for which importance is computed."""


@final
class ValuesAtFirstRung(NamedTuple):
    """Hyper-parameters and values of trials after ``epoch``, with the ``space`` of the search from ``run.json``."""

    space: dict[str, dict[str, Any]]
    epoch: int
    minimize: bool
    trials: list[tuple[dict[str, Any], float]]


def importance(study: ValuesAtFirstRung) -> dict[str, float]:
    """Share of each hyper-parameter in the difference between good and other trials, the largest first; sum 1."""
    sound = [(params, value if study.minimize else -value) for params, value in study.trials if math.isfinite(value)]
    if len(sound) < LEAST_TRIALS or len({value for _, value in sound}) < 2:
        return {}
    try:
        import optuna
        from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
    except ImportError:  # the search ran on another host
        return {}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = {name: _distribution(each) for name, each in study.space.items()}
    made = optuna.create_study()
    made.add_trials(
        optuna.trial.create_trial(params=params, distributions=distributions, value=value) for params, value in sound
    )
    found: dict[str, float] = get_param_importances(made, evaluator=PedAnovaImportanceEvaluator())
    return {name: share for name, share in found.items() if math.isfinite(share)}


def _distribution(told: dict[str, Any]) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if "choices" in told:
        return CategoricalDistribution(told["choices"])
    if told["whole"]:
        return IntDistribution(int(told["low"]), int(told["high"]), told["log"], int(told["step"] or 1))
    return FloatDistribution(told["low"], told["high"], told["log"], told["step"] or None)
