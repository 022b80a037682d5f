"""Announcement: a collective, or a group of them, that one rank says it is ready for.

announcement = Announcement(0, "allreduce.loss", Kind.ALLREDUCE, [call])
announcement.entry()          # in full, as it goes to the controller
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias, final

from farandole.collective import Kind
from farandole.control.messages import Entry, Signature
from farandole.runtime.lanes.call import Call

Key: TypeAlias = tuple[int, str]
"""Number of the process set, and name."""


class FastRequest(NamedTuple):
    """Request of a compiled graph for an all-reduce, as the native core finds it in later ones (native/fast_path.hpp).

    ``library`` is the number of the graph's, ``inputs`` the framework's dtypes and the shapes, ``origin`` the run of a
    program, the device, and the place in the program.
    """

    library: int
    spec: bytes
    inputs: list[tuple[int, tuple[int, ...]]]
    origin: tuple[int, int, int]


@final
class Announcement:
    """One entry of a ``Submit``: ``name`` is what the caller called it, ``key`` its name on the wire.

    ``calls`` are empty for what moves no tensors; ``splits`` are then the ranks or the number of a process set.
    ``fingerprint`` is equal for two announcements that mean the same. A ``refusal`` says why this rank cannot do it.
    ``fast``: how a compiled graph has asked for it, if one has.
    """

    __slots__ = ("calls", "fast", "fingerprint", "key", "kind", "name", "refusal", "splits")

    def __init__(
        self,
        process_set: int,
        name: str,
        kind: Kind,
        calls: Sequence[Call],
        splits: Sequence[int] = (),
        refusal: str = "",
        fast: FastRequest | None = None,
    ) -> None:
        self.name = self.key = (process_set, name)
        self.kind, self.calls, self.splits, self.refusal, self.fast = kind, calls, splits, refusal, fast
        self.fingerprint: object = [
            (c.kind, c.array.dtype, c.shape, c.how, c.root, c.splits, c.array.device) for c in calls
        ]

    def entry(self) -> Entry:
        """The announcement in full, as the controller gets it where no number stands for it."""
        return Entry(*self.key, signature=self.signature())

    def signature(self) -> Signature:
        """Signature: kind, dtypes, shapes, reduction, root, splits and device, for the controller to compare."""
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
        """Let go of the tensors; the results hold what the caller needs."""
        self.calls = ()
