"""Oracle: executes a plan for all ranks in this process, in float64, with averages that are sums over a count.

expected = consult(plan, size=3)        # expected.records[rank]["0.train.loss"], expected.due[rank]

It knows no framework, no bucket and no call: only the meaning of a plan.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import final

import numpy as np

from workbench.differential.frameworks.exchange import exchanged, verbs_of
from workbench.differential.frameworks.keras_plans import is_on_torch
from workbench.differential.frameworks.network import (
    Values,
    batch,
    initial,
    loss_and_gradients,
    metric,
    prepared,
)
from workbench.differential.frameworks.optimizers import OracleStepper
from workbench.differential.frameworks.plan import FrameworkPlan, PlanAction, rows_of

EPOCHS, WARMUP_EPOCHS = 2, 1.5
DIVERGENCE, MISMATCH = "divergence", "mismatch"


@final
class Expected:
    """Expected records of each rank, ranks with equal bits, and errors that some ranks must raise."""

    def __init__(self, size: int) -> None:
        self.records: list[dict[str, Values]] = [{} for _ in range(size)]
        self.groups: dict[str, list[list[int]]] = {}
        self.due: dict[int, str] = {}


def consult(plan: FrameworkPlan, size: int) -> Expected:
    """Outcome of ``plan`` on so many ranks."""
    ranks = OracleRanks(plan, size)
    for i, action in enumerate(plan.actions):
        ranks.act(f"{i}.{action.kind}", action)
        if ranks.expected.due:
            break
    return ranks.expected


@final
class OracleRanks:
    """All ranks: their weights, optimizers, and gradients that are computed and not yet applied."""

    def __init__(self, plan: FrameworkPlan, size: int) -> None:
        self.expected = Expected(size)
        self._plan, self._terms, self._size = plan, plan.terms, size
        self._members, self._ranks = plan.members(size), range(size)
        self._weights = [initial(plan.seed + plan.index) for _ in self._ranks]  # those of rank 0, though others differ
        # Neither bins nor vocabularies are variables: only a callback copies them.
        self._has_tables = self._terms.prepares in ("bins", "looks up")
        is_copied = self._terms.initial == "broadcast" and not self._has_tables
        self._adapted = [0 if is_copied else rank for rank in self._ranks]
        self._trained = [0, 1, 2, 3]
        self._begin()

    def _begin(self) -> None:
        """Make new optimizers."""
        chosen = [[each[i] for i in self._trained] for each in self._weights]
        self._steppers = [OracleStepper(self._plan.framework, self._terms, each) for each in chosen]
        self._sums = [[np.zeros_like(w) for w in each] for each in chosen]
        self._passes = 0
        nothing = [[np.zeros_like(w) for w in each] for each in chosen]
        self._flying = deque([nothing] * self._terms.lag)

    def act(self, name: str, action: PlanAction) -> None:
        """Execute one action, and note its results."""
        if action.kind == "structure":
            self._due(MISMATCH, self._size)
        elif action.kind in ("heal", "spoil"):
            self._spoil(action)
        if action.kind == "metrics":
            self._exchange(name, action)
        elif action.kind in ("broadcast", "heal") or "broadcast" in action.how:
            root = action.rank % self._size if action.kind != "heal" else 0
            self._copy(root)
            if not self._has_tables or action.kind != "broadcast":
                self._adapted = [self._adapted[root]] * self._size
        elif action.kind == "freeze":
            self._trained = [i for i in range(4) if str(i // 2) not in action.how]
            self._begin()
        if action.kind in ("train", "spoil", "fit", "batches", "apply", "heal", "structure"):
            self._train(name, action)
        for i in range(4):
            own = self._terms.local and i < 2
            groups = [[rank] for rank in self._ranks if own or rank not in self._members]
            groups += [] if own else [self._members]
            self._record(f"{name}.weight{i}", [each[i] for each in self._weights], groups)
        if self._terms.prepares == "draws":  # no two ranks have the same, even after a broadcast
            self._record(f"{name}.seeds", [np.array([self._size])] * self._size, [list(self._ranks)])

    def _due(self, what: str, ranks: int) -> None:
        if ranks > 1:
            self.expected.due = dict.fromkeys(self._members, what)

    def _spoil(self, action: PlanAction) -> None:
        rank = self._members[action.rank % len(self._members)]
        self._weights[rank] = [w + 0.25 * (i > 1) for i, w in enumerate(self._weights[rank])]
        if action.kind == "spoil":
            self._due(DIVERGENCE, len(self._members))

    def _copy(self, root: int) -> None:
        for rank in self._ranks:
            self._weights[rank] = [each.copy() for each in self._weights[root]]
            self._steppers[rank].copy_from(self._steppers[root])
            self._sums[rank] = [each.copy() for each in self._sums[root]]

    def _exchange(self, name: str, action: PlanAction) -> None:
        arrays = [metric(action.number, rank, self._size, action.how) for rank in self._ranks]
        for verb in verbs_of(action.how):
            found = exchanged(verb, arrays)
            same = not any(a.shape != b.shape or (a != b).any() for a, b in pairwise(found))
            groups = [list(self._ranks)] if same else [[rank] for rank in self._ranks]
            self._record(f"{name}.{verb}", found, groups)

    def _train(self, name: str, action: PlanAction) -> None:
        fits = action.kind in ("fit", "heal", "spoil", "structure") and self._plan.framework == "keras"
        losses: list[list[float]] = []
        for epoch in range(EPOCHS if fits else 1):
            losses = []
            for step in range(action.steps):
                if "warmup" in action.how and step % self._terms.steps_per_execution == 0:  # a call has one rate
                    self._warm(epoch + step / action.steps, action.steps)
                losses.append(self._step(action, step))
        if not losses:
            return
        seen = np.mean(losses, axis=0) if fits else np.array(losses[-1])
        averages = self._terms.averages_loss or "average" in action.how
        if averages:
            seen = np.full(self._size, seen.mean())
        groups = [list(self._ranks)] if averages else [[rank] for rank in self._ranks]
        if action.kind != "apply":
            self._record(f"{name}.loss", list(seen[:, None]), groups)

    def _warm(self, at: float, steps: int) -> None:
        if at >= WARMUP_EPOCHS:
            return
        at = min(at + 1 / steps, WARMUP_EPOCHS)
        rate = self._terms.rate / self._size * (at * (self._size - 1) / WARMUP_EPOCHS + 1)
        for stepper in self._steppers:
            if self._terms.optimizer in ("momentum", "nesterov"):
                stepper.correct_momentum(rate / stepper.rate)
            stepper.rate = rate

    def _step(self, action: PlanAction, step: int) -> list[float]:
        """One batch of every rank; returns the losses before the step."""
        losses, own = self._gradients(action, step)
        is_keras = self._plan.framework == "keras"
        for sums, each in zip(self._sums, self._reduced(own) if is_keras else own, strict=True):
            sums[:] = [a + b for a, b in zip(sums, each, strict=True)]  # Keras accumulates reduced gradients
        self._passes = (self._passes + 1) % self._terms.passes
        if self._passes == 0:
            count = 1 if self._terms.passes_how == "sum" else self._terms.passes
            totals = [[each / count for each in sums] for sums in self._sums]
            self._sums = [[np.zeros_like(each) for each in sums] for sums in self._sums]
            self._flying.append(totals if is_keras else self._reduced(totals))
            lagging = self._flying.popleft()
            mixed = [lagging[r] if r in self._members else totals[r] for r in self._ranks]
            self._apply(mixed, action)  # outside of a process set nothing is sent, so nothing is late
        return losses

    def _gradients(self, action: PlanAction, step: int) -> tuple[list[float], list[list[Values]]]:
        """Loss of every rank, and its own gradients of the trained weights."""
        losses: list[float] = []
        own: list[list[Values]] = []
        for rank in self._ranks:
            x, y = batch(action.number, step, rank, rows_of(self._plan, rank))
            seen = prepared(x, self._adapted[rank], self._terms.prepares)
            loss, gradients = loss_and_gradients(self._weights[rank], seen, y)
            losses.append(loss)
            if (absent := self._absent(action, rank)) >= 0:
                gradients[absent] *= 0
            own.append([gradients[i] for i in self._trained])
        return losses, own

    def _absent(self, action: PlanAction, rank: int) -> int:
        """Place of the weight for which a rank has no gradient, or -1."""
        is_there = "absent" in action.how and rank == action.rank % self._size and self._size > 1
        return action.number % 4 if is_there else -1

    def _reduced(self, totals: Sequence[list[Values]]) -> list[list[Values]]:
        """Gradients that each rank's optimizer gets."""
        found = [list(each) for each in totals]
        count = len(self._members)
        for at, i in enumerate(self._trained):
            if self._terms.local and i < 2:
                for rank in self._members:
                    found[rank][at] = totals[rank][at] / (count if self._terms.local == "scaled" else 1)
                continue
            total = np.sum([totals[rank][at] for rank in self._members], axis=0)
            for rank in self._members:
                found[rank][at] = total / (count if self._terms.op == "Average" else 1)
        return found

    def _apply(self, gradients: Sequence[list[Values]], action: PlanAction) -> None:
        for rank in self._ranks:
            old = [self._weights[rank][i] for i in self._trained]
            # Keras skips a local weight without a gradient; for a shared weight other ranks have a gradient.
            absent = self._absent(action, rank) if self._terms.local and is_on_torch() else -1
            left_out = [at for at, i in enumerate(self._trained) if i == absent < 2]
            new = self._steppers[rank].step(old, gradients[rank], left_out)
            self._weights[rank] = list(self._weights[rank])
            for i, each in zip(self._trained, new, strict=True):
                self._weights[rank][i] = each

    def _record(self, name: str, found: Sequence[Values], groups: list[list[int]]) -> None:
        self.expected.groups[name] = groups
        for rank, values in enumerate(found):
            self.expected.records[rank][name] = np.asarray(values, np.float64)
