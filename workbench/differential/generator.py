"""Generator of programs: the same seed and index give the same program, everywhere and always.

program = generate(seed=1, index=17, without=("reentrant",))
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from farandole.errors import UsageError
from workbench.differential.building import KINDS, OPTIMIZERS, build
from workbench.differential.draft import Draft
from workbench.differential.events import EVENTS
from workbench.differential.program import Program
from workbench.differential.training import CHANGES, PASSES, ZEROS, train

TABLES = (ZEROS, PASSES, CHANGES, EVENTS)

OTHERS = (
    *("two models", "order of optimizers", "order of parameters", "overlap", "broadcast", "half weights", "double"),
    *("sum", "predivide", "passes", "fp16", "groups", "sparse_as_dense", "process set"),
)

FEATURES = (*(each.feature for table in TABLES for each in table), *OTHERS, *KINDS, *OPTIMIZERS)
"""All features that can be excluded by name."""


def generate(seed: int, index: int, without: Iterable[str] = ()) -> Program:
    """Program ``index`` of ``seed``. Raises ``UsageError`` for an unknown feature."""
    unknown = sorted({*without} - {*FEATURES})
    if unknown:
        raise UsageError(f"no feature {', '.join(unknown)}; there are: {', '.join(sorted({*FEATURES}))}")
    draft = Draft(random.Random(f"{seed}.{index}"), frozenset(without))  # noqa: S311 (no secret)
    build(draft)
    for _ in range(draft.rng.randint(2, 5)):
        draft.take(EVENTS)
        train(draft)
    draft.add("end", "hvd.barrier()")
    return draft.program(seed, index)
