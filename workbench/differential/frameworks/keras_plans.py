"""Plans for Keras, from a source of chance."""

from __future__ import annotations

import os
import random

import msgspec

from workbench.differential.frameworks.exchange import draw_verbs
from workbench.differential.frameworks.plan import PlanAction, PlanTerms

OPTIMIZERS = ("sgd", "momentum", "nesterov", "adam")


def draw_terms(rng: random.Random) -> PlanTerms:
    """Terms that go together."""
    op = rng.choice(("Average", "Average", "Sum"))
    process_set = rng.choice(("", "", "", "", "first", "last", "but last"))
    local = rng.choice(("", "", "", "", "scaled", "unscaled")) if not process_set else ""
    clips = ("", "", "norm", "value") if local else ("", "", "global", "norm", "value")  # one norm would differ by rank
    terms = PlanTerms(
        optimizer=rng.choice(OPTIMIZERS),
        rate=rng.choice((0.02, 0.05)),
        clip=rng.choice(clips),
        decay=rng.random() < 0.2,
        op=op,
        predivide=rng.choice((1.0, 1.0, 2.0, 0.5)) if op == "Average" else 1.0,
        compression=rng.choice(("none", "none", "none", "fp16", "bf16")),
        passes=rng.choice((1, 1, 1, 2, 3)),
        passes_how=rng.choice(("sum", "mean", "keras")),
        process_set=process_set,
        uneven=rng.random() < 0.4,
        initial=rng.choice(("same", "broadcast")),
        scaled=rng.random() < 0.2 and not local,  # refused: each rank would decide for itself whether to step
        local=local,
        steps_per_execution=rng.choice((1, 1, 2, 3)),
        eager=rng.random() < 0.15,
        prepares=rng.choice(("", "", "", "", "normalizes", "bins", "draws", "looks up")),
    )
    # A scaled gradient may exceed float16: then the step is skipped, which the oracle does not model.
    overflows = terms.scaled and terms.compression == "fp16"
    compression = "bf16" if overflows else terms.compression
    # On PyTorch, Keras runs one step per call. It implements lookups with TensorFlow, so on others no step has any.
    each = 1 if is_on_torch() else terms.steps_per_execution
    looks_up = terms.prepares == "looks up" and backend() != "tensorflow"
    prepares = "bins" if looks_up else terms.prepares
    return msgspec.structs.replace(terms, compression=compression, steps_per_execution=each, prepares=prepares)


def backend() -> str:
    """Name of Keras's backend."""
    return os.environ.get("KERAS_BACKEND", "torch")


def is_on_torch() -> bool:
    """True where Keras's backend is PyTorch: there a step may lack the gradients of some variables."""
    return backend() == "torch"


def draw_actions(rng: random.Random, terms: PlanTerms) -> list[PlanAction]:
    """Some batches, and what happens between them; the last action may be one that must fail."""
    possible = ["train", "train", "train", "metrics", "broadcast"]
    if not terms.local:
        possible += ["heal", "freeze", "save"] + ([] if terms.process_set else ["reinit"])
    actions = [_train(rng, terms, 0)]
    for i in range(1, rng.randint(2, 5)):
        kind = rng.choice(possible)
        if kind == "train":
            actions.append(_train(rng, terms, i))
        elif kind == "metrics":
            actions.append(PlanAction(kind, i, how=draw_verbs(rng, 4)))
        elif kind == "freeze":
            actions += [PlanAction(kind, i, how=rng.choice((("0",), ("1",), ()))), _train(rng, terms, 10 + i)]
        elif kind in ("save", "reinit"):
            actions += [PlanAction(kind, i), _train(rng, terms, 10 + i)]
        else:
            actions.append(PlanAction(kind, i, steps=rng.randint(1, 3), rank=rng.randint(0, 2)))
    frozen = [each.how for each in actions if each.kind == "freeze"][-1:]
    return [*actions, *_end(rng, terms, is_compared=frozen != [("1",)])]


def _train(rng: random.Random, terms: PlanTerms, number: int) -> PlanAction:
    # Keras itself cannot apply scaled gradients outside of a step on each backend.
    kind = rng.choice(("fit", "fit", "batches", "fit" if terms.scaled else "apply"))
    how: list[str] = []
    if kind == "fit":
        chances = {"warmup": 0.3, "average": 0.5, "broadcast": 0.2}
        how = [name for name, chance in chances.items() if rng.random() < chance]
    elif kind == "apply" and not terms.process_set and rng.random() < 0.3:
        how = ["absent"]
    return PlanAction(kind, number, rng.randint(1, 4), rng.randint(0, 2), tuple(how))


def _end(rng: random.Random, terms: PlanTerms, is_compared: bool) -> list[PlanAction]:
    if terms.process_set or rng.random() < 0.7:
        return []
    if rng.random() < 0.4:
        return [PlanAction("structure", 50, 2, rng.randint(0, 2))]
    # Weights that are not trained are not compared.
    return [PlanAction("spoil", 51, 4, rng.randint(0, 2))] if is_compared else []
