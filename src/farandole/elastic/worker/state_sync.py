"""State sync: all ranks of a new generation get the state of a rank with the newest state.

    synced = synchronize(parts, {"epoch": 3}, leaves, LocalState(412), reach)

The newest state has the highest voted step; of several ranks at that step, the oldest rank's state counts. Ranks at
that step with the same tensors are sources; ranks that are behind, new or different receive tensors from all sources at
once. Everything that is not a tensor comes from the oldest rank, so that every rank goes on at the same point of its
program; so does the number of steps that metrics are reported with.
"""

from __future__ import annotations

import contextlib
import ctypes
import pickle
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, final

import cloudpickle

from farandole import events
from farandole.elastic.membership.vote import NEW, Agreement, VoteClaim, agree
from farandole.elastic.worker.state_parts import StatePart, unfit
from farandole.elastic.worker.transfer import FlatState, transfer
from farandole.errors import UsageError
from farandole.runtime.collectives.leaves import Leaves
from farandole.runtime.collectives.objects import allgather_object, broadcast_object
from farandole.runtime.session.init import current
from farandole.runtime.session.training import training

T = TypeVar("T")


@final
@dataclass(frozen=True)
class LocalState:
    """State of this rank before the sync: its step, or ``NEW``; ``joined`` if the job cannot begin with it.

    ``unlike``: private parts in which ranks differed before; a single rank that is left would not show the difference.
    """

    step: int = NEW
    joined: bool = False
    unlike: frozenset[str] = frozenset()


@final
@dataclass(frozen=True)
class Synced:
    """Result of a sync: the job's step, whether this rank's tensors changed, and how long it took.

    ``objects`` and ``unlike`` are those of the root of the agreement.
    """

    step: int
    received: bool
    objects: dict[str, Any]
    unlike: frozenset[str]
    nbytes: int
    agree_s: float
    transfer_s: float


@final
class Inventory(Generic[T]):
    """Parts of this rank's state: for each a skeleton, as bytes, and its tensors."""

    def __init__(self, parts: Mapping[str, StatePart], leaves: Leaves[T]) -> None:
        self._parts, self._leaves = parts, leaves
        trees = {name: part.tree() for name, part in parts.items()}
        self._copies = {name: tree for name, tree in trees.items() if parts[name].is_copied}
        # No tensors are made for a fixed part: each rank's program decides in which order their elements lie.
        taken = {name: leaves.flatten(tree, in_order=not parts[name].is_fixed) for name, tree in trees.items()}
        self.skeletons = {name: bytes(cloudpickle.dumps(skeleton)) for name, (skeleton, _) in taken.items()}
        self._tensors = {name: tensors for name, (_, tensors) in taken.items()}
        self.changed: dict[str, Any] = {}

    def common(self) -> list[T]:
        """The tensors that are the same on all ranks at one step."""
        return self._some(own=False)

    def own(self) -> list[T]:
        """The tensors that may differ between ranks."""
        return self._some(own=True)

    def private(self, unlike: Collection[str]) -> tuple[tuple[str, int], ...]:
        """Names and digests of the parts that may differ between ranks, without ``unlike`` parts, which do differ."""
        names = [name for name, part in self._parts.items() if part.is_private and name not in unlike]
        return tuple((name, zlib.crc32(self.skeletons[name])) for name in names)

    def conditions(self) -> list[str]:
        """Names of the parts that check whether the job's tensors fit a receiver."""
        return [name for name, part in self._parts.items() if part.is_condition]

    def built(self) -> list[str]:
        """Names of the parts, with the number and a digest of the tensors that the program has built."""
        return [
            f"{name} ({len(self._tensors[name])} tensors, {zlib.crc32(self.skeletons[name]):08x})"
            if part.is_fixed
            else name
            for name, part in self._parts.items()
        ]

    def adopt(self, theirs: Mapping[str, bytes], alike: Collection[str]) -> None:
        """Adopt the skeletons ``theirs``, of private parts only those in ``alike``; tensors have yet to be filled."""
        if list(theirs) != list(self.skeletons):
            raise UsageError(
                f"the state of the job holds {', '.join(theirs)}; the one of this worker {', '.join(self.skeletons)}: "
                "every worker must run the same script"
            )
        for name, skeleton in theirs.items():
            is_own = self._parts[name].is_private and name not in alike
            if not is_own and skeleton != self.skeletons[name]:
                if self._parts[name].is_fixed:
                    raise UsageError(
                        f"{name} of this worker has other tensors than that of the job: every worker must run the same "
                        "script with the same arguments"
                    )
                tree, tensors = self._leaves.put(pickle.loads(skeleton), self._tensors[name])  # noqa: S301 (a member's)
                self.changed[name], self._tensors[name] = tree, tensors

    def load(self, received: bool) -> None:
        """Load changed trees into their parts and, if tensors were ``received``, the trees that consist of copies."""
        for name, tree in {**(self._copies if received else {}), **self.changed}.items():
            self._parts[name].load(tree)

    def _some(self, own: bool) -> list[T]:
        found = []
        for name, part in self._parts.items():
            ids = part.own_tensors()
            found += [tensor for tensor in self._tensors[name] if (id(tensor) in ids) == own]
        return found


