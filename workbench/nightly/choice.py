"""Choice of a slice for a change: one that it touches, else the next in turn. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import msgspec

from workbench.nightly.slices import Slice

TURN_S = 10_007
"""After so many seconds it is the next slice's turn: no part of a day, or whoever lands at noon had always the same."""


@final
class Change(msgspec.Struct, frozen=True):
    """Last commit's time in seconds, and how many lines changed, by path."""

    at_s: int
    lines: Mapping[str, int]


def choose(slices: Mapping[str, Slice], change: Change) -> tuple[str, str]:
    """The name of a slice, and why.

    >>> slices = {"slurm": Slice(about=("src/farandole/launch/leases/",)), "docs": Slice(about=("docs/",))}
    >>> choose(slices, Change(0, {"docs/README.md": 3}))
    ('docs', 'the change touches docs/README.md')

    A change that touches several is played by each in turn, as a change that touches none. A slice that is about
    nothing is played only by its name.
    """
    touched = {name: path for name, each in slices.items() if (path := _most_changed(name, each, change.lines))}
    names = list(touched or (name for name, each in slices.items() if each.about))
    chosen = names[change.at_s // TURN_S % len(names)]
    if chosen in touched:
        others = f", and it is its turn among {len(touched)} that it touches" if len(touched) > 1 else ""
        return chosen, f"the change touches {touched[chosen]}{others}"
    return chosen, "the change touches none, and it is its turn"


def _most_changed(name: str, one: Slice, lines: Mapping[str, int]) -> str:
    """The path with the most changed lines of what a slice is about, or of its tests; "" if there is none."""
    about = (*one.about, f"tests/nightly/{name}/")
    mine = {path: number for path, number in lines.items() if path.startswith(about)}
    return max(mine, key=lambda path: (mine[path], path), default="")
