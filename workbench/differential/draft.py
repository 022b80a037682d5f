"""A program while it is generated: its steps so far, and the entries of the vocabulary that may follow."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar, final

from workbench.differential.program import Program, Step

Emit: TypeAlias = Callable[["Draft"], None]
When: TypeAlias = Callable[["Draft"], bool]
T = TypeVar("T")


@final
@dataclass
class Pair:
    """A model and its optimizer, ``m0`` and ``o0``, with the properties that later steps depend on."""

    number: int
    kind: str
    how: str = "sgd"
    dtype: str = "float32"
    op: str = "Average"
    passes: int = 1
    named: bool = False
    reordered: bool = False
    frozen: bool = False
    everywhere: bool = True  # all ranks share its gradients

    @property
    def m(self) -> str:
        """The model's variable."""
        return f"m{self.number}"

    @property
    def o(self) -> str:
        """The optimizer's variable."""
        return f"o{self.number}"

    @property
    def plain_but_half(self) -> bool:
        """True if only averages of one pass over all ranks are reduced, in any precision."""
        return self.op == "Average" and self.passes == 1 and self.everywhere

    @property
    def plain(self) -> bool:
        """True if only averages of one pass in full precision are reduced."""
        return self.op == "Average" and self.passes == 1 and self.dtype == "float32"


@final
@dataclass
class Draft:
    """Steps so far. ``without``: features that must not be used."""

    rng: random.Random
    without: frozenset[str] = frozenset()
    steps: list[Step] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    settings: dict[str, int | str] = field(default_factory=dict)
    pair: Pair = field(init=False)
    round: int = 0
    uneven: bool = False
    """True if only some ranks have had a pass in this round: another pass would be matched with theirs."""
    _numbers: int = 0

    def add(self, feature: str, *lines: str, may_refuse: bool = False) -> None:
        """Append a step."""
        self.steps.append(Step(feature, lines, may_refuse))

    def number(self) -> int:
        """A number that this program has not used before, for data, seeds and names."""
        self._numbers += 1
        return self._numbers

    def chance(self, probability: float, feature: str = "") -> bool:
        """True with this probability, unless the feature is excluded. Always draws: an exclusion shifts nothing."""
        return self.rng.random() < probability and feature not in self.without

    def choose(self, *choices: T) -> T:
        """One of ``choices``, each as likely as the others."""
        return self.rng.choice(choices)

    def take(self, entries: Sequence[FeatureEntry]) -> None:
        """Choose one of the entries that are possible now, and emit its steps."""
        possible = [entry for entry in entries if entry.feature not in self.without and entry.when(self)]
        [entry] = self.rng.choices(possible, [entry.weight for entry in possible])
        entry.emit(self)

    def program(self, seed: int, index: int) -> Program:
        """The program of all steps so far."""
        return Program(seed, index, tuple(self.steps), self.settings)


@final
@dataclass(frozen=True)
class FeatureEntry:
    """Something that users do: how often, its condition, and its steps."""

    feature: str
    weight: float
    emit: Emit
    when: When = lambda _: True


def entry(
    table: list[FeatureEntry], feature: str, weight: float, when: When = lambda _: True
) -> Callable[[Emit], Emit]:
    """Decorate a function that emits steps, to add it to a table."""

    def register(emit: Emit) -> Emit:
        table.append(FeatureEntry(feature, weight, emit, when))
        return emit

    return register