def synchronize(
    parts: Mapping[str, StatePart],
    objects: dict[str, Any],
    leaves: Leaves[T],
    job_state: LocalState,
    reach: Callable[[str], object],
) -> Synced:
    """Bring all ranks to one state. Collective.

    Calls ``reach`` with ``agree``, with ``transfer`` if any rank gets tensors, and with ``receive`` before tensors of
    this rank are overwritten; with ``put back`` if that failed before the job's first step and the tensors are
    restored, so that the job can begin with this rank. Raises ``UsageError`` on a rank with another kind of state.
    """
    begin_s = time.monotonic()
    reach("agree")
    rank = current().topology.rank
    inventory = Inventory(parts, leaves)
    # The digest covers the layout, too: other arrays may have equal bytes, and this rank may have more arrays.
    layout = zlib.crc32(leaves.layout([*inventory.common(), *inventory.own()]).encode())
    digest = f"{FlatState(leaves.memory(inventory.common())).checksum():08x}{layout:08x}"
    claim = VoteClaim(job_state.step, digest, inventory.private(job_state.unlike), job_state.joined)
    # Every rank decides by itself, from the same claims in the same order: this needs no further round, and no rank
    # whose death would leave the others without a decision.
    agreement = agree(allgather_object(claim, "elastic.claims"))
    _warn_of_divergence(agreement, rank)
    unlike = job_state.unlike | ({name for name, _ in claim.private} - {*agreement.alike})
    mine = (inventory.skeletons, _pickled(objects), training.step, unlike)
    theirs, their_objects, training.step, unlike = broadcast_object(mine, agreement.root, "elastic.state")
    receives = rank in agreement.receivers
    with _told_to_all():
        inventory.adopt(theirs, [*agreement.alike, *inventory.conditions()] if receives else ())
    agreed_s, nbytes = time.monotonic(), 0
    if agreement.receivers:
        reach("transfer")
        if receives:
            reach("receive")
        is_first = receives and agreement.step == NEW
        with _put_back_by_failure(leaves, inventory, reach) if is_first else contextlib.nullcontext():
            nbytes += _move(leaves, inventory.common(), agreement.sources, receives, "elastic.common")
            nbytes += _move(leaves, inventory.own(), [agreement.root], receives, "elastic.own")
    # After the last collective: up to here, a lost peer leaves the parts unchanged, and at most half-written
    # tensors, which ``receive`` has reported.
    with _told_to_all():
        inventory.load(receives)
    if their_objects != mine[1]:
        objects = pickle.loads(their_objects)  # noqa: S301 (from a member of this job)
    end_s = time.monotonic()
    return Synced(max(agreement.step, 0), receives, objects, unlike, nbytes, agreed_s - begin_s, end_s - agreed_s)


@contextlib.contextmanager
def _told_to_all() -> Iterator[None]:
    """End the generation if this rank cannot load the state: its script may catch the error while others wait."""
    try:
        yield
    except UsageError as error:
        current().end.abort(str(error))
        raise


def _pickled(objects: Mapping[str, Any]) -> bytes:
    try:
        return bytes(cloudpickle.dumps(objects))
    except Exception as error:
        raise unfit(objects, cloudpickle.dumps, error) from error


def _warn_of_divergence(agreement: Agreement, rank: int) -> None:
    if agreement.diverged and rank == agreement.root:
        events.logger.warning(
            "the tensors of ranks %s differ from those of rank %d after the same %d steps, and are replaced: a fault "
            "in memory makes such states, or a script that changes them differently on each rank",
            agreement.diverged,
            rank,
            agreement.step,
        )


@contextlib.contextmanager
def _put_back_by_failure(leaves: Leaves[T], inventory: Inventory[T], reach: Callable[[str], object]) -> Iterator[None]:
    """Restore all tensors if the block raises. The copy is made once in a job, before its first step."""
    tensors = [*inventory.common(), *inventory.own()]
    arrays = leaves.memory(tensors)
    memory = FlatState(arrays)
    everything, kept = range(memory.nbytes), (ctypes.c_char * memory.nbytes)()
    memory.read(everything, ctypes.addressof(kept))
    try:
        yield
    except BaseException:  # KeyboardInterrupt, too: the script may catch it, and save or start with these tensors
        memory.write(everything, ctypes.addressof(kept))
        leaves.written(tensors, arrays)
        reach("put back")
        raise


def _move(leaves: Leaves[T], tensors: Sequence[T], sources: Sequence[int], receives: bool, label: str) -> int:
    arrays = leaves.memory(tensors)
    nbytes = transfer(FlatState(arrays), sources, receives, label)
    if receives:
        leaves.written(tensors, arrays)
    return nbytes
