"""Shared memory inside each host, another engine between hosts; every member carries its own share across.

engine = HybridEngine(group, rendezvous, functools.partial(make, "tcp"))
engine.allreduce(array, Reduction())     # reduce-scatter inside, all-reduce of shares across, all-gather inside
"""

# Threads. The caller of a collective uses ``_inside``, and ``_across`` for what goes in one piece; while a long message
# goes in several, only the pipeline's thread uses ``_across`` (``pipeline``). So each engine has one user at a time.
# ``abort`` may come from any thread, and only passes it on. ``_failure`` is written by the caller alone.
#
# ``_rooms`` are scratch memory for ``IN_FLIGHT`` rounds. Round k overwrites that of round k - IN_FLIGHT, and may: the
# pipeline has done all phases of the earlier one before it begins the later one.

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
from farandole.engines.hybrid.layout import HostLayout
from farandole.engines.hybrid.member_parts import MemberParts, Rounds, Shared
from farandole.engines.hybrid.pipeline import IN_FLIGHT, Phase, Pipeline
from farandole.engines.interruption import ends_when_interrupted
from farandole.engines.shm import ShmEngine
from farandole.errors import CollectiveError, EngineError, MismatchError, StallError, UnsupportedError
from farandole.native import core

Made = TypeVar("Made", bound="Engine | None")
EXACT_BYTES = 32 * 2**20
"""Size of all members' arrays together that a reduction in one step holds at once."""
MakeAcross: TypeAlias = Callable[[Group, Rendezvous], Engine]


