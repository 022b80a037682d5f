"""Generation of plans: the same framework, seed and index give the same plan, everywhere and always."""

from __future__ import annotations

import random

from workbench.differential.frameworks import jax_plans, keras_plans
from workbench.differential.frameworks.plan import FrameworkPlan


def generate(framework: str, seed: int, index: int) -> FrameworkPlan:
    """Plan ``index`` of ``seed``."""
    rng = random.Random(f"{framework}.{seed}.{index}")  # noqa: S311 (no secret)
    plans = jax_plans if framework == "jax" else keras_plans
    terms = plans.draw_terms(rng)
    actions = tuple(plans.draw_actions(rng, terms))
    settings: dict[str, int | str] = {}
    if rng.random() < 0.5:
        settings["bucket_bytes"] = rng.choice((16, 64, 1024))
    # Steps are compared at the start of a generation, then now and then, which may miss a spoilt last step.
    if rng.random() < 0.3 or any(each.kind == "spoil" for each in actions):
        settings["check_divergence"] = "every-step"
    return FrameworkPlan(framework, seed, index, terms, actions, settings)
