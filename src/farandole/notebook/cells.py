"""Cells that ranks run together: the marks of the notebook, and reasons why a rank may not take part; pure.

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
    """Mark that is sent with a cell, as its label.

    ``serial``: number of the cell in the notebook. ``settled``: when the cell was sent, all cells up to this number had
    ended on all ranks, and the notebook knew it. ``ranks``: ranks that get the cell. ``is_whole``: these are all ranks.
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
    """Description of the cell in which a rank reaches a collective.

    ``serial``: 0 for a cell without a mark. ``run``: such a cell is the n-th with this source in the ranks' session.
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
        """Name for users."""
        return f"cell {self.serial} ({self.title})" if self.serial else f"the cell ({self.title})"

    @property
    def tag(self) -> str:
        """Name by which other ranks recognize the cell, if it has no mark."""
        return "" if self.serial else f" [{self.digest[:6]}.{self.run}]"

    def is_named_in(self, reason: str) -> bool:
        """True if a session has ended for this ``reason`` because a rank failed in this very cell.

        >>> CellStart(0, "91c2", "x", run=2).is_named_in("rank 1 on a gave up: the cell (x) [91c2.2] raised KeyError")
        True
        """
        return bool(self.tag) and self.tag in reason


def title_of(source: str) -> str:
    r"""First line of code in a cell, shortened.

    >>> title_of("# the training\n\nfor epoch in range(9):\n    ...")
    'for epoch in range(9):'
    """
    lines = [line.strip() for line in source.splitlines()]
    line = next((line for line in lines if line and not line.startswith("#")), "no code")
    return line if len(line) <= LONGEST_TITLE else line[: LONGEST_TITLE - 1] + "…"


def difference(starts: Sequence[CellStart], names: Sequence[str]) -> str:
    """Reason why ranks may not do collectives together: they run different cells; "" if they run the same cell.

    >>> difference([CellStart(6, "91", "train()"), CellStart(6, "91", "train()")], ["rank 0 on a", "rank 1 on a"])
    ''
    """
    if len({(start.serial, start.digest) for start in starts}) == 1:
        return ""
    said = "; ".join(f"{name} runs {start.name}" for name, start in zip(names, starts, strict=True))
    return f"the ranks run different cells, whose collectives are not mixed: {said}. Send one cell to all: %%px"


def partial_refusal(start: CellStart) -> str:
    """Reason why a cell that was sent to some ranks only may not use collectives of other ranks."""
    return (
        f"{start.name} went to some of the ranks only, and its collective needs others, too: leave out --targets, or "
        "leave such collectives to the cells of all ranks"
    )


def unformed_refusal(start: CellStart) -> str:
    """Reason why a cell that was sent to some ranks only has no session."""
    return (
        f"{start.name} went to some of the ranks only. Their session has ended, with a failed cell or as engines were "
        "replaced; the next cell of all ranks that needs it forms it anew: leave out --targets"
    )


def ended_refusal(start: CellStart, reason: str) -> str:
    """Reason why a cell has no collectives: a rank failed in it and ended the session before it began here."""
    return f"{start.name} had not begun here when the session of the ranks ended: {reason}"


def queued_refusal(start: CellStart, before: CellStart) -> str:
    """Reason why a cell does not run: it was sent before the notebook could know of a failure."""
    return (
        f"{start.name} was sent before {before.name} had ended, which has failed on some rank: that rank does not run "
        "this one. Look at the failure, then send it again"
    )