@final
class HybridEngine(Engine):
    """Collectives of host memory among members on several hosts.

    ``make_across`` makes the engine of a lane (see ``HostLayout``). Creating this one is collective: every member of
    ``group`` calls it, and all raise if one cannot. An error ends it for good, on every host: also if neighbours
    disagree, which other hosts cannot be told without a message more in every collective.
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
        # A wait inside is for the network, and that is longer than any watching is worth.
        self._inside = _together(
            group, rendezvous, lambda: ShmEngine(near, rendezvous.among(f"host {layout.host}", near.ranks), spin_s=0.0)
        )
        try:
            self._across = _together(group, rendezvous, lambda: self._make_lane(rendezvous, make_across))
        except BaseException:  # nobody else has this engine yet, so nobody else would close it
            self.close()
            raise

    def _make_lane(self, rendezvous: Rendezvous, make_across: MakeAcross) -> Engine | None:
        layout = self._layout
        if not layout.carries:
            return None
        carriers = self.group.subgroup(layout.carriers(layout.lane))
        return make_across(carriers, rendezvous.among(f"lane {layout.lane}", carriers.ranks))

    # -- what belongs to all members ----------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> Memory:
        """Memory that neighbours share."""
        with self._collective():
            return self._inside.allocate(nbytes)

    @ends_when_interrupted
    def allreduce(self, array: Array, how: Reduction) -> None:
        """Reduce inside, each carrier a share; all-reduce the shares across; gather them inside."""
        require_served(array.dtype, how.op)
        if is_exact(array.dtype, how):
            self._allreduce_whole(array, how)
            return
        steps = _Steps(array.dtype, how, self.group.size)
        shared = Shared(self._layout, array)

        def before(k: int) -> None:
            self._inside.reducescatter(shared.pieces[k], shared.own[k], shared.counts[k], steps.inside)

        def across(engine: Engine, k: int) -> None:
            if shared.own[k].count:  # small arrays cross on the first lane alone
                engine.allreduce(shared.own[k], steps.across)
                steps.finish(shared.own[k])

        def after(k: int) -> None:
            self._inside.allgather(shared.own[k], shared.pieces[k], shared.counts[k])

        self._run(len(shared.pieces), before, across, after)

    def _allreduce_whole(self, array: Array, how: Reduction) -> None:
        """Bring everybody's array to all, and reduce it in one step."""
        size = self.group.size
        for piece in pieces(array, max(EXACT_BYTES // size, array.dtype.itemsize)):
            parts = plain_memory(piece.nbytes * size).array(piece.dtype, 0, piece.count * size)
            self.allgather(piece, parts, [piece.count] * size)
            self._combine(parts, piece, how)

    def _combine(self, parts: Array, target: Array, how: Reduction) -> None:
        """Reduce everybody's part, in the order of members."""
        size = self.group.size
        addresses = [part.address for part in split(parts, [target.count] * size)]
        divisor = size if how.op is ReduceOp.AVERAGE else 1
        core.reduce(addresses, target.address, target.count, target.dtype, how.op, how.prescale, how.postscale, divisor)

    @ends_when_interrupted
    def broadcast(self, array: Array, root: int) -> None:
        """From the root to its neighbours; each carrier brings a share to the other hosts; they gather inside."""
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

        self._run(len(shared.pieces), before, across, after)

    @ends_when_interrupted
    def gather_small(self, payload: bytes) -> list[bytes]:
        """Inside, across on the first lane, and inside again."""
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
        """Inside, across on the first lane, and inside again."""
        with self._collective():
            self._inside.barrier()
            if self._across is not None and self._layout.lane == 0:
                self._across.barrier()
            self._inside.barrier()

    # -- what has a part for each member ------------------------------------------------------------------------------

    @ends_when_interrupted
    def allgather(self, send: Array, recv: Array, counts: Sequence[int]) -> None:
        """Each carrier gathers its passengers' parts across; all of it is gathered inside."""
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

        self._run(rounds.number, before, across, after)

    @ends_when_interrupted
    def reducescatter(self, send: Array, recv: Array, counts: Sequence[int], how: Reduction) -> None:
        """Reduce inside, each carrier the parts of its passengers on all hosts; reduce-scatter them across."""
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

        self._run(rounds.number, before, across, after)

    @ends_when_interrupted
    def alltoall(self, send: Array, send_counts: Sequence[int], recv: Array, recv_counts: Sequence[int]) -> None:
        """Through the neighbours who carry for the receivers."""
        crossing = InterHostAlltoall(self._layout, self.group.rank, self._inside, self._across)
        with self._collective():
            crossing.run(send, send_counts, recv, recv_counts)

    def _to_carrier(self, mine: Array) -> list[int]:
        """Counts of my elements that each neighbour carries: all of them one, the others none."""
        return [mine.count if index == self._layout.lane else 0 for index in range(len(self._layout.neighbours))]

    def _of_passengers(self, parts: MemberParts) -> list[int]:
        """Counts of the elements I carry that belong to each neighbour."""
        layout = self._layout
        mine = layout.passengers(layout.host, layout.lane) if layout.carries else ()
        return [parts.of[member].count if member in mine else 0 for member in layout.neighbours]

    # -- how it ends --------------------------------------------------------------------------------------------------

    def abort(self, reason: str) -> None:
        """Wake who waits inside and who waits across."""
        for engine in self._engines():
            engine.abort(reason)

    def close(self) -> None:
        """Close both engines and end the thread."""
        for engine in self._engines():
            engine.close()
        self._pipeline.close()

    def statistics(self) -> dict[str, int | float | str]:
        """Hosts and lanes, and what both engines count."""
        counted = {**super().statistics(), "hosts": len(self._layout.hosts), "lanes": self._layout.lanes}
        for where, engine in zip(("inside", "across"), self._engines(), strict=False):
            counted |= {f"{where}_{name}": value for name, value in engine.statistics().items()}
        return counted

    def _engines(self) -> list[Engine]:
        return [self._inside] if self._across is None else [self._inside, self._across]

    def _run(self, number: int, before: Phase, across: Callable[[Engine, int], None], after: Phase) -> None:
        over = None if self._across is None else partial(across, self._across)
        with self._collective():
            self._pipeline.run(number, before, over, after)

    @contextmanager
    def _collective(self) -> Iterator[None]:
        """End the engine whatever goes wrong in the block: the hosts may be at different points of a collective."""
        if self._failure is not None:
            kind, text = self._failure
            raise kind(text)
        try:
            yield
        except MismatchError as error:  # which promises that the next collective works
            failure = EngineError(f"{error}. The other hosts do not know, and {self.group.label} has ended")
            self._fail(failure)
            raise failure from error
        except BaseException as error:  # Ctrl-C and SystemExit, too, leave the others in the middle
            self._fail(error)
            raise

    def interrupted(self, error: BaseException) -> None:
        """End both engines, unless they have ended."""
        if self._failure is None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Let nobody wait for this member, and return when nothing touches the caller's memory any more."""
        if isinstance(error, CollectiveError):
            self._failure = type(error), str(error)
        else:
            who, what = self.group.name(self.group.rank), f"{type(error).__name__} {error}".strip()
            self._failure = EngineError, f"{who} was interrupted by {what} in a collective of {self.group.label}"
        # Who waited too long leaves the others to their own deadlines: they then know for whom they have waited. But if
        # something is across, its thread must be woken, or the caller would wait in `drain` for another deadline.
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
    """A reduction in two steps, inside and across; scales and the division by the number of members are applied once.

    Sums of 16-bit floats are scaled and divided inside, in float32: what crosses then overflows only where the result
    does. Everything else is divided and scaled at the end, as only that gives products what they must be.
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
        """Do what is left to do when ``array`` has been reduced across."""
        if self._at_end != (1.0, 1):
            core.reduce([array.address], array.address, array.count, array.dtype, self.across.op, 1.0, *self._at_end)
