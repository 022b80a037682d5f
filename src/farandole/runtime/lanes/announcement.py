"""What one rank announces as one: a collective, or a group of them.

ask = Ask(0, "allreduce.loss", Kind.ALLREDUCE, [call])
ask.entry()          # in full, as it goes to the controller
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, final

from farandole.collective import Kind
from farandole.control.messages import Entry, Signature
from farandole.runtime.lanes.call import Call

Key: TypeAlias = tuple[int, str]
"""Process set and name."""


@final
class Announcement:
    """One entry of a ``Submit``: ``name`` is what the caller called it, ``key`` what it is called on the wire.

    ``calls`` are empty for what moves no tensors; ``splits`` then are its ranks or id.

    ``fingerprint`` is equal for two asks that mean the same. With a ``refusal`` it says why this rank cannot do it.
    """

    __slots__ = ("calls", "fingerprint", "key", "kind", "name", "refusal", "splits")

    def __init__(
        self,
        process_set: int,
        name: str,
        kind: Kind,
        calls: Sequence[Call],
        splits: Sequence[int] = (),
        refusal: str = "",
    ) -> None:
        self.name = self.key = (process_set, name)
        self.kind, self.calls, self.splits, self.refusal = kind, calls, splits, refusal
        self.fingerprint: object = [
            (c.kind, c.array.dtype, c.shape, c.how, c.root, c.splits, c.array.device) for c in calls
        ]

    def entry(self) -> Entry:
        """The full announcement."""
        return Entry(*self.key, signature=self.signature())

    def signature(self) -> Signature:
        """What is compared with the other ranks."""
        if not self.calls:
            return Signature(int(self.kind), [], [], splits=list(self.splits), refusal=self.refusal)
        first = self.calls[0]
        return Signature(
            int(self.kind),
            [int(c.array.dtype) for c in self.calls],
            [list(c.shape) for c in self.calls],
            int(first.how.op),
            first.how.prescale,
            first.how.postscale,
            first.root,
            list(first.splits),
            first.array.device,
        )

    def release(self) -> None:
        """Let go of the tensors; their outcomes hold what the caller needs."""
        self.calls = ()
