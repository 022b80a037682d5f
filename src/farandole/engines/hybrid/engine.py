"""Hybrid engine: shared memory inside each host, another engine between hosts; each member sends its own share.

engine = HybridEngine(group, rendezvous, functools.partial(make, "tcp"))
engine.allreduce(array, Reduction())     # reduce-scatter inside, all-reduce of shares across, all-gather inside
"""

# Threads. The caller of a collective uses ``_inside``, and ``_across`` for messages of one piece; for a longer message
# only the pipeline's thread uses ``_across`` (``pipeline``). So each engine has one user at a time. Any thread may call
# ``abort``, which only forwards the call to both engines. Only the caller writes ``_failure``.
#
# ``_rooms`` are scratch memory for ``IN_FLIGHT`` rounds. Round k overwrites the memory of round k - IN_FLIGHT, safely:
# the pipeline finishes all phases of the earlier round before it begins the later one.

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import ClassVar, TypeAlias, TypeVar, cast, final

from farandole.collective import Array, DType, ReduceOp, Reduction
from farandole.engines.arrays import copy, pieces, plain_memory, split
from farandole.engines.engine import (
    PAYLOAD_BYTES,
    Engine,
    Group,
    Memory,
    Rendezvous,
    is_exact,
    require_served,
    require_short,
)
from farandole.engines.hybrid.inter_host_alltoall import InterHostAlltoall
from farandole.engines.hybrid.layout import HostLayout, MemberParts, Rounds, Shared
from farandole.engines.hybrid.pipeline import IN_FLIGHT, Phase, Pipeline
from farandole.engines.interruption import ends_when_interrupted
from farandole.engines.shm import ShmEngine
from farandole.errors import CollectiveError, EngineError, MismatchError, StallError, UnsupportedError
from farandole.native import core

Made = TypeVar("Made", bound="Engine | None")
EXACT_BYTES = 32 * 2**20
"""Largest total of all members' arrays that a single-step reduction holds at once."""
MakeAcross: TypeAlias = Callable[[Group, Rendezvous], Engine]


