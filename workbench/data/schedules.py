"""Simulated schedules of joins, leaves, kills, full disks and resumes of a job on staged data.

    python -m workbench.data.schedules --number 10000 --seed 1

Each schedule is a small data set on a few hosts. An event changes the hosts while pieces are under way and batches in
flight; all hosts plan anew, and training goes on at another size. Checked at every step: every piece can be obtained;
only pieces that no host holds are read from the shared storage; no cache holds more than its room, or waits for another
full cache; and in the end, each sample was committed once. The seed of a schedule repeats it.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from farandole.data.planning.order import ExactOrder, WindowOrder
from farandole.data.planning.plan import HostSpec, StagingPlan, plan
from farandole.data.planning.shares import share_out
from farandole.elastic.worker.layout import Layout
from farandole.elastic.worker.sampler import GlobalBatch, SampleCursor

EPOCHS = 2
EVENTS = ("join", "leave", "kill", "shrink", "grow", "resume")


@final
class ScheduleError(AssertionError):
    """An invariant is broken; the text ends with the seed that repeats the schedule."""


@final
@dataclass
class SimulatedHost:
    """A host with its cache, and the number of ranks on it."""

    room: int
    ranks: int
    holds: set[int] = field(default_factory=set)
    leaving: bool = False


class Transfer(NamedTuple):
    """A piece that is under way to a host: from another host, or from the shared storage."""

    piece: int
    source: str
    target: str


@final
class SimulatedLayout(Layout):
    """Order and shares of a simulated job; ``staging`` is its plan."""

    name = "simulated"

    def __init__(self, bounds: npt.NDArray[np.int64], window: int) -> None:
        self._bounds, self._window = bounds, window
        self.staging: StagingPlan | None = None
        self.host_of_rank: list[int] = []
        self._orders: dict[tuple[int, int], list[int]] = {}
        self._last: tuple[bytes, list[list[int]]] = b"", []

    def check(self, name: str) -> None:
        assert name == self.name

    def order(self, length: int, seed: int, epoch: int, name: str = "") -> list[int]:
        if (seed, epoch) not in self._orders:
            window = WindowOrder(self._bounds, self._window, seed, epoch)
            self._orders[seed, epoch] = list(ExactOrder(length, seed, epoch) if epoch else window)
        return self._orders[seed, epoch]

    def rows(self, samples: Sequence[int], counts: Sequence[int]) -> list[list[int]]:
        assert self.staging is not None
        places = np.asarray(samples, dtype=np.int64)
        if self._last[0] != places.tobytes():
            pieces = np.searchsorted(self._bounds, places, side="right") - 1
            assert (self.staging.copies[pieces].any(axis=1) | self.staging.streamed[pieces]).all()
            shares = share_out(self.staging.copies[pieces], self.host_of_rank, counts)
            self._last = places.tobytes(), [share.tolist() for share in shares]
        return self._last[1]

    def change(self, staging: StagingPlan, host_of_rank: list[int]) -> None:
        """Use another plan, for other ranks."""
        self.staging, self.host_of_rank, self._last = staging, host_of_rank, (b"", [])


@final
class StagingSchedule:
    """A simulated job; ``run`` takes it through its events to the end of its second epoch."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 (to be repeated)
        self.sizes = [self.chance.randint(1, 9) for _ in range(self.chance.randint(1, 24))]
        samples = [self.chance.randint(0, 4) for _ in self.sizes]
        samples[0] += 1
        self.bounds = np.concatenate(([0], np.cumsum(samples)))
        self.hosts: dict[str, SimulatedHost] = {}
        self.counts: Counter[str] = Counter()
        self.ledger: Counter[tuple[int, int]] = Counter()
        self.waiting: list[Transfer] = []
        self.drops: set[tuple[str, int]] = set()
        self.layout = SimulatedLayout(self.bounds, self.chance.randint(1, 5))
        self.state: dict[str, Any] = self._cursor(0, 1).state_dict()
        for _ in range(self.chance.randint(1, 5)):
            self._join()

    def run(self) -> Counter[str]:
        """Run to the end; returns counts of events. Raises ``ScheduleError`` if an invariant is broken."""
        self._replan()
        for _ in range(self.chance.randint(1, 6)):
            self._move(self.chance.randint(0, 2 * len(self.sizes)))
            self._train(self.chance.randint(0, 5))
            event = self.chance.choice(EVENTS)
            self.counts[event] += 1
            getattr(self, f"_{event}")()
            self._replan()
        self._move()
        self._check_staged()
        while self.state["epoch"] < EPOCHS:
            self._train(10**6)
        committed = {(epoch, sample): 1 for epoch in range(EPOCHS) for sample in range(int(self.bounds[-1]))}
        self._demand(self.ledger == committed, "a sample was not committed exactly once in an epoch")
        return self.counts

    # -- events --------------------------------------------------------------------------------------------------------

    def _join(self) -> None:
        total = sum(self.sizes)
        room = self.chance.choice([0, total // 4, total // 2, total, 2 * total])
        self.hosts[f"host{self.chance.randint(0, 10**6)}"] = SimulatedHost(room, self.chance.randint(1, 3))

    def _leave(self) -> None:
        stays = [name for name, host in self.hosts.items() if not host.leaving]
        if len(stays) > 1:
            self.hosts[self.chance.choice(stays)].leaving = True

    def _kill(self) -> None:
        if sum(not host.leaving for host in self.hosts.values()) > 1:
            del self.hosts[self.chance.choice([name for name, host in self.hosts.items() if not host.leaving])]
        self.hosts = {n: h for n, h in self.hosts.items() if not h.leaving or self.chance.random() < 0.5}

    def _shrink(self) -> None:
        """Fill the disk of a cache from outside: pieces beyond its new room are lost: nothing else makes room."""
        host = self.hosts[self.chance.choice(list(self.hosts))]
        host.room = self.chance.randint(0, host.room)
        for piece in self.chance.sample(sorted(host.holds), len(host.holds)):
            if self._load(host) > host.room:
                host.holds.discard(piece)

    def _grow(self) -> None:
        self.hosts[self.chance.choice(list(self.hosts))].room += self.chance.randint(0, sum(self.sizes))

    def _resume(self) -> None:
        """End the job and begin it on other hosts, some of which have kept their caches."""
        kept = {name: host for name, host in self.hosts.items() if self.chance.random() < 0.7}
        for host in kept.values():
            host.leaving, host.ranks = False, self.chance.randint(1, 3)
        self.hosts = kept
        if not kept or self.chance.random() < 0.5:
            self._join()

    # -- what follows --------------------------------------------------------------------------------------------------

    def _replan(self) -> None:
        specs = [HostSpec(name, host.room, frozenset(host.holds), host.leaving) for name, host in self.hosts.items()]
        self.chance.shuffle(specs)
        found = plan(self.sizes, specs)
        held = set().union(*(host.holds for host in self.hosts.values()))
        kept: npt.NDArray[np.bool_] = np.any(found.copies, axis=1)
        for piece, reader in enumerate(found.reads.tolist()):
            self._demand(
                (reader < 0) == (piece in held and bool(kept[piece])), f"piece {piece}: who holds it, who reads it"
            )
            self._demand(bool(kept[piece]) or bool(found.streamed[piece]), f"piece {piece} cannot be obtained")
        for name, load, room in zip(found.names, found.loads().tolist(), found.capacities.tolist(), strict=True):
            self._demand(load <= room, f"{name} is to hold {load} of {room}")
        names = found.names
        reads = [(p, r) for p, r in enumerate(found.reads.tolist()) if r >= 0 and not found.streamed[p]]
        sends = zip(*(each.tolist() for each in found.sends), strict=True)
        self.waiting = [Transfer(piece, "", names[reader]) for piece, reader in reads]
        self.waiting += [Transfer(piece, names[source], names[target]) for piece, source, target in sends]
        self.drops = {(names[host], piece) for piece, host in zip(*(d.tolist() for d in found.drops), strict=True)}
        ranks = [
            n for n, name in enumerate(names) if not self.hosts[name].leaving for _ in range(self.hosts[name].ranks)
        ]
        self.chance.shuffle(ranks)
        self.layout.change(found, ranks)

    def _move(self, most: int = 10**6) -> None:
        """Move pieces, in any order that caches allow, ``most`` of them."""
        self.chance.shuffle(self.waiting)
        while self.waiting and most:
            transfer = next((t for t in self.waiting if self._can(t)), self.waiting[0])
            self._demand(self._can(transfer), "full caches wait for each other")
            self.waiting.remove(transfer)
            self._receive(transfer)
            most -= 1
        if not self.waiting:
            for name, piece in self.drops:
                self.hosts[name].holds.discard(piece)
            self.drops = set()

    def _can(self, transfer: Transfer) -> bool:
        if transfer.source and transfer.piece not in self.hosts[transfer.source].holds:
            return False
        target = self.hosts[transfer.target]
        needed = {(each.source, each.piece) for each in self.waiting}
        for name, piece in sorted(self.drops):
            if self._load(target) + self.sizes[transfer.piece] <= target.room:
                break
            if name == transfer.target and (name, piece) not in needed:
                target.holds.discard(piece)
                self.drops.discard((name, piece))
        return self._load(target) + self.sizes[transfer.piece] <= target.room

    def _receive(self, transfer: Transfer) -> None:
        if not transfer.source:
            holders = [name for name, host in self.hosts.items() if transfer.piece in host.holds]
            self._demand(not holders, f"piece {transfer.piece} is read from the shared storage, and lies on {holders}")
            self.counts["bytes read"] += self.sizes[transfer.piece]
        else:
            self.counts["bytes sent"] += self.sizes[transfer.piece]
        host = self.hosts[transfer.target]
        host.holds.add(transfer.piece)
        self._demand(self._load(host) <= host.room, f"{transfer.target} holds more than it has room for")

    def _check_staged(self) -> None:
        assert self.layout.staging is not None
        for number, name in enumerate(self.layout.staging.names):
            wanted = {*np.flatnonzero(self.layout.staging.copies[:, number]).tolist()}
            self._demand(self.hosts[name].holds == wanted, f"{name} holds other pieces than the plan says")

    def _train(self, steps: int) -> None:
        """Take some steps on all ranks, and leave a batch in flight that is not committed."""
        size = len(self.layout.host_of_rank)
        cursors = [self._cursor(rank, size) for rank in range(size)]
        for cursor in cursors:
            cursor.load_state_dict(self.state)
        batches = self._batches(cursors) if self.state["epoch"] < EPOCHS else iter(())
        for batch in islice(batches, steps):
            self._step(cursors, batch)
        if following := next(batches, None):
            cursors[-1].hand_out(following)
        elif self.state["epoch"] < EPOCHS:
            cursors[0].set_epoch(cursors[0].epoch + 1)
        self.state = cursors[0].state_dict()

    def _batches(self, cursors: Sequence[SampleCursor]) -> Iterator[GlobalBatch]:
        sizes = self.chance.choice(
            [{"global_batch_size": self.chance.randint(1, 16)}, {"batch_size": self.chance.randint(1, 4)}]
        )
        return cursors[0].batches(**sizes)

    def _step(self, cursors: Sequence[SampleCursor], batch: GlobalBatch) -> None:
        counts = batch.counts(len(cursors))
        for cursor, count in zip(cursors, counts, strict=True):
            cursor.hand_out(batch)
            mine = cursor.own_indices()
            self._demand(len(mine) == count, f"rank {cursor.rank} has {len(mine)} samples instead of {count}")
            self.ledger.update((cursor.epoch, sample) for sample in mine)
        for cursor in cursors:
            cursor.advance(batch.samples)

    def _cursor(self, rank: int, size: int) -> SampleCursor:
        length = int(self.bounds[-1])
        return SampleCursor(length, seed=5, rank=rank, size=size, layout=self.layout)

    def _load(self, host: SimulatedHost) -> int:
        return sum(self.sizes[piece] for piece in host.holds)

    def _demand(self, holds: bool, text: str) -> None:
        if not holds:
            raise ScheduleError(text)


def run_schedules(number: int, seed: int) -> Counter[str]:
    """Run that many schedules; returns counts of events, or raises ``ScheduleError`` with the seed to repeat."""
    counts: Counter[str] = Counter()
    for each in range(seed, seed + number):
        try:
            counts += StagingSchedule(each).run()
        except AssertionError as error:
            raise ScheduleError(f"{error}: python -m workbench.data.schedules --number 1 --seed {each}") from error
    return counts


def main(arguments: Sequence[str] | None = None) -> int:
    """Run schedules and print one line of counts."""
    parser = argparse.ArgumentParser(prog="python -m workbench.data.schedules", description=__doc__.partition("\n")[0])
    parser.add_argument("--number", type=int, default=10_000, help="how many schedules (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first; the others follow (default: 1)")
    options = parser.parse_args(arguments)
    try:
        counts = run_schedules(options.number, options.seed)
    except ScheduleError as error:
        sys.stdout.write(f"{error}\n")
        return 1
    said = ", ".join(f"{counts[name]} {name}" for name in (*EVENTS, "bytes read", "bytes sent"))
    sys.stdout.write(f"{options.number} schedules, no fault: {said}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
