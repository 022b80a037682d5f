"""``Batches``: NumPy batches, loaded ahead, each sample of an epoch exactly once, even if workers join or leave.

batches = Batches(source, batch_size=32, threads=8)
for epoch in range(90):
    batches.set_epoch(epoch)
    for images, labels in batches:             # NumPy arrays, of reused memory
        step(images, labels)
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, final

from farandole.collective import ReduceOp, Reduction
from farandole.data.loading.augment import SampleLoader, Step
from farandole.data.loading.batch_memory import BatchMemory
from farandole.data.loading.concurrency import Concurrency
from farandole.data.loading.corrupt import most_of
from farandole.data.loading.pool import InputWait, LoadedBatches, Loader, concurrency_of, sample_name
from farandole.data.loading.processes import DecodeProcesses
from farandole.data.loading.report import input_log
from farandole.data.planning.order import ExactOrder
from farandole.elastic.worker.epoch_sampler import EpochSampler
from farandole.elastic.worker.index_batches import IndexBatches, is_control
from farandole.elastic.worker.sampler import GlobalBatch
from farandole.errors import DataError, UsageError
from farandole.events import logger
from farandole.runtime.collectives.objects import BufferAdapter, allgather_object
from farandole.runtime.collectives.verbs import Verbs
from farandole.runtime.session.init import current, is_initialized
from farandole.runtime.session.process_sets import global_process_set


@final
class ExactSampler(EpochSampler):
    """Sampler that computes its shuffled order position by position: no list of 10⁸ samples."""

    @staticmethod
    def _shuffled(length: int, seed: int, epoch: int) -> Sequence[int]:
        """See ``EpochSampler``."""
        return ExactOrder(length, seed, epoch)


@final
class Batches:
    """Batches of this rank, from the position of ``sampler`` in its epoch on; default: the whole data set, shuffled.

    >>> [batch.tolist() for batch in Batches([1, 2, 3, 4, 5], batch_size=2, shuffle=False, threads=2)]
    [[1, 2], [3, 4], [5]]

    ``dataset`` has ``__len__`` and ``__getitem__``: a source, a data set of PyTorch, a data source of Grain. It may
    also have ``read_into(index, arrays) -> bool``, which reads a sample into its row of a batch, or returns false if
    the sample does not fit, and ``path_of(index)``, for error messages.

    ``batch_size`` is per rank; ``global_batch_size``, in its place, is for all ranks together. The last batch of an
    epoch may be smaller; no sample is dropped or repeated. ``whole``: every rank gets the global batches, for virtual
    workers.

    ``threads`` read and decode, or as many ``processes``, the default for a data set whose library holds a lock. Of
    ``farandole.data.images``, no more threads work than there are processors while storage is fast.
    ``augment`` is a step or several, see ``farandole.data.loading.augment``. ``ahead``: number of batches that are
    loaded in advance. ``fake``, as ``farandole run --input fake``, returns the first batch again and again: a training
    that is no faster with it does not wait for its input.

    A sample whose bytes or decoding are corrupt raises ``DataError``. With ``on_corrupt="skip"`` the global batch is
    smaller by it: see ``iterate``.

    In an elastic job pass the ``sampler`` that is registered with the state: the vote on a step counts its samples as
    done. In other jobs ``commit`` does so, which matters if ``state_dict`` is saved in the middle of an epoch.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 0,
        *,
        global_batch_size: int = 0,
        sampler: EpochSampler | None = None,
        whole: bool = False,
        threads: int = 8,
        processes: int | None = None,
        augment: Step | Sequence[Step] = (),
        seed: int | None = None,
        shuffle: bool | None = None,
        ahead: int = 0,
        fake: bool = False,
        on_corrupt: str = "raise",
    ) -> None:
        if sampler is not None and (seed is not None or shuffle is not None):
            raise UsageError("Batches(sampler=..., seed=..., shuffle=...): the sampler decides about seed and order")
        if bool(batch_size) == bool(global_batch_size):
            raise UsageError(f"batch_size={batch_size}, global_batch_size={global_batch_size}: give one of them")
        if processes is None:
            processes = min(threads, len(os.sched_getaffinity(0))) if getattr(dataset, "holds_lock", False) else 0
        if threads < 1 or processes < 0:
            raise UsageError(f"threads={threads}, processes={processes}: threads=1 and processes=0 are the least")
        if on_corrupt not in ("raise", "skip") or (whole and on_corrupt == "skip"):
            raise UsageError(f"on_corrupt={on_corrupt!r}: it is 'raise' or, without whole=True, 'skip'")
        self.dataset, self.batch_size, self.global_batch_size = dataset, batch_size, global_batch_size
        self.sampler = sampler or ExactSampler(dataset, shuffle is None or shuffle, seed or 0)
        self.threads, self.processes, self.fake = threads, processes, fake or is_control()
        self.skips = on_corrupt == "skip"
        self.steps: tuple[Step, ...] = (augment,) if callable(augment) else tuple(augment)
        self._indices = IndexBatches(self.sampler, batch_size or 1, global_batch_size, whole)
        self._memory, self._ahead, self._whole = BatchMemory(), ahead, whole
        self._concurrency: Concurrency | None = None
        self._decoders: tuple[int, DecodeProcesses] | None = None

    def __len__(self) -> int:
        """Number of batches left in the epoch."""
        return len(self._indices)

    def __iter__(self) -> Iterator[Any]:
        return self.iterate()

    def iterate(self, trains: Callable[[], bool] = lambda: True) -> Generator[Any, None, None]:
        """Iterate; ``trains`` returns false for a batch that is only evaluated, which must not weight a gradient.

        Raises ``UsageError`` if all batches of an epoch are handed out and ``set_epoch`` was not called since.

        With ``on_corrupt="skip"`` the rank that has a corrupt sample leaves it out of its batch, and names it in a
        warning. Before each batch that trains, all ranks tell each other whether one was left out: an all-reduce of a
        byte, so every rank must iterate. The weights of gradients in elastic jobs then make the mean over the samples
        that are left. A rank that has none left computes on another sample, with weight 0. Samples left out count as
        done. Raises ``DataError`` on all ranks if an epoch has more of them than 1 %, and than 4.
        """
        cursor = self.sampler.cursor
        if cursor.in_flight and cursor.in_flight[-1].stop == cursor.length:
            raise UsageError(
                f"epoch {cursor.epoch} is handed out to its end: call set_epoch({cursor.epoch + 1}) for the next one"
            )
        plan = list(self._plan()) if self.fake else self._plan()
        read = self._by_length(plan).values() if isinstance(plan, list) else self._plan()
        with closing(self.load(cursor.samples_of(batch, whole=self._whole) for batch in read)) as batches:
            log = input_log.begin(self.workers, in_processes=bool(self.processes))
            contents = self._faked(plan, batches) if isinstance(plan, list) else batches
            for content in cursor.hand_out_with(plan, contents, trains):
                if self.skips and not self.fake:
                    self._leave_out(batches, trains())
                if trains():
                    batch = cursor.in_flight[-1]
                    log.handed_out((cursor.epoch, batch.start), batch.samples, batches.last)
                    batches.last = InputWait()  # a batch that is handed out again is not waited for
                yield content

    def load(self, indices: Iterable[Sequence[int]]) -> LoadedBatches:
        """Load batches of any samples, augmented for this epoch; close the iterator, or exhaust it."""
        cursor = self.sampler.cursor
        load = SampleLoader(self.dataset, self.steps, cursor.seed, self.skips)
        loads = self._loads(load)
        if self._concurrency is None:
            self._concurrency = concurrency_of(loads)
        self._concurrency.reads_batches = True  # one batch that was not like the others costs an epoch of single rows
        return LoadedBatches(indices, loads, self._memory, self._ahead, cursor.rank, self._concurrency)

    @property
    def workers(self) -> int:
        """Number of threads or processes that decode."""
        return self.processes or self.threads

    def set_epoch(self, epoch: int) -> None:
        """Begin ``epoch``, or go on if it is under way."""
        self.sampler.set_epoch(epoch)

    def commit(self) -> None:
        """Count handed-out batches as done. Not in elastic jobs, where the vote on a step does so."""
        cursor = self.sampler.cursor
        cursor.advance(sum(batch.samples for batch in cursor.in_flight))

    def state_dict(self) -> dict[str, Any]:
        """Position in the epoch, for ``load_state_dict`` with any number of ranks, and the name of the order."""
        return {"order": self._order, **self.sampler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved position. Raises ``UsageError`` for a state of another data set or order."""
        if self.sampler.cursor.layout is None and state.get("order", self._order) != self._order:
            raise UsageError(
                f"the state is one of the order {state['order']!r}, and these batches have {self._order!r}: their "
                "places do not compare; make the sampler as it was, or begin the epoch anew"
            )
        self.sampler.load_state_dict(state)

    def close(self) -> None:
        """End the processes; a new iteration starts new ones."""
        if self._decoders:
            self._decoders[1].close()
            self._decoders = None

    @property
    def _order(self) -> str:
        default = "shuffled" if self.sampler.shuffle else "sequential"
        return str(getattr(self.sampler.cursor.indices, "name", default))

    def _loads(self, load: SampleLoader) -> list[Loader]:
        """One loader for each thread."""
        epoch = self.sampler.cursor.epoch
        if not self.processes:
            return [Loader(load, epoch)] * self.threads
        if self._decoders and (self._decoders[0] != load.seed or not self._decoders[1].are_alive):
            self.close()
        if self._decoders is None:
            self._decoders = load.seed, DecodeProcesses(load, self.processes)
        return [Loader(each, epoch) for each in self._decoders[1].loads]

    def _leave_out(self, batches: LoadedBatches, trains: bool) -> None:
        """Leave corrupt samples out of the batch that was just handed out. Collective, if the batch trains."""
        cursor = self.sampler.cursor
        is_mine = bool(cursor.positions(cursor.in_flight[-1]))  # else its sample is another rank's, too
        found = {sample_name(i, self): why for i, why in batches.left_out.items() if is_mine}
        for name, why in found.items():
            if name not in input_log.corrupt:
                logger.warning("%s is left out, because it is corrupt: %s", name, why)
        input_log.corrupt.update(found)
        if not trains:
            return
        everywhere = _told(found)
        for each in everywhere:
            input_log.corrupt.update(each)
        so_far = cursor.leave_out(len(found), sum(map(len, everywhere))) if any(everywhere) else 0
        if so_far > (most := most_of(cursor.length)):
            name, why = next(item for each in everywhere for item in each.items())
            raise DataError(
                f"{so_far} samples of epoch {cursor.epoch} are corrupt, and on_corrupt='skip' leaves out {most} of "
                f"{cursor.length} at most: the data set is broken, and not a file of it. The last one is {name}: {why}"
            )

    def _plan(self) -> Iterator[GlobalBatch]:
        return self.sampler.cursor.batches(self.batch_size, self.global_batch_size)

    def _by_length(self, plan: Sequence[GlobalBatch]) -> dict[int, GlobalBatch]:
        """First batch of each length, by the number of samples of this rank."""
        return {self._samples(batch): batch for batch in reversed(plan)}

    def _samples(self, batch: GlobalBatch) -> int:
        """Number of samples that this rank loads of a batch."""
        cursor = self.sampler.cursor
        return batch.samples if self._whole else max(1, batch.counts(cursor.size)[cursor.rank])

    def _faked(self, plan: Sequence[GlobalBatch], batches: Iterator[Any]) -> Iterator[Any]:
        """The first batch again and again; a batch of another length has its own."""
        loaded = dict(zip(self._by_length(plan), batches, strict=True))
        return (loaded[self._samples(batch)] for batch in plan)


_verbs = Verbs(BufferAdapter())


def _told(found: dict[str, str]) -> list[dict[str, str]]:
    """Corrupt samples by rank; the ranks exchange them only if one of them has ``found`` any."""
    if not is_initialized() or current().provisional or current().topology.size == 1:
        return [found]
    is_any = (ctypes.c_char * 1)(b"\1" if found else b"\0")
    name = "farandole.data.corrupt"
    _verbs.allreduce([is_any], name, Reduction(ReduceOp.MAX), global_process_set, in_place=True).run()
    return allgather_object(found, f"{name}.samples") if is_any.raw != b"\0" else []


batches = Batches
"""``Batches``, as the name of a function."""
