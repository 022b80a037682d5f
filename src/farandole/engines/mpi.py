"""Engine on the MPI that started the job, through mpi4py.

    engine = MpiEngine(group, exchange)         # in a process that mpirun or srun started

MPI moves the bytes by its own transports (shared memory, InfiniBand, Slingshot, TCP); ``pairwise`` does the rest,
because MPI has no bfloat16 and no bool with our meaning, and does not guarantee the same bits on all members. Transfers
are non-blocking and tested in a loop, because a thread inside a blocking MPI call cannot be woken.

mpi4py is imported, and MPI initialized, when the first engine is made and not before.

Threads. Each engine has one user at a time, and there are several engines: several threads call MPI concurrently
(``MPI_THREAD_MULTIPLE``). ``abort`` calls no MPI function; it sets the flag that the loop checks between tests.

Memory. A started request belongs to MPI until it is complete, however the collective ends. Receives can be cancelled,
and are, because they would write to arrays that are the caller's again. Sends and MPI's own collectives cannot: their
requests and the memory that they use are kept (``_World.keep``), and their communicator is never freed.

``_World._lock`` guards ``_unfinished`` and writes of ``_broken``, which engines of several threads change.
"""

from __future__ import annotations

import functools
import itertools
import os
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

from farandole.cluster.mpi_library import MpiLibrary, load
from farandole.collective import Array
from farandole.control.reentrant_event import ReentrantEvent
from farandole.engines.arrays import split
from farandole.engines.engine import Exchange, Group
from farandole.engines.interruption import ends_when_interrupted
from farandole.engines.pairwise import PairwiseEngine
from farandole.engines.transport import Parcel, Transport, interruptible
from farandole.errors import EngineError, UnsupportedError

Running: TypeAlias = tuple[int, Any]
"""Index of a member, and the request of a transfer with it; this member's own index for a collective request."""

CREATE_S = 30.0
_TAG = 1
_MOST_BYTES = 2**30
"""Largest transfer: MPI before version 4 counts in an int; longer arrays are sent in pieces."""
_YIELD_S = 0.001
_SLOW_BYTES_PER_S = 100e6
"""A waiter yields between tests for a millisecond plus the time of its bytes at this speed; then it sleeps briefly."""
_NAP_S, _LONGEST_NAP_S = 0.00005, 0.001
_SETTLE_S = 0.1
"""Time limit for cancelled receives to complete."""


@final
class MpiEngine(PairwiseEngine):
    """Collectives of host memory on a communicator of its own."""

    name = "mpi"

    def __init__(self, group: Group, exchange: Exchange) -> None:
        self._wire = MpiTransport(group, exchange)
        super().__init__(group, self._wire)

    @ends_when_interrupted
    def barrier(self) -> None:
        """Use MPI's own barrier."""
        self._begin()
        self._wire.barrier()

    def _gather(self, mine: Array) -> list[Array]:
        """Gather by MPI's own all-gather, because it computes nothing; into our memory, because it cannot be cancelled.

        Two members use point-to-point transfers, as fast with Open MPI and faster with MPICH (docs/design/mpi.md).
        """
        size = self.group.size
        if size <= 2:
            return super()._gather(mine)
        whole = self._room(mine.nbytes * size).array(mine.dtype, 0, mine.count * size)
        self._wire.gather(mine, whole)
        return split(whole, [mine.count] * size)


