"""Announcement of a collective, or of a group of collectives, that one rank is ready for.

announcement = Announcement(0, "allreduce.loss", Kind.ALLREDUCE, [call])
announcement.entry()          # the full entry for the controller
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
    """Request of a compiled graph for an all-reduce; the native core matches later calls by it (native/fast_path.hpp).

    ``library`` is the number of the graph's library, ``inputs`` are the framework's dtypes and the shapes, ``origin``
    is the run of a program, the device, and the place in the program.
    """

    library: int
    spec: bytes
    inputs: list[tuple[int, tuple[int, ...]]]
    origin: tuple[int, int, int]


@final
class Announcement:
    """One entry of a ``Submit``: ``name`` is the caller's name, ``key`` the name on the wire.

    ``calls`` are empty for a collective without tensors; ``splits`` are then the ranks or the number of a process set.
    ``fingerprint`` is equal for two announcements with the same meaning. ``refusal``: why this rank cannot take part.
    ``fast``: the request of a compiled graph, if one made it.
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
        """Full entry, which the controller receives if the name has no cached number."""
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
        """Drop the references to the tensors; the results keep those that the caller needs."""
        self.calls = ()
