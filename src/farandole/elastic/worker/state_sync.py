"""State sync: all ranks of a new generation come to one state, that of a rank with the newest.

    synced = synchronize(parts, {"epoch": 3}, leaves, LocalState(412), reach)

The newest state is that of the highest voted step, and among those ranks the oldest one's. A rank that was there, and
has the same tensors, is a source; one that is behind, new, or differs gets them from all sources at once. Everything
that is no tensor is the oldest one's on all ranks, so that every rank goes on at the same point of its program; so
is the number of steps that metrics are told with.
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
    """State of this rank before the sync: its step, or ``NEW``; ``joined`` if it cannot be the one to begin.

    ``unlike`` are private parts that ranks differed in before: the last one of these may be alone with its own now.
    """

    step: int = NEW
    joined: bool = False
    unlike: frozenset[str] = frozenset()


@final
@dataclass(frozen=True)
class Synced:
    """Result of a sync: the job's step, whether this rank's tensors changed, and how long it took.

    ``objects`` are those of the rank that everybody follows, and so is what ranks are ``unlike`` in.
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
        # Of what is fixed no tensors are made: in which order they lie, each rank's program decides.
        taken = {name: leaves.take(tree, in_order=not parts[name].is_fixed) for name, tree in trees.items()}
        self.skeletons = {name: bytes(cloudpickle.dumps(skeleton)) for name, (skeleton, _) in taken.items()}
        self._tensors = {name: tensors for name, (_, tensors) in taken.items()}
        self.changed: dict[str, Any] = {}

    def common(self) -> list[T]:
        """The tensors that are the same on all ranks of one step."""
        return self._some(own=False)

    def own(self) -> list[T]:
        """The tensors that ranks may differ in."""
        return self._some(own=True)

    def private(self, unlike: Collection[str]) -> tuple[tuple[str, int], ...]:
        """The parts that may differ between ranks, and digests of them; those that ``unlike`` names do."""
        names = [name for name, part in self._parts.items() if part.is_private and name not in unlike]
        return tuple((name, zlib.crc32(self.skeletons[name])) for name in names)

    def conditions(self) -> list[str]:
        """The parts that whoever gets the job's tensors is judged by."""
        return [name for name, part in self._parts.items() if part.is_condition]

    def built(self) -> list[str]:
        """The names of the parts; those whose tensors the program has built are told apart by these."""
        return [
            f"{name} ({len(self._tensors[name])} tensors, {zlib.crc32(self.skeletons[name]):08x})"
            if part.is_fixed
            else name
            for name, part in self._parts.items()
        ]

    def adopt(self, theirs: Mapping[str, bytes], alike: Collection[str]) -> None:
        """Become like ``theirs``, of what is private in what is ``alike``; tensors have yet to be filled."""
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
        """Load the trees that have changed into their parts, and those of copies that have ``received`` tensors."""
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

    ``reach`` is told ``agree``, ``transfer`` where anybody gets tensors, and ``receive`` before those of this rank are
    overwritten; ``put back`` if that failed and they are what they were: nobody has trained, and this rank can begin
    the job as well as another. Raises ``UsageError`` on a rank whose state is built otherwise than that of the others.
    """
    begin_s = time.monotonic()
    reach("agree")
    rank = current().topology.rank
    inventory = Inventory(parts, leaves)
    # Of the layout, too: equal bytes of other arrays are no reason to keep them, as there may be more than these here.
    layout = zlib.crc32(leaves.layout([*inventory.common(), *inventory.own()]).encode())
    digest = f"{FlatState(leaves.memory(inventory.common())).checksum():08x}{layout:08x}"
    claim = VoteClaim(job_state.step, digest, inventory.private(job_state.unlike), job_state.joined)
    # Every rank decides by itself, from the same claims in the same order: no further round, and no rank whose death
    # would leave the others without an answer.
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
    # After the last collective: up to here a lost peer leaves the parts as they were, and only tensors half
    # written, of which ``receive`` has told.
    with _told_to_all():
        inventory.load(receives)
    if their_objects != mine[1]:
        objects = pickle.loads(their_objects)  # noqa: S301 (from a member of this job)
    end_s = time.monotonic()
    return Synced(max(agreement.step, 0), receives, objects, unlike, nbytes, agreed_s - begin_s, end_s - agreed_s)


@contextlib.contextmanager
def _told_to_all() -> Iterator[None]:
    """End the generation where this rank cannot take the state: a script may catch the error, and others wait."""
    try:
        yield
    except UsageError as error:
        current().abort(str(error))
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