@final
class MpiTransport(Transport):
    """MPI's non-blocking sends and receives."""

    def __init__(self, group: Group, exchange: Exchange) -> None:
        super().__init__(group)
        self._world, ranks = _world_ranks(group, exchange)
        self._mpi = self._world.mpi
        tag = zlib.crc32(f"{group.generation} {group.label}".encode()) % 2**15  # MPI guarantees tags below 2**15
        limit_s = CREATE_S + group.deadline_s
        self._communicator = interruptible(
            group, "an MPI communicator", limit_s, lambda: self._world.communicator(ranks, tag)
        )
        exchange(b"")  # no member continues, and maybe leaves, while another still connects
        self._world.trust(ranks, group.broken)

    def barrier(self) -> None:
        """Return when every member has called it."""

        def begin(_: list[Running], others: list[Running]) -> None:
            others.extend(zip([self.group.rank], map(self._mpi.Comm.Ibarrier, [self._communicator]), strict=True))

        self._run_requests(begin, [])

    def gather(self, mine: Array, whole: Array) -> None:
        """All-gather ``mine`` of all members into ``whole``."""
        self.transfers += 1
        self.bytes_sent += mine.nbytes * (self.group.size - 1)
        byte, buffer = self._mpi.BYTE, self._mpi.buffer.fromaddress
        send, recv = ([buffer(array.address, array.nbytes), byte] for array in (mine, whole))

        def begin(_: list[Running], others: list[Running]) -> None:
            others.extend(zip([self.group.rank], map(self._communicator.Iallgather, [send], [recv]), strict=True))

        self._run_requests(begin, [mine, whole])

    def _move(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> None:
        sources, rooms = self._cut(receives)
        targets, parts = self._cut(sends)

        def begin(incoming: list[Running], outgoing: list[Running]) -> None:
            communicator, tag = self._communicator, itertools.repeat(_TAG)
            incoming.extend(zip(sources, map(communicator.Irecv, rooms, sources, tag), strict=True))
            outgoing.extend(zip(targets, map(communicator.Isend, parts, targets, tag), strict=True))

        self._run_requests(begin, [array for _, array in (*sends, *receives)])

    def _run_requests(self, begin: Callable[[list[Running], list[Running]], None], arrays: Sequence[Array]) -> None:
        """Return when all requests are complete that ``begin`` adds to its two lists: receives, and others.

        ``begin`` adds them by ``extend`` and ``map``, in one step for the interpreter: Ctrl-C between the start of a
        request and its insertion would leave MPI with memory that is not recorded anywhere.
        """
        receives: list[Running] = []
        others: list[Running] = []
        deadline = time.monotonic() + self.group.deadline_s
        try:
            begin(receives, others)
            self._wait([*receives, *others], sum(array.nbytes for array in arrays), deadline)
        except BaseException as error:  # Ctrl-C, too: no request may keep arrays that are the caller's again
            self._give_up([request for _, request in receives], [request for _, request in others], arrays)
            if isinstance(error, self._mpi.Exception):
                why = f"MPI could not move the bytes of {self.group.label}: {error}"
                raise self.failure(EngineError, why) from error
            self.failure(EngineError, f"a collective of {self.group.label} was interrupted by {type(error).__name__}")
            raise

    def _wait(self, running: Sequence[Running], nbytes: int, deadline: float) -> None:
        requests, test = [request for _, request in running], self._mpi.Request.Testall
        nap, drowsy = _NAP_S, 0.0
        while not test(requests):  # testing also makes MPI progress
            now = time.monotonic()
            drowsy = drowsy or now + _YIELD_S + nbytes / _SLOW_BYTES_PER_S
            if self.aborted.is_set():
                self.check()
            elif now > deadline:
                raise self.stalled(next((peer for peer, request in running if not request.Test()), self.group.rank))
            elif now < drowsy:
                os.sched_yield()
            else:
                self.aborted.wait(nap)  # not ``sleep``: an abort ends this wait
                nap = min(2 * nap, _LONGEST_NAP_S)

    def _give_up(self, receives: Sequence[Any], others: Sequence[Any], arrays: Sequence[Array]) -> None:
        """Keep MPI from writing to the arrays. Only receives can be cancelled; other requests keep their memory."""
        for request in receives:
            if request != self._mpi.REQUEST_NULL:
                request.Cancel()
        until = time.monotonic() + _SETTLE_S
        while not self._mpi.Request.Testall(receives) and time.monotonic() < until:
            os.sched_yield()
        self._world.keep([*receives, *others], [array.owner for array in arrays])

    def _cut(self, parcels: Sequence[Parcel]) -> tuple[list[int], list[Any]]:
        """Members and buffers of parcels, in pieces whose length fits an int."""
        make, byte = self._mpi.buffer.fromaddress, self._mpi.BYTE
        cut = [
            (peer, [make(at, min(_MOST_BYTES, array.address + array.nbytes - at)), byte])
            for peer, array in parcels
            for at in range(array.address, array.address + array.nbytes, _MOST_BYTES)
        ]
        return [peer for peer, _ in cut], [buffer for _, buffer in cut]

    def _interrupt(self) -> None:
        """Do nothing: the loop checks the flag."""

    def _release(self, clean: bool) -> None:
        if clean:  # otherwise a late message could be matched on a later communicator with the same id
            self._communicator.Free()


@final
class _World:
    """MPI of this process, with unfinished requests of ended engines; one for all engines."""

    def __init__(self, library: MpiLibrary) -> None:
        self.mpi, self.initialise = library.mpi, library.initialise
        self._lock = threading.Lock()
        self._unfinished: list[tuple[list[Any], list[Any]]] = []
        self._broken: dict[int, ReentrantEvent] = {}  # by world rank: ``broken`` of its latest generation

    def communicator(self, ranks: Sequence[int], tag: int) -> Any:
        """Make a communicator of these world ranks; collective among them only."""
        world = self.mpi.COMM_WORLD
        members = world.group.Incl(ranks)
        try:
            return world.Create_group(members, tag)
        finally:
            members.Free()

    def trust(self, ranks: Sequence[int], broken: ReentrantEvent) -> None:
        """Assume that these ranks are alive until ``broken`` is set."""
        with self._lock:
            self._broken.update(dict.fromkeys(ranks, broken))

    def keep(self, requests: list[Any], owners: list[Any]) -> None:
        """Keep requests that MPI may still use, and their memory, until they are complete."""
        with self._lock:
            kept = [*self._unfinished, (requests, owners)]
            self._unfinished = [each for each in kept if not self.mpi.Request.Testall(each[0])]

    def has_lost_a_peer(self) -> bool:
        """True if a trusted rank may have exited."""
        return any(broken.is_set() for broken in self._broken.values())


@functools.cache
def _world() -> _World:
    """MPI as loaded by mpi4py, initialized only if the script did so; raises ``UnsupportedError`` if loading fails."""
    library = load()
    world = _World(library)
    library.doubts["engine"] = world.has_lost_a_peer
    return world


def initialise_together(group: Group, exchange: Exchange) -> _World:
    """Initialize MPI on all members; raises ``EngineError`` on all of them if one cannot take part.

    All members load the library before any initializes it, because MPI_Init waits for all processes of mpirun.
    """
    try:
        world, trouble = _world(), ""
        if world.mpi.Is_finalized():
            trouble = "MPI is finalized in this process already"
    except UnsupportedError as error:
        trouble = str(error)
    _raise_together(group, exchange(trouble.encode()))
    world.initialise(CREATE_S + group.deadline_s)
    return world


def _world_ranks(group: Group, exchange: Exchange) -> tuple[_World, list[int]]:
    """World ranks of the members; raises ``EngineError`` on all of them if one cannot take part."""
    world = initialise_together(group, exchange)
    _raise_together(group, exchange(_trouble(world.mpi, group).encode()))
    ranks = [int(said) for said in exchange(b"%d" % world.mpi.COMM_WORLD.rank)]
    if len(set(ranks)) < len(ranks):
        raise EngineError(
            f"engine mpi cannot connect {group.label}: its members have the ranks {ranks} of MPI's world, so they were "
            "not started by one mpirun or srun. Start the whole job by one, or use --engine tcp"
        )
    return world, ranks


def _raise_together(group: Group, said: Sequence[bytes]) -> None:
    troubles = [f"{group.name(member)}: {text.decode()}" for member, text in enumerate(said) if text]
    if troubles:
        raise EngineError(f"engine mpi cannot connect {group.label}. {'; '.join(troubles)}")


def _trouble(mpi: Any, group: Group) -> str:
    """Reason why this process cannot take part; "" if it can."""
    size, level = mpi.COMM_WORLD.size, mpi.Query_thread()
    if size < group.size:
        return (
            f"MPI started {size} processes and the group has {group.size}: start all of the job by one mpirun or srun, "
            "of the MPI that mpi4py loads (see: python -m mpi4py --mpi-lib-version)"
        )
    if level < mpi.THREAD_MULTIPLE:
        return (
            f"this MPI gives thread level {level}, and collectives come from several threads, which needs "
            f"{mpi.THREAD_MULTIPLE} (MPI_THREAD_MULTIPLE): use an MPI built for it, import mpi4py after init(), or use "
            "--engine tcp"
        )
    return ""
