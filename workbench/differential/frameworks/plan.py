"""Plan of a program: terms of training, and its actions one after the other, as plain data.

plan = FrameworkPlan("jax", 1, 17, PlanTerms(optimizer="adam"), (PlanAction("train", number=1, steps=3),))
"""

from __future__ import annotations

from typing import Any, final

import msgspec

RANKS = {"": (), "first": (0,), "last": (-1,), "but last": (0, -2)}
"""Process sets by name: their ranks, negative ones counted from the end; the empty name is all ranks."""


@final
class PlanTerms(msgspec.Struct, frozen=True, omit_defaults=True):
    """Terms of a program's training. The defaults are the plainest ones; some terms exist in one framework only."""

    optimizer: str = "sgd"
    """``sgd``, ``momentum``, ``nesterov`` or ``adam``."""
    rate: float = 0.1
    clip: str = ""
    """``global`` (the norm of all gradients), ``norm`` (the norm of each) or ``value``."""
    decay: bool = False
    op: str = "Average"
    predivide: float = 1.0
    compression: str = "none"
    passes: int = 1
    passes_how: str = "sum"
    """``sum`` or ``mean`` by Farandole; ``keras``: Keras accumulates, unknown to Farandole."""
    process_set: str = ""
    uneven: bool = False
    """Ranks have batches of different sizes."""
    initial: str = "same"
    """``same`` on all ranks; ``broadcast``: other weights on each, then those of rank 0 on all."""

    lag: int = 0
    jit: bool = True
    donate: bool = False
    overlap: int = 0
    """``bucket_bytes`` of ``hvd.value_and_grad``; 0: a distributed optimizer."""
    passes_params: bool = True
    dtype: str = "float32"
    ahead: bool = False
    """Steps are dispatched without waiting for the last one."""
    averages_loss: bool = False
    """The loss is reduced in the step."""

    scaled: bool = False
    """Losses are scaled."""
    local: str = ""
    """The first layer's gradients stay on their rank: ``scaled`` by the number of ranks or ``unscaled``."""
    steps_per_execution: int = 1
    eager: bool = False
    prepares: str = ""
    """A first layer that differs between ranks: adapted to rows of its own (``normalizes``), with ``bins`` or a
    vocabulary (``looks up``) of its own, or with random numbers (``draws``)."""


@final
class PlanAction(msgspec.Struct, frozen=True, omit_defaults=True):
    """One action of a program; ``number`` selects its data."""

    kind: str
    number: int = 0
    steps: int = 1
    rank: int = 0
    """Rank that acts differently, modulo the number of ranks."""
    how: tuple[str, ...] = ()


@final
class FrameworkPlan(msgspec.Struct, frozen=True):
    """A program for one framework; ``settings`` are arguments of ``init``, ``planted`` a defect that must be found."""

    framework: str
    seed: int
    index: int
    terms: PlanTerms = PlanTerms()
    actions: tuple[PlanAction, ...] = ()
    settings: dict[str, int | str] = {}
    planted: str = ""

    @property
    def name(self) -> str:
        """Name of the plan in findings."""
        return f"{self.framework} seed {self.seed} program {self.index}"

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of ``init``."""
        return {**self.settings, **({"process_sets": "dynamic"} if self.terms.process_set else {})}

    @property
    def features(self) -> set[str]:
        """Kinds of actions, their options, and terms that are not the defaults."""
        terms = {f"{key} {value}" for key, value in msgspec.to_builtins(self.terms).items()}
        named = set(msgspec.to_builtins(self.terms))
        return terms | named | {each.kind for each in self.actions} | {how for each in self.actions for how in each.how}

    @property
    def tolerance(self) -> float:
        """Distance to the oracle, relative to the largest number, that rounding explains."""
        if self.terms.compression != "none" or "bfloat16" in self.terms.dtype:
            return 6e-2
        return 1e-9 if self.terms.dtype == "float64" else 1e-4

    def text(self) -> str:
        """The plan as text, a line for the terms and one for each action."""
        lines = [f"# {self.name}", f"settings {self.settings}", f"terms {msgspec.to_builtins(self.terms)}"]
        return "\n".join([*lines, *(str(msgspec.to_builtins(each)) for each in self.actions)])

    def members(self, size: int) -> list[int]:
        """Ranks that share gradients."""
        if not self.terms.process_set:
            return list(range(size))
        return sorted({max(0, each + size if each < 0 else each) for each in RANKS[self.terms.process_set]})


@final
class Numbers(msgspec.Struct, frozen=True):
    """Record of a rank under one name: numbers, and a digest of their original bits."""

    values: list[float]
    digest: bytes = b""


@final
class PlanFailure(msgspec.Struct, frozen=True):
    """An error that ended a plan on a rank; ``ours`` if Farandole raised it."""

    kind: str
    ours: bool
    text: str
    trace: str = ""


@final
class RankResult(msgspec.Struct, frozen=True):
    """Outcome of a plan on one rank."""

    records: dict[str, Numbers] = {}
    failure: PlanFailure | None = None


def rows_of(plan: FrameworkPlan, rank: int) -> int:
    """Rows of a batch of a rank."""
    return 2 + rank if plan.terms.uneven else 3
