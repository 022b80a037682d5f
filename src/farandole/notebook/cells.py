"""Cells that ranks run together: what the notebook says of each, and when a rank may not take part in one; pure.

mark = CellMark(serial=6, settled=4, ranks=[0, 1], is_whole=True)
CellMark.of(mark.label)                     # the same, on the engine; None for what something else has sent
difference([CellStart(6, "91c2", "train()"), CellStart(7, "77aa", "test()")], ["rank 0 on a", "rank 1 on a"])
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import final

import msgspec

LONGEST_TITLE = 60
_PREFIX = "farandole "


@final
class CellMark(msgspec.Struct, frozen=True):
    """Mark that travels with a cell, as its label.

    ``serial`` counts the cells of a notebook. When this one was sent, the notebook knew how all cells up to ``settled``
    had ended on all ranks. It went to ``ranks``; ``is_whole`` if these are all.
    """

    serial: int
    settled: int
    ranks: list[int]
    is_whole: bool

    @property
    def label(self) -> str:
        """The mark, as text."""
        return _PREFIX + msgspec.json.encode(self).decode()

    @classmethod
    def of(cls, label: object) -> CellMark | None:
        """Read the mark of a cell; ``None`` if it has none."""
        if not isinstance(label, str) or not label.startswith(_PREFIX):
            return None
        try:
            return msgspec.json.decode(label.removeprefix(_PREFIX), type=cls)
        except msgspec.DecodeError:
            return None


@final
class CellStart(msgspec.Struct, frozen=True):
    """Word of a rank on the cell in which it comes to a collective.

    ``serial`` is 0 where the cell has no mark; it is the ``run``-th of this source in the session of the ranks then.
    """

    serial: int
    digest: str
    title: str
    run: int = 0

    @classmethod
    def of(cls, mark: CellMark | None, source: str) -> CellStart:
        """Describe the first cell of this source."""
        digest = hashlib.blake2b(source.encode(errors="replace"), digest_size=8).hexdigest()
        return cls(0 if mark is None else mark.serial, digest, title_of(source), 1)

    @property
    def name(self) -> str:
        """Name for people."""
        return f"cell {self.serial} ({self.title})" if self.serial else f"the cell ({self.title})"

    @property
    def tag(self) -> str:
        """Name by which other ranks know the cell again, if it has no mark."""
        return "" if self.serial else f" [{self.digest[:6]}.{self.run}]"

    def is_named_in(self, reason: str) -> bool:
        """True if a session has ended for this ``reason`` because a rank failed in this very cell.

        >>> CellStart(0, "91c2", "x", run=2).is_named_in("rank 1 on a gave up: the cell (x) [91c2.2] raised KeyError")
        True
        """
        return bool(self.tag) and self.tag in reason


def title_of(source: str) -> str:
    r"""First line of a cell that says something, shortened.

    >>> title_of("# the training\n\nfor epoch in range(9):\n    ...")
    'for epoch in range(9):'
    """
    lines = [line.strip() for line in source.splitlines()]
    line = next((line for line in lines if line and not line.startswith("#")), "no code")
    return line if len(line) <= LONGEST_TITLE else line[: LONGEST_TITLE - 1] + "…"


def difference(starts: Sequence[CellStart], names: Sequence[str]) -> str:
    """Reason why ranks may not do collectives together, as they run different cells; "" if they run the same.

    >>> difference([CellStart(6, "91", "train()"), CellStart(6, "91", "train()")], ["rank 0 on a", "rank 1 on a"])
    ''
    """
    if len({(start.serial, start.digest) for start in starts}) == 1:
        return ""
    said = "; ".join(f"{name} runs {start.name}" for name, start in zip(names, starts, strict=True))
    return f"the ranks run different cells, whose collectives are not mixed: {said}. Send one cell to all: %%px"


def partial_refusal(start: CellStart) -> str:
    """Reason why a cell that went to some ranks has no collectives of others."""
    return (
        f"{start.name} went to some of the ranks only, and its collective needs others, too: leave out --targets, or "
        "leave such collectives to the cells of all ranks"
    )


def unformed_refusal(start: CellStart) -> str:
    """Reason why a cell that went to some ranks has no session."""
    return (
        f"{start.name} went to some of the ranks only. Their session has ended, with a failed cell or as engines were "
        "replaced; the next cell of all ranks that needs it forms it anew: leave out --targets"
    )


def ended_refusal(start: CellStart, reason: str) -> str:
    """Reason why a cell has no collectives before which the ranks' session has ended, as some rank has failed in it."""
    return f"{start.name} had not begun here when the session of the ranks ended: {reason}"


def queued_refusal(start: CellStart, before: CellStart) -> str:
    """Reason why a cell does not run that was sent before the notebook could know of a failure."""
    return (
        f"{start.name} was sent before {before.name} had ended, which has failed on some rank: that rank does not run "
        "this one. Look at the failure, then send it again"
    )
