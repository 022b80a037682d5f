"""Process sets: the ranks that take part in a collective.

    evens = ProcessSet([0, 2])
    init(process_sets=[evens])
    if evens.included():
        allreduce(x, process_set=evens)

Names and meaning are Horovod's. A ``ProcessSet`` can be made before ``init``; it has a number from its registration (by
``init`` or ``add_process_set``) until its removal or ``shutdown``.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias, final

from farandole.errors import UnsupportedError, UsageError


@final
class ProcessSet:
    """Some ranks of the job, in ascending order.

    >>> evens = add_process_set([0, 2])
    >>> if evens.included():
    ...     allreduce(x, process_set=evens)

    ``size``, ``rank`` and ``included`` return ``None`` while the set is not registered; ``rank`` returns -1 on a rank
    outside of the set.
    """

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        if not isinstance(ranks_or_comm, Iterable):
            raise UnsupportedError(
                f"a process set is made from ranks, found {type(ranks_or_comm).__name__}: pass a list like [0, 1]"
            )
        self.ranks: list[int] = sorted(map(operator.index, ranks_or_comm))  # ints: NumPy's cannot be sent
        self.process_set_id: int | None = None
        self.mpi_comm: Any = None
        self._rank = -1
        self.registry: object = None
        """The registry that bound this set last."""
        if len(set(self.ranks)) < len(self.ranks):
            raise UsageError(f"a process set holds each rank once, found {self.ranks}")

    def check(self, size: int) -> None:
        """Raise ``UsageError`` unless this set fits a job of ``size``."""
        if not self.ranks or self.ranks[0] < 0 or self.ranks[-1] >= size:
            raise UsageError(
                f"process set {self.ranks} does not fit a job of {size}: it needs at least one rank, "
                f"and only ranks from 0 to {size - 1}"
            )

    def bind(self, process_set_id: int, rank: int) -> None:
        """Note that the session has registered this set, on the process with global rank ``rank``."""
        self.process_set_id, self._rank = process_set_id, rank

    def unbind(self) -> None:
        """Note that the session has ended this set."""
        self.process_set_id, self._rank = None, -1

    def size(self) -> int | None:
        """Number of ranks."""
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self) -> int | None:
        """Index of this process among the members; -1 if it is not a member."""
        if self.process_set_id is None:
            return None
        return self.ranks.index(self._rank) if self._rank in self.ranks else -1

    def included(self) -> bool | None:
        """True if this process is in the set."""
        return None if self.process_set_id is None else self._rank in self.ranks

    def __deepcopy__(self, memo: dict[int, Any]) -> ProcessSet:
        """Return ``self``: a copied model reduces among the same ranks as its original, also after another ``init``."""
        return self

    def __reduce__(self) -> str | tuple[type[ProcessSet], tuple[list[int]]]:
        """Pickle only the ranks: the set may be unregistered in the process that loads it."""
        return "global_process_set" if self is global_process_set else (ProcessSet, (self.ranks,))

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


ProcessSetLike: TypeAlias = ProcessSet | Iterable[int]

global_process_set = ProcessSet([])
"""Process set of all ranks, number 0. Its ranks are known after ``init``."""


def require_registered(process_set: ProcessSet, asked: str) -> None:
    """Raise ``UsageError``, which names the call ``asked``, for an unregistered set."""
    if process_set.process_set_id is None:
        raise UsageError(
            f"{asked}: the process set of the ranks {process_set.ranks} is not registered in this job: "
            "hvd.add_process_set() on every rank registers it, also after shutdown() and where it was unpickled"
        )


@final
class Registry:
    """The process sets of one session, by number."""

    def __init__(self, rank: int, size: int, static_sets: Sequence[ProcessSet] = ()) -> None:
        self._rank, self._size = rank, size
        self._sets: dict[int, ProcessSet] = {}
        self._groups: dict[int, tuple[int, ...]] = {}
        global_process_set.ranks = list(range(size))
        for number, process_set in enumerate([global_process_set, *static_sets]):
            self.add(number, process_set)

    def add(self, number: int, process_set: ProcessSet) -> None:
        """Register a set under the number that all ranks agreed on."""
        process_set.bind(number, self._rank)
        process_set.registry = self
        self._sets[number] = process_set

    def restore(self) -> None:
        """Bind all sets again after another session has bound its own."""
        global_process_set.ranks = list(range(self._size))
        for number, process_set in list(self._sets.items()):
            self.add(number, process_set)

    def remove(self, number: int) -> None:
        """Remove a set; its ``process_set_id`` becomes ``None``."""
        self._sets.pop(number).unbind()

    def clear(self) -> None:
        """Remove all sets at the end of the session; sets bound by a newer session, in another thread, stay bound."""
        for number, process_set in self._sets.copy().items():
            del self._sets[number]
            if process_set.registry is self:
                process_set.unbind()
                if process_set is global_process_set:
                    process_set.ranks = []

    def admit(self, process_set: ProcessSetLike) -> ProcessSet:
        """Make a set from a user's argument; raises ``UsageError`` if it does not fit this job, or is registered."""
        found = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
        found.check(self._size)
        same = next((s for s in self if s.ranks == found.ranks), None)
        if same is not None:
            raise UsageError(f"ranks {found.ranks} are process set {same.process_set_id} already: use that one")
        return found

    def adopt(self, number: int, ranks: tuple[int, ...]) -> None:
        """Store the ranks of a group that contains this process and is not a process set of the job."""
        self._groups[number] = ranks

    def members(self, number: int, asked: str) -> Sequence[int]:
        """The ranks of set ``number``, which this process must be in; ``asked`` names the call in the error."""
        if number in self._groups:
            return self._groups[number]
        process_set = self._sets.get(number)
        if process_set is None:
            raise UsageError(f"{asked}: there is no process set {number}; registered are {sorted(self._sets)}")
        if not process_set.included():
            raise UsageError(
                f"{asked}: rank {self._rank} is not in process set {number}, which is {process_set.ranks}: "
                "call it only where process_set.included()"
            )
        return process_set.ranks

    def get(self, number: int | None) -> ProcessSet | None:
        """The set of this number; ``None`` if there is none."""
        return None if number is None else self._sets.get(number)

    def __getitem__(self, number: int) -> ProcessSet:
        return self._sets[number]

    def __contains__(self, number: int) -> bool:
        return number in self._sets

    def __iter__(self) -> Iterator[ProcessSet]:
        return iter(list(self._sets.values()))
