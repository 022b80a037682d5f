"""``StagedLayout``: order and shares of staged data: each rank gets rows that its host holds.

    layout = StagedLayout(store, window=8)
    layout.agree()                      # on all ranks: who is there, what has each of them, what is each to hold

In epoch 0 pieces are still arriving, so the order takes them ``window`` at a time; later epochs are shuffled exactly.
Data that do not fit into all caches together are taken in windows in every epoch, of pieces of each host: so each host
reads pieces that do not stay for its own ranks. The kind of order is chosen anew for each epoch, because hosts join and
leave; an epoch under way keeps its order.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from typing import TypeGuard, final

import msgspec
import numpy as np
import numpy.typing as npt

from farandole.data.planning.order import ExactOrder, SampleOrder, WindowOrder
from farandole.data.planning.plan import StagingPlan
from farandole.data.planning.shares import share_out
from farandole.data.staging.cache import PLANS
from farandole.data.staging.host_plan import STREAM_WINDOW, pieces_in, planned
from farandole.data.staging.plan_journal import SUFFIX, PlanRecord, note
from farandole.data.staging.protocol import Assign, FirstUses, HostEntry, Passed
from farandole.data.staging.staged_files import StagedFiles
from farandole.data.storage.pieces import Pieces, most_bytes
from farandole.elastic.worker.layout import Layout
from farandole.errors import DataError, UsageError
from farandole.runtime.collectives.objects import allgather_object
from farandole.runtime.session.init import current, is_initialized, session_number

ARRIVAL, STREAM = "arrival-1", "stream-1"
FIRST_CUT = 4 * 2**20, 64
"""Least bytes, and number in a small cache, of the pieces of orders whose name does not say how large they are."""


@final
class StagedLayout(Layout):
    """Order and shares of the samples in ``store``; ``limit`` is the cache room of each host in bytes."""

    def __init__(self, store: StagedFiles, window: int, limit: int) -> None:
        self._store, self._limit = store, limit
        self._window = window
        self._order: Sequence[int] | None = None
        """Order that the stager knows."""
        self._until = 0
        """Position in that order up to which the stager need not be told about progress."""
        self._turns = 0
        """How often another sampler came next before a window of the one before had passed."""
        self._is_mixed = False
        """True while samplers take turns: their orders together are none."""
        self._plan: StagingPlan | None = None
        self._hosts: tuple[str, ...] = ()
        self._entries: list[HostEntry] = []
        self._agreed: tuple[int, int] | None = None
        self._bounds: dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64] | None]] = {}

    @property
    def name(self) -> str:
        kind, window, groups = ARRIVAL, self._window, 1
        if self._plan is not None and self._store.is_stream:
            kind, groups = STREAM, sum(not each.leaving for each in self._entries)
            window = min(window, STREAM_WINDOW) * groups
        return f"{kind}:{window}:{groups}:{self._store.link.config.most_bytes}"

    def check(self, name: str) -> None:
        self._parsed(name)

    def _parsed(self, name: str) -> tuple[str, int, int, int]:
        """Kind, window, groups, and most bytes of the pieces, of the order with this name."""
        kind, *numbers = name.split(":")
        if kind not in (ARRIVAL, STREAM) or len(numbers) not in (1, 3) or not all(each.isdigit() for each in numbers):
            raise UsageError(
                f"the state was saved in the order {name!r}, and these data are staged: to go on in that epoch, use "
                "them as they were used then"
            )
        first = most_bytes(self._store.manifest, self._limit, *FIRST_CUT)
        window, groups, most = [*map(int, numbers), 1, first][:3]
        return kind, window, groups, most

    def order(self, length: int, seed: int, epoch: int, name: str = "") -> SampleOrder:
        kind, window, groups, most = self._parsed(name or self.name)
        if epoch and kind != STREAM:
            order: SampleOrder = ExactOrder(length, seed, epoch)
        else:
            if most not in self._bounds:
                self._bounds[most] = Pieces.of(self._store.manifest, most).sample_bounds()
            bounds, members = self._bounds[most]
            order = WindowOrder(bounds, window, seed, epoch, members, groups)
        self._report(order)
        return order

    def begin(self, order: Sequence[int], position: int) -> None:
        if order is not self._order:  # another sampler was at work meanwhile
            self._turns += 1
            self._report(order, is_mixed=self._turns > 1)
        if self._is_mixed or position < self._until or not self._store.is_stream or not self._has_our_pieces(order):
            return
        if self._until:
            self._turns = 0
        passed, self._until = order.passed(position)
        if self._is_leader:
            with contextlib.suppress(DataError):  # the next read says what is wrong
                self._store.link.request(Passed(passed))

    def _report(self, order: Sequence[int] | None, is_mixed: bool = False) -> None:
        """Send the stager the order in which pieces are used."""
        was_mixed, self._is_mixed = self._is_mixed, is_mixed
        self._order, self._until = order, 0
        if is_mixed and was_mixed:
            return
        self._store.close()  # the next use of each piece is then reported to the stager
        if order is None or not self._is_leader:
            return
        if self._has_our_pieces(order) and not is_mixed:
            self._store.link.request(FirstUses(order.pieces.astype(np.int32).tobytes()))
        elif self._store.is_stream:  # or hosts were lost since the epoch began, or the state is one of another limit
            self._store.link.request(FirstUses(b"", scattered=True))

    def _has_our_pieces(self, order: Sequence[int] | None) -> TypeGuard[WindowOrder]:
        """True for an order that takes pieces of the store one after the other."""
        ours = self._bounds.get(self._store.link.config.most_bytes)
        return isinstance(order, WindowOrder) and ours is not None and np.array_equal(order.bounds, ours[0])

    def rows(self, samples: Sequence[int], counts: Sequence[int]) -> Sequence[Sequence[int]] | None:
        staging = self._plan
        if staging is None or len(staging.names) == 1 or len(counts) != len(self._hosts):
            return None
        pieces = self._store.pieces.of_samples(np.asarray(samples))
        holders = staging.copies[pieces]
        streamed = staging.streamed[pieces]
        holders[streamed, staging.reads[pieces[streamed]]] = True
        if holders.all():
            return None
        columns = {name: column for column, name in enumerate(staging.names)}
        shares = share_out(holders, [columns.get(host, -1) for host in self._hosts], counts)
        return [share.tolist() for share in shares]

    def agree(self) -> None:
        if not is_initialized() or current().provisional or current().topology.size == 1:
            self._alone()
            return
        here = current()
        generation = (session_number(), here.generation)
        if generation == self._agreed:
            return
        mine = self._entry() if here.topology.local_rank == 0 else ""
        most = self._store.link.config.most_bytes
        told = allgather_object(
            (self._store.manifest.digest, most, mine, self._left(here.topology.hosts)), name="farandole.data.stage"
        )
        if len({most for _, most, *_ in told}) > 1:
            raise DataError("ranks give stage() other limits, and pieces of data have one size: give one limit= to all")
        if len({digest for digest, *_ in told}) > 1:
            other = next(rank for rank, (digest, *_) in enumerate(told) if digest != told[0][0])
            raise DataError(
                f"rank {other} on {here.topology.hosts[other]} stages other files than rank 0, or the same in another "
                f"version: {self._store.manifest.root} must be one folder that all hosts see, and not change"
            )
        found = [entry for *_, entry, _ in told]
        if errors := [each for each in found if isinstance(each, str) and each]:
            raise DataError(errors[0])
        entries = [each for each in found if isinstance(each, HostEntry)]
        left = {each.name: each for *_, some in told for each in some}
        self._plan_generation(here.generation, [*entries, *left.values()], here.topology.hosts)
        self._agreed = generation

    @property
    def plan(self) -> StagingPlan | None:
        """The plan that the ranks have agreed on; ``None`` before that."""
        return self._plan

    @property
    def _is_leader(self) -> bool:
        return not is_initialized() or current().topology.local_rank == 0

    def _alone(self) -> None:
        """Plan for this host alone. A worker that waits for admission to a job makes no plan; it reads by itself."""
        if is_initialized() and current().provisional:
            return
        entry = self._entry()
        if isinstance(entry, str):
            raise DataError(entry)
        if self._plan is None or self._hosts != (entry.name,):
            self._plan_generation(0, [entry, *self._left((entry.name,))], (entry.name,))

    def _left(self, hosts: Sequence[str]) -> list[HostEntry]:
        """Hosts that left since the previous plan; one host of the previous plan reports them.

        Their workers were told to leave, and their stagers deliver pieces that no other host holds. None after a fault.
        """
        known = sorted(each.name for each in self._entries if each.name in hosts)
        if self._plan is None or not Layout.is_planned or known[:1] != [self._store.link.config.host]:
            return []
        columns = {name: np.packbits(self._plan.copies[:, at]).tobytes() for at, name in enumerate(self._plan.names)}
        left = [each for each in self._entries if each.name not in hosts and not each.leaving]
        return [msgspec.structs.replace(each, holds=columns[each.name], leaving=True) for each in left]

    def _entry(self) -> HostEntry | str:
        """Entry of this host in the plan, or an error message."""
        try:
            found = self._store.link.statistics()
            self._store.use(found.folder)
            free = shutil.disk_usage(found.folder).free if os.path.isdir(found.folder) else 0
            held = int(self._store.pieces.sizes[pieces_in(found.holds, len(self._store.pieces))].sum())
            room = min(self._limit, free * 9 // 10 + held)
        except (DataError, OSError) as error:
            return f"{self._store.link.config.host}: {error}"
        return HostEntry(self._store.link.config.host, room, found.addresses, found.holds)

    def _plan_generation(self, generation: int, entries: list[HostEntry], hosts: tuple[str, ...]) -> None:
        sizes = self._store.pieces.sizes
        self._plan, self._hosts, self._entries = planned(entries, sizes), hosts, entries
        self._store.is_stream = bool(self._plan.streamed.any())
        if least := self._too_small(entries):
            raise DataError(least)
        if not is_initialized() or current().topology.rank == 0:
            self._note(PlanRecord.of(generation, entries, self._plan, self._store.manifest.digest))
        assigned = Assign(session_number() * 2**20 + generation, entries)
        if self._is_leader:
            self._store.link.assign(assigned)
        else:
            self._store.link.remember(assigned)
        self._report(self._order)

    def _note(self, record: PlanRecord) -> None:
        journal = current().settings.elastic_journal if is_initialized() else ""
        paths = [f"{journal}{SUFFIX}"] if journal else []
        if not self._store.link.config.mirror:
            paths.append(f"{self._store.folder}/{PLANS}")
        for path in paths:
            with contextlib.suppress(OSError):  # training continues without the record
                note(path, record)

    def _too_small(self, entries: list[HostEntry]) -> str:
        least = self._store.pieces.least_room
        small = [entry for entry in entries if entry.capacity < least and not entry.leaving]
        if not small:
            return ""
        return (
            f"{small[0].name} has room for {small[0].capacity} bytes in its cache, and two pieces of the data need "
            f"{least}: give limit={least} or more, a cache= with more space, or train on the data unstaged"
        )
