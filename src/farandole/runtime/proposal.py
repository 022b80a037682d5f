"""A collective on its way from the first rank that is ready for it to its order.

    proposal = Proposal(0, "loss", members=(0, 1), missing={0, 1}, since_s=now, latest_s=now)
    proposal.enter(0, signature, line=None, now=now)
    proposal.missing                                     # {1}

``Negotiation`` keeps them; nothing here decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from farandole.control.messages import Signature
from farandole.runtime.agreement import title
from farandole.runtime.cache import Key, Line


@final
@dataclass(slots=True)
class Proposal:
    """Who is ready and what they said, who is ``missing``, since when, and when the latest came.

    ``line`` is the cache line that the first rank named by number, ``by_number`` how many ranks named that one;
    ``error``, ``number`` and ``value`` are those of the order to come.
    """

    process_set: int
    name: str
    members: Sequence[int]
    missing: set[int]
    since_s: float
    latest_s: float
    line: Line | None = None
    by_number: int = 0
    signatures: dict[int, Signature] = field(default_factory=dict)
    error: str = ""
    error_kind: str = ""
    number: int = -1
    value: int = -1

    @property
    def key(self) -> Key:
        """What no other open proposal has."""
        return self.process_set, self.name

    @property
    def kind(self) -> int:
        """The kind, as the first rank gave it."""
        return next(iter(self.signatures.values())).kind

    @property
    def title(self) -> str:
        """How texts call it."""
        return title(self.kind, self.name, self.process_set)

    def enter(self, rank: int, signature: Signature, line: Line | None, now: float) -> None:
        """``rank`` is ready, and said so by the number of ``line`` if there is one."""
        self.signatures[rank] = signature
        self.missing.discard(rank)
        self.latest_s = now
        if line is not None and self.line is line:
            self.by_number += 1

    def silent(self) -> list[int]:
        """The members that have said nothing; once nobody is missing, these are the ones that joined."""
        if len(self.signatures) == len(self.members):
            return []
        return [rank for rank in self.members if rank not in self.signatures]

    def crosses(self, other: Proposal) -> bool:
        """True if a rank that is ready here is missing there, and the other way round."""
        return not self.missing.isdisjoint(other.signatures) and not other.missing.isdisjoint(self.signatures)