@final
class HybridEngine(Engine):
    """Collectives of host memory among members on several hosts.

    ``make_across`` makes the engine of a lane (see ``HostLayout``). The constructor is collective: every member of
    ``group`` calls it, and all raise if one fails. An error ends the engine for good, on every host: also a mismatch
    inside one host, because telling the other hosts would cost an additional message in every collective.
    """

    name: ClassVar[str] = "hybrid"

    def __init__(self, group: Group, rendezvous: Rendezvous, make_across: MakeAcross) -> None:
        self.group = group
        self._layout = layout = HostLayout.of(group.hosts, group.rank)
        self._failure: tuple[type[CollectiveError], str] | None = None
        self._across: Engine | None = None
        self._pipeline = Pipeline(group.label)
        self._rooms = [plain_memory(0)] * IN_FLIGHT
        near = group.subgroup(layout.neighbours)
        # No polling inside: these waits are for the network, which takes longer than polling pays off.
        self._inside = _together(
            group, rendezvous, lambda: ShmEngine(near, rendezvous.among(f"host {layout.host}", near.ranks), spin_s=0.0)
        )
        try:
            self._across = _together(group, rendezvous, lambda: self._make_lane(rendezvous, make_across))
        except BaseException:  # no other code has a reference to this engine yet, so it must be closed here
            self.close()
            raise

    def _make_lane(self, rendezvous: Rendezvous, make_across: MakeAcross) -> Engine | None:
        layout = self._layout
        if not layout.carries:
            return None
        carriers = self.group.subgroup(layout.carriers(layout.lane))
        return make_across(carriers, rendezvous.among(f"lane {layout.lane}", carriers.ranks))

    # -- collectives of data that belong to all members ---------------------------------------------------------------

    def allocate(self, nbytes: int) -> Memory:
        """Allocate memory that the members of a host share."""
        with self._collective():
            return self._inside.allocate(nbytes)

    @ends_when_interrupted
    def allreduce(self, array: Array, how: Reduction) -> None:
        """Reduce-scatter shares inside; all-reduce the shares across; all-gather them inside."""
        require_served(array.dtype, how.op)
        if is_exact(array.dtype, how):
            self._allreduce_whole(array, how)
            return
        steps = _Steps(array.dtype, how, self.group.size)
        shared = Shared(self._layout, array)

        def before(k: int) -> None:
            self._inside.reducescatter(shared.pieces[k], shared.own[k], shared.counts[k], steps.inside)

        def across(engine: Engine, k: int) -> None:
            if shared.own[k].count:  # small arrays use only the first lane
                engine.allreduce(shared.own[k], steps.across)
                steps.finish(shared.own[k])

        def after(k: int) -> None:
            self._inside.allgather(shared.own[k], shared.pieces[k], shared.counts[k])

        self._run_pipeline(len(shared.pieces), before, across, after)

    def _allreduce_whole(self, array: Array, how: Reduction) -> None:
        """All-gather the arrays of all members, and reduce them in one step on each."""
        size = self.group.size
        for piece in pieces(array, max(EXACT_BYTES // size, array.dtype.itemsize)):
            parts = plain_memory(piece.nbytes * size).array(piece.dtype, 0, piece.count * size)
            self.allgather(piece, parts, [piece.count] * size)
            self._combine(parts, piece, how)

    def _combine(self, parts: Array, target: Array, how: Reduction) -> None:
        """Reduce the parts of all members, in member order."""
        size = self.group.size
        addresses = [part.address for part in split(parts, [target.count] * size)]
        divisor = size if how.op is ReduceOp.AVERAGE else 1
        core.reduce(addresses, target.address, target.count, target.dtype, how.op, how.prescale, how.postscale, divisor)

    @ends_when_interrupted
    def broadcast(self, array: Array, root: int) -> None:
        """Broadcast on the root's host; each carrier sends a share to the other hosts; these all-gather inside."""
        layout = self._layout
        source = next(host for host, members in enumerate(layout.hosts) if root in members)
        shared = Shared(layout, array)

        def before(k: int) -> None:
            if layout.host == source:
                self._inside.broadcast(shared.pieces[k], layout.neighbours.index(root))

        def across(engine: Engine, k: int) -> None:
            if shared.own[k].count:
                engine.broadcast(shared.own[k], source)

        def after(k: int) -> None:
            if layout.host != source:
                self._inside.allgather(shared.own[k], shared.pieces[k], shared.counts[k])

        self._run_pipeline(len(shared.pieces), before, across, after)

    @ends_when_interrupted
    def gather_small(self, payload: bytes) -> list[bytes]:
        """Gather inside, across on the first lane, and broadcast inside."""
        require_short(payload)
        layout = self._layout
        everybody = ctypes.create_string_buffer(PAYLOAD_BYTES * self.group.size)
        table = Array(ctypes.addressof(everybody), len(everybody), DType.UINT8, everybody)
        counts = [PAYLOAD_BYTES * len(members) for members in layout.hosts]
        with self._collective():
            near = self._inside.gather_small(payload)
            if self._across is not None and layout.lane == 0:
                own = split(table, counts)[layout.host]
                ctypes.memmove(own.address, b"".join(each.ljust(PAYLOAD_BYTES, b"\0") for each in near), own.nbytes)
                self._across.allgather(own, table, counts)
            self._inside.broadcast(table, 0)
        order = [member for members in layout.hosts for member in members]
        found = {member: everybody.raw[PAYLOAD_BYTES * i : PAYLOAD_BYTES * (i + 1)] for i, member in enumerate(order)}
        return [found[member].rstrip(b"\0") for member in range(self.group.size)]

    @ends_when_interrupted
    def barrier(self) -> None:
        """Synchronize inside, across on the first lane, and inside again."""
        with self._collective():
            self._inside.barrier()
            if self._across is not None and self._layout.lane == 0:
                self._across.barrier()
            self._inside.barrier()

    # -- collectives with a part for each member ----------------------------------------------------------------------

    @ends_when_interrupted
    def allgather(self, send: Array, recv: Array, counts: Sequence[int]) -> None:
        """All-gather across, each carrier for its passengers; then all-gather everything inside."""
        rounds = Rounds(self._layout, recv.dtype, counts, self._rooms)

        def before(k: int) -> None:
            mine, parts = rounds.cut(send, self.group.rank, k), rounds[k]
            if self._layout.is_even:
                copy(parts.of[self.group.rank], mine)
            else:
                self._inside.alltoall(mine, self._to_carrier(mine), parts.arrived, self._of_passengers(parts))

        def across(engine: Engine, k: int) -> None:
            engine.allgather(rounds[k].arrived, rounds[k].lane, rounds[k].by_host)

        def after(k: int) -> None:
            self._inside.allgather(rounds[k].lane, rounds[k].whole, rounds[k].by_neighbour)
            for member, part in enumerate(split(recv, counts)):
                copy(rounds.cut(part, member, k), rounds[k].of[member])

        self._run_pipeline(rounds.number, before, across, after)

    @ends_when_interrupted
    def reducescatter(self, send: Array, recv: Array, counts: Sequence[int], how: Reduction) -> None:
        """Reduce inside, each carrier for its passengers on all hosts; then reduce-scatter across."""
        require_served(send.dtype, how.op)
        if is_exact(send.dtype, how):
            parts = plain_memory(recv.nbytes * self.group.size).array(recv.dtype, 0, recv.count * self.group.size)
            self.alltoall(send, counts, parts, [recv.count] * self.group.size)
            self._combine(parts, recv, how)
            return
        steps = _Steps(send.dtype, how, self.group.size)
        rounds = Rounds(self._layout, send.dtype, counts, self._rooms)

        def before(k: int) -> None:
            for member, part in enumerate(split(send, counts)):
                copy(rounds[k].of[member], rounds.cut(part, member, k))
            self._inside.reducescatter(rounds[k].whole, rounds[k].lane, rounds[k].by_neighbour, steps.inside)

        def across(engine: Engine, k: int) -> None:
            engine.reducescatter(rounds[k].lane, rounds[k].arrived, rounds[k].by_host, steps.across)
            steps.finish(rounds[k].arrived)

        def after(k: int) -> None:
            mine, parts = rounds.cut(recv, self.group.rank, k), rounds[k]
            if self._layout.is_even:
                copy(mine, parts.of[self.group.rank])
            else:
                self._inside.alltoall(parts.arrived, self._of_passengers(parts), mine, self._to_carrier(mine))

        self._run_pipeline(rounds.number, before, across, after)

    @ends_when_interrupted
    def alltoall(self, send: Array, send_counts: Sequence[int], recv: Array, recv_counts: Sequence[int]) -> None:
        """Exchange through the carriers of the receivers' lanes."""
        crossing = InterHostAlltoall(self._layout, self.group.rank, self._inside, self._across)
        with self._collective():
            crossing.alltoall(send, send_counts, recv, recv_counts)

    def _to_carrier(self, mine: Array) -> list[int]:
        """Number of this member's elements that each neighbour carries: one carries all, the others none."""
        return [mine.count if index == self._layout.lane else 0 for index in range(len(self._layout.neighbours))]

    def _of_passengers(self, parts: MemberParts) -> list[int]:
        """Number of the elements that this member carries for each neighbour."""
        layout = self._layout
        mine = layout.passengers(layout.host, layout.lane) if layout.carries else ()
        return [parts.of[member].count if member in mine else 0 for member in layout.neighbours]

    # -- abort and close ----------------------------------------------------------------------------------------------

    def abort(self, reason: str) -> None:
        """Wake threads that wait inside or across."""
        for engine in self._engines():
            engine.abort(reason)

    def close(self) -> None:
        """Close both engines and end the pipeline's thread."""
        for engine in self._engines():
            engine.close()
        self._pipeline.close()

    def statistics(self) -> dict[str, int | float | str]:
        """Hosts and lanes, and the counters of both engines."""
        counted = {**super().statistics(), "hosts": len(self._layout.hosts), "lanes": self._layout.lanes}
        for where, engine in zip(("inside", "across"), self._engines(), strict=False):
            counted |= {f"{where}_{name}": value for name, value in engine.statistics().items()}
        return counted

    def _engines(self) -> list[Engine]:
        return [self._inside] if self._across is None else [self._inside, self._across]

    def _run_pipeline(self, number: int, before: Phase, across: Callable[[Engine, int], None], after: Phase) -> None:
        over = None if self._across is None else partial(across, self._across)
        with self._collective():
            self._pipeline.run_pieces(number, before, over, after)

    @contextmanager
    def _collective(self) -> Iterator[None]:
        """End the engine on any error in the block: the hosts may be at different points of a collective."""
        if self._failure is not None:
            kind, text = self._failure
            raise kind(text)
        try:
            yield
        except MismatchError as error:  # replaced, because a MismatchError promises that the next collective works
            failure = EngineError(f"{error}. The other hosts do not know, and {self.group.label} has ended")
            self._fail(failure)
            raise failure from error
        except BaseException as error:  # also Ctrl-C and SystemExit, which leave the others inside the collective
            self._fail(error)
            raise

    def interrupted(self, error: BaseException) -> None:
        """End both engines, unless they have ended."""
        if self._failure is None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Wake members that wait for this one, and return when no thread uses the caller's memory any more."""
        if isinstance(error, CollectiveError):
            self._failure = type(error), str(error)
        else:
            who, what = self.group.name(self.group.rank), f"{type(error).__name__} {error}".strip()
            self._failure = EngineError, f"{who} was interrupted by {what} in a collective of {self.group.label}"
        # After a timeout the others keep their own deadlines, so that they can report for whom they waited. But if a
        # piece is across, its thread must be woken, or the caller would wait in `drain` for another deadline.
        if not isinstance(error, StallError) or self._pipeline.is_busy:
            self.abort(self._failure[1])
        self._pipeline.drain()


def _together(group: Group, rendezvous: Rendezvous, make: Callable[[], Made]) -> Made:
    """Make a part of the engine; if one member cannot, all raise."""
    made, failure = None, ""
    try:
        made = make()
    except (CollectiveError, UnsupportedError) as error:
        failure = str(error)
    for member, said in enumerate(rendezvous(failure.encode())):
        if said:
            if made is not None:
                made.close()
            raise EngineError(f"{group.name(member)} cannot take part in {group.label}: {said.decode()}")
    return cast("Made", made)


@final
class _Steps:
    """A reduction in two steps, inside and across; factors and the division by the number of members are applied once.

    Sums of 16-bit floats are scaled and divided inside, in float32: then the partial results overflow only if the
    result does. All other reductions are divided and scaled at the end, because products are correct only then.
    """

    def __init__(self, dtype: DType, how: Reduction, size: int) -> None:
        is_mean = how.op is ReduceOp.AVERAGE and dtype is not DType.BOOL
        op = ReduceOp.SUM if is_mean else how.op
        self.across = Reduction(op)
        divisor = size if is_mean else 1
        if dtype in (DType.FLOAT16, DType.BFLOAT16) and op is ReduceOp.SUM:
            self._at_end, inside = (1.0, 1), how.postscale / divisor
        else:
            self._at_end, inside = (how.postscale, divisor), 1.0
        self.inside = Reduction(op, how.prescale, inside)

    def finish(self, array: Array) -> None:
        """Apply the remaining factor and division after ``array`` has been reduced across."""
        if self._at_end != (1.0, 1):
            core.reduce([array.address], array.address, array.count, array.dtype, self.across.op, 1.0, *self._at_end)
