"""Choice of a slice for a change: one that it touches, else the next in turn. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import msgspec

from workbench.nightly.slices import Slice

TURN_S = 10_007
"""Seconds of a slice's turn: no divisor of a day, or a daily commit at noon would always get the same slice."""


@final
class Change(msgspec.Struct, frozen=True):
    """Time of the last commit in seconds, and the number of changed lines, by path."""

    at_s: int
    lines: Mapping[str, int]


def choose(slices: Mapping[str, Slice], change: Change) -> tuple[str, str]:
    """The name of a slice, and the reason.

    >>> slices = {"slurm": Slice(about=("src/farandole/launch/leases/",)), "docs": Slice(about=("docs/",))}
    >>> choose(slices, Change(0, {"docs/README.md": 3}))
    ('docs', 'the change touches docs/README.md')

    A change that touches several slices gets each of them in turn, and a change that touches none gets all in turn. A
    slice that is about nothing is played only by its name.
    """
    touched = {name: path for name, each in slices.items() if (path := _most_changed(name, each, change.lines))}
    names = list(touched or (name for name, each in slices.items() if each.about))
    chosen = names[change.at_s // TURN_S % len(names)]
    if chosen in touched:
        others = f", and it is its turn among {len(touched)} that it touches" if len(touched) > 1 else ""
        return chosen, f"the change touches {touched[chosen]}{others}"
    return chosen, "the change touches none, and it is its turn"


def _most_changed(name: str, one: Slice, lines: Mapping[str, int]) -> str:
    """The most changed path among the sources or tests of a slice; "" if there is none."""
    about = (*one.about, f"tests/nightly/{name}/")
    mine = {path: number for path, number in lines.items() if path.startswith(about)}
    return max(mine, key=lambda path: (mine[path], path), default="")
