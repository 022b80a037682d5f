"""Plans for JAX, from a source of chance."""

from __future__ import annotations

import random

from workbench.differential.frameworks.exchange import draw_verbs
from workbench.differential.frameworks.plan import PlanAction, PlanTerms

OPTIMIZERS = ("sgd", "momentum", "nesterov", "adam")


def draw_terms(rng: random.Random) -> PlanTerms:
    """Terms that go together."""
    overlap = rng.choice((0, 0, 0, 0, 0, 0, 16, 100, 4096))
    op = rng.choice(("Average", "Average", "Sum"))
    passes = rng.choice((1, 1, 2, 3)) if not overlap else 1
    decay = rng.random() < 0.25
    jit = rng.random() < 0.7
    return PlanTerms(
        optimizer=rng.choice(OPTIMIZERS),
        rate=rng.choice((0.02, 0.05)),
        clip=rng.choice(("", "", "global", "value")),
        decay=decay,
        op=op,
        predivide=rng.choice((1.0, 2.0, 0.5)) if op == "Average" and not overlap else 1.0,
        compression=rng.choice(("none", "none", "fp16", "bf16")) if not overlap else "none",
        passes=passes,
        process_set=rng.choice(("", "", "", "", "", "", "first", "last", "but last")),
        uneven=rng.random() < 0.4,
        initial=rng.choice(("same", "broadcast")),
        lag=rng.choice((0, 0, 0, 1, 2)) if not overlap else 0,
        jit=jit,
        donate=jit and rng.random() < 0.4,
        overlap=overlap,
        passes_params=decay or rng.random() < 0.7,
        dtype=rng.choice(("float32", "float32", "float64", "bfloat16", "mixed", "mixed bfloat16")),
        ahead=rng.random() < 0.5,
        averages_loss=rng.random() < 0.4,
    )


def draw_actions(rng: random.Random, terms: PlanTerms) -> list[PlanAction]:
    """Some steps, and what happens between them; the last action may be one that must fail."""
    possible = ["train", "train", "train", "metrics", "metrics"]
    if not terms.lag:  # gradients under way belong to a session, and to no state
        possible += ["broadcast", "heal"] + ([] if terms.process_set else ["reinit"])
    actions = [_train(rng, terms, 0)]
    for i in range(1, rng.randint(2, 5)):
        kind = rng.choice(possible)
        if kind == "train":
            actions.append(_train(rng, terms, i))
        elif kind == "metrics":
            actions.append(PlanAction(kind, i, how=draw_verbs(rng, 5)))
        elif kind == "reinit":
            actions += [PlanAction(kind, i, how=rng.choice(((), ("again",)))), _train(rng, terms, 10 + i)]
        else:
            actions.append(PlanAction(kind, i, steps=rng.randint(1, 3), rank=rng.randint(0, 2)))
    return [*actions, *_end(rng, terms)]


def _train(rng: random.Random, terms: PlanTerms, number: int) -> PlanAction:
    absent = not terms.jit and not terms.overlap and not terms.lag and not terms.process_set and rng.random() < 0.4
    return PlanAction("train", number, rng.randint(1, 4), rng.randint(0, 2), ("absent",) if absent else ())


def _end(rng: random.Random, terms: PlanTerms) -> list[PlanAction]:
    if terms.overlap or terms.process_set or rng.random() < 0.4:
        return []
    if rng.random() < 0.5:
        how = (rng.choice(("shape", "more")),)
        return [PlanAction("structure", 50, 2 * terms.passes, rng.randint(0, 2), how)]
    if not terms.passes_params:
        return []
    return [PlanAction("spoil", 51, (3 + terms.lag) * terms.passes, rng.randint(0, 2))]  # the lag is in steps
