"""Record of the work of an elastic job's workers, and proof that the job lost no step, no sample and no bit.

    Ledger(folder, state)                           # in the training script, before the training function is called

    history = read(folder)                          # afterwards
    assert not history.problems(length=len(dataset), epochs=2)

Every worker writes its work to a file of its own at once, so that the work of a killed worker is known, too.
"""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar, final

import msgspec

from farandole import events
from farandole.elastic.worker.state import ObjectState
from farandole.elastic.worker.state_sync import Inventory
from farandole.elastic.worker.transfer import FlatState
from farandole.events import Recovery
from farandole.runtime.session.init import current


@final
class Begun(msgspec.Struct, frozen=True, tag=True):
    """Record: a worker has the state of a new generation; ``digest``: of the tensors that are equal on all ranks."""

    generation: int
    rank: int
    size: int
    step: int
    digest: str
    time_s: float


@final
class Brought(msgspec.Struct, frozen=True, tag=True):
    """Record: a worker votes for ``step``, for which it has computed ``indices`` of the ``epoch`` of a sampler."""

    generation: int
    rank: int
    step: int
    sampler: str
    epoch: int
    indices: list[int]


@final
class Voted(msgspec.Struct, frozen=True, tag=True):
    """Record: a worker knows that all have voted for ``step``; without a vote, it has committed the step."""

    generation: int
    rank: int
    step: int
    time_s: float


Record: TypeAlias = Begun | Brought | Voted | Recovery
R = TypeVar("R", Begun, Recovery)

_IMPORTED_MS = time.monotonic_ns() // 1_000_000


def who() -> str:
    """Name of this process, unique over all time; after a reboot, a host uses the same pids again."""
    return f"{socket.gethostname()}-{os.getpid()}at{_IMPORTED_MS}"


@final
class Ledger:
    """Records the work of this worker on ``state``, until ``close``."""

    def __init__(self, folder: Path | str, state: ObjectState) -> None:
        self._state = state
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(Path(folder) / f"worker-{who()}.jsonl", flags, 0o644)
        self._cancel = events.subscribe(self._note)

    def close(self) -> None:
        """End the record."""
        self._cancel()
        os.close(self._fd)

    def brought(self, sampler: str, epoch: int, indices: Sequence[int]) -> None:
        """Record that this worker computes ``indices`` for the step under way, in a training without a vote.

        Call it before the gradients are reduced: after that another rank can commit these indices.
        """
        here = current()
        step, rank = self._state._step_vote.step, here.topology.rank
        self._write(Brought(here.generation, rank, step, sampler, epoch, [int(index) for index in indices]))

    def digest(self) -> str:
        """Checksum of the tensors that are equal on all ranks."""
        leaves = self._state._leaves
        return f"{FlatState(leaves.memory(Inventory(self._state._parts, leaves).common())).checksum():08x}"

    def _note(self, event: events.Event) -> None:
        if isinstance(event, Recovery):
            self._write(event)
        elif isinstance(event, events.Milestone):
            for record in self._records(event):
                self._write(record)

    def _records(self, event: events.Milestone) -> Iterator[Record]:
        generation, rank, step = event.generation, event.rank, event.step
        if event.phase == "synced":
            size = self._size()
            yield Begun(generation, rank, size, step, self.digest(), time.monotonic())
        elif event.phase == "vote":
            for name, cursor in self._state._step_vote.cursors.items():
                yield Brought(generation, rank, step, name, cursor.epoch, cursor.own_indices())
        elif event.phase == "voted" or (event.phase == "commit" and not self._state._votes):
            yield Voted(generation, rank, step - 1, time.monotonic())

    def _size(self) -> int:
        sizes = [cursor.size for cursor in self._state._step_vote.cursors.values()]
        return sizes[0] if sizes else 0

    def _write(self, record: Record) -> None:
        # One write for each line, without a buffer: the work of a worker before it was killed must be in the file.
        os.write(self._fd, msgspec.json.encode(record) + b"\n")


# -- results -----------------------------------------------------------------------------------------------------------


@final
class History:
    """Records of all workers of a job, and the steps that count."""

    def __init__(self, workers: dict[str, list[Record]]) -> None:
        self.workers = workers
        self.records = [record for records in workers.values() for record in records]
        self.begun = _by_generation([r for r in self.records if isinstance(r, Begun)])
        self.recovered = _by_generation([r for r in self.records if isinstance(r, Recovery)])
        voted = {(r.generation, r.step) for r in self.records if isinstance(r, Voted)}
        starts = {generation: records[0].step for generation, records in self.begun.items()}
        self.steps = {
            step: generation
            for generation, step in sorted(voted)
            if not any(later > generation and start <= step for later, start in starts.items())
        }
        """Steps that count, with their generation; a step is void if a later generation began at it or before it."""

    def samples(self, sampler: str = "sampler") -> dict[int, Counter[int]]:
        """Count how often each index was committed, by epoch."""
        found: dict[int, Counter[int]] = {}
        for record in self.records:
            if isinstance(record, Brought) and record.sampler == sampler:
                counter = found.setdefault(record.epoch, Counter())
                if self.steps.get(record.step) == record.generation:
                    counter.update(record.indices)
        return found

    def batches(self, sampler: str = "sampler") -> list[list[int]]:
        """The global batch of every step that counts, sorted, in the order of steps."""
        found: dict[int, list[int]] = {step: [] for step in sorted(self.steps)}
        for record in self.records:
            if not isinstance(record, Brought) or record.sampler != sampler:
                continue
            if self.steps.get(record.step) == record.generation:
                found[record.step] += record.indices
        return [sorted(indices) for indices in found.values()]

    def problems(self, length: int, epochs: int, sampler: str = "sampler") -> list[str]:
        """List problems: samples that were lost or repeated, missing steps, ranks that differ; [] if there are none.

        For a job that has trained ``epochs`` whole epochs of ``length`` samples.
        """
        found = []
        samples = self.samples(sampler)
        for epoch in range(epochs):
            counts = samples.get(epoch, Counter())
            lost = [index for index in range(length) if not counts[index]]
            again = [index for index, count in counts.items() if count > 1]
            if lost or again:
                found.append(f"epoch {epoch}: {len(lost)} samples lost {lost[:9]}, {len(again)} repeated {again[:9]}")
        missing = sorted(set(range(max(self.steps, default=-1) + 1)) - set(self.steps))
        if missing:
            found.append(f"steps {missing[:9]} were never voted")
        for generation, records in self.begun.items():
            if len({(record.step, record.digest) for record in records}) > 1:
                said = {record.rank: (record.step, record.digest) for record in records}
                found.append(f"generation {generation} began with different states: {said}")
        return found


def read(folder: Path | str) -> History:
    """Read the ledgers in ``folder``; an incomplete last line, of a writer that was killed, does not count."""
    decode = msgspec.json.Decoder(Record).decode
    workers = {}
    for path in sorted(Path(folder).glob("worker-*.jsonl")):
        workers[path.stem] = [
            decode(line) for line in path.read_bytes().splitlines(keepends=True) if line[-1:] == b"\n"
        ]
    return History(workers)


def _by_generation(records: Sequence[R]) -> dict[int, list[R]]:
    found: dict[int, list[R]] = {}
    for record in records:
        found.setdefault(record.generation, []).append(record)
    return dict(sorted(found.items()))
