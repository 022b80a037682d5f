"""Arithmetic of training with large batches, for every framework: schedules, noise scale, advice.

from farandole.largebatch import recipe

found = recipe(optimizer="lars", base_lr=0.2, base_batch=512, global_batch=8192, epochs=90)
found.settings, found.schedule                      # and print(found) says why
found.schedule.plot("schedule.png")
"""

from __future__ import annotations

from farandole.largebatch.advice import Advice, Advised, Refusal, advise
from farandole.largebatch.decays import Constant, Cosine, Decay, Exponential, Piecewise, Polynomial
from farandole.largebatch.goodput import Prospect, StepModel, SyncTime, Timing, fit
from farandole.largebatch.noise import Estimate, Estimated, NoEstimate, NoiseEstimator, NormPair, across_ranks
from farandole.largebatch.recipe import Choice, Recipe, recipe
from farandole.largebatch.scaling import BASE_RATES, RULES, Rule, gain
from farandole.largebatch.schedule import Position, Ramp, Schedule, momentum_correction

__all__ = [
    "BASE_RATES",
    "RULES",
    "Advice",
    "Advised",
    "Choice",
    "Constant",
    "Cosine",
    "Decay",
    "Estimate",
    "Estimated",
    "Exponential",
    "NoEstimate",
    "NoiseEstimator",
    "NormPair",
    "Piecewise",
    "Polynomial",
    "Position",
    "Prospect",
    "Ramp",
    "Recipe",
    "Refusal",
    "Rule",
    "Schedule",
    "StepModel",
    "SyncTime",
    "Timing",
    "across_ranks",
    "advise",
    "fit",
    "gain",
    "momentum_correction",
    "recipe",
]
