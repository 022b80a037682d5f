"""``DataLoader``: torch's, with batches that an ``ElasticSampler`` keeps account of."""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, final

import torch
from torch.utils.data import Dataset

from farandole.elastic.worker.index_batches import IndexBatches, is_control
from farandole.elastic.worker.sampler import SampleCursor
from farandole.errors import UsageError
from farandole.torch.elastic.sampler import ElasticSampler

if TYPE_CHECKING:
    from farandole.data.loading.augment import Step
    from farandole.data.loading.batches import Batches

TWICE = ("batch_sampler", "shuffle", "drop_last", "generator")
"""Arguments of torch's loader that the sampler decides about."""


class DataLoader(torch.utils.data.DataLoader[Any]):
    """Torch's ``DataLoader`` over what is left of an epoch; a batch counts when the step that used it is voted.

    >>> loader = hvd.elastic.DataLoader(dataset, batch_size=32, sampler=sampler, num_workers=2)
    >>> for x, y in loader:
    ...     loss(model(x), y).backward()
    ...     optimizer.step()

    ``batch_size`` is that of each rank. ``global_batch_size``, in its place, is that of all ranks together: then the
    sequence of global batches does not depend on who is there. No sample is repeated or left out: in the last step of
    an epoch ranks may have unequally many, and one that has none computes on a sample that weighs nothing.

    ``whole``: every rank gets the global batches as they are; for virtual workers, whose ``optimizer.shards(len(x))``
    takes the rows of this rank from them.

    Worker processes and prefetching are torch's. What they have prepared, and no step has used, does not count; after a
    change of the workers begin a new iteration, which ``elastic.run`` does as it calls the training function again.

    What its processes draw from the global generators (torch's, Python's, NumPy's) follows from the sampler's seed, the
    epoch and where in it an iteration begins, and differs between ranks. With ``whole`` it is the same on all ranks,
    and follows from where each batch lies in the epoch, whoever is there and whatever was before.
    Its processes live on when they get SIGTERM, which schedulers send to all processes as a notice: their worker leaves
    at its next commit, and needs them until then.

    ``threads``, or ``processes`` of fresh interpreters, load instead of torch's processes, into memory that is used
    again when no tensor lies in it any more; ``augment`` is what ``farandole.data.loading.augment`` has. The batches
    are those of torch's ``default_collate``, the same at any number of threads and processes.

    Other arguments are those of torch's loader. Raises ``ValueError`` for what the sampler decides about.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int = 1,
        *,
        sampler: ElasticSampler,
        global_batch_size: int = 0,
        whole: bool = False,
        threads: int = 0,
        processes: int = 0,
        augment: Step | Sequence[Step] = (),
        **others: Any,
    ) -> None:
        wrong = [name for name in TWICE if others.get(name)]
        if wrong:
            raise UsageError(f"elastic.DataLoader({wrong[0]}=...): the sampler decides about this; leave it out")
        if not isinstance(sampler, ElasticSampler):
            raise UsageError(f"sampler is a {type(sampler).__name__}: pass an ElasticSampler of this data set")
        self._batches, self._whole = IndexBatches(sampler, batch_size, global_batch_size, whole), whole
        others["generator"] = torch.Generator()  # else every iteration would take a number from the global one
        batches: Any = _SeededBatches(self._batches) if whole else self._batches
        if others.get("num_workers"):
            others["worker_init_fn"] = _Spared(others.get("worker_init_fn"))
        self._pool: Batches | None = None
        if threads or processes:
            from farandole.data.loading.batches import Batches  # most loaders need none of it

            _require_alone(others)
            self._pool = Batches(
                dataset, 0 if global_batch_size else batch_size, global_batch_size=global_batch_size, sampler=sampler,
                whole=whole, threads=threads or processes, processes=processes or None, augment=augment,
            )  # fmt: skip
        elif augment:
            raise UsageError("elastic.DataLoader(augment=...) without threads: give threads=8, or processes=4")
        super().__init__(dataset, batch_sampler=batches, **others)

    def close(self) -> None:
        """End the ``processes``, which otherwise end with this loader."""
        if self._pool:
            self._pool.close()

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override] # torch names the class of its own iterators
        if self._pool is not None:
            with closing(self._pool.iterate(torch.is_grad_enabled)) as loaded:
                for batch in loaded:
                    yield _as_tensors(batch, self.pin_memory)
            return
        cursor = self._batches.sampler.cursor
        rank = () if self._whole else (cursor.rank,)
        self.generator.manual_seed(_seed(cursor, cursor.position, *rank))
        # What is evaluated counts as progress, and has no part in the weights of gradients.
        plan = self._batches.plan()
        batches: Iterator[Any] = self._started()
        if is_control() and plan:
            batches = itertools.repeat(next(batches), len(plan))
        yield from cursor.hand_out_with(plan, batches, torch.is_grad_enabled)

    def _started(self) -> Iterator[Any]:
        """Torch's iterator, whose processes are spared from their beginning on: they keep the signal until they are."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        try:
            batches = super().__iter__()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for process in getattr(batches, "_workers", ()):
            process._popen.terminate = process._popen.kill  # as torch and Python end one that does not end by itself
        return batches


def _require_alone(others: dict[str, Any]) -> None:
    """Refuse arguments of torch's loader that say how its own processes load."""
    for name in ("num_workers", "collate_fn", "persistent_workers", "prefetch_factor", "worker_init_fn"):
        if others.get(name):
            raise UsageError(
                f"elastic.DataLoader(threads=..., {name}=...): {name} is for torch's own processes; leave it out, or "
                "threads= and processes="
            )


def _as_tensors(batch: Any, pinned: bool) -> Any:
    """Tensors over the arrays of a batch, in the structure of torch's ``default_collate``: tuples become lists."""
    import numpy as np

    if isinstance(batch, np.ma.MaskedArray):
        raise UsageError("a batch has a MaskedArray, and tensors have no mask: take fill='nan', or filled() in decode=")
    if isinstance(batch, np.ndarray):
        try:
            tensor = torch.from_numpy(batch)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"a batch has {batch.dtype}, of which there are no tensors ({error}): take native=True of the reader, "
                "or decode= that gives numbers in native byte order"
            ) from error
        return tensor.pin_memory() if pinned else tensor
    if isinstance(batch, dict):
        return {key: _as_tensors(value, pinned) for key, value in batch.items()}
    if hasattr(batch, "_make"):
        return batch._make(_as_tensors(value, pinned) for value in batch)
    is_nested = isinstance(batch, (list, tuple))
    return [_as_tensors(value, pinned) for value in batch] if is_nested else batch


@final
class _Spared:
    """``worker_init_fn`` of processes that do not end by SIGTERM as long as their parent lives, and the script's own.

    A handler, and no SIG_IGN: programs that a data set starts must not inherit it.
    """

    def __init__(self, init: Callable[[int], object] | None) -> None:
        self._init = init

    def __call__(self, worker: int) -> None:
        parent = os.getppid()

        def hear(number: int, _: object) -> None:
            if os.getppid() != parent:
                os._exit(128 + number)

        signal.signal(signal.SIGTERM, hear)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        if self._init is not None:
            self._init(worker)


@final
class _SeededBatches:
    """Global batches for virtual workers: each of them seeds the process that loads it."""

    def __init__(self, batches: IndexBatches) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        cursor = self._batches.sampler.cursor
        for batch, rows in zip(self._batches.plan(), self._batches, strict=True):
            yield _SeededRows(rows, _seed(cursor, batch.start))

    def __len__(self) -> int:
        return len(self._batches)


@final
class _SeededRows(list[int]):
    """Rows of a batch; they become a plain list, and ``seed`` that of the generators, where they are unpickled.

    That is in a process of the loader, just before it loads them: it asks for one batch after the other.
    """

    def __init__(self, rows: list[int], seed: int) -> None:
        super().__init__(rows)
        self._seed = seed

    def __reduce__(self) -> Any:
        return _seeded, (list(self), self._seed)


def _seeded(rows: list[int], seed: int) -> list[int]:
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if numpy := sys.modules.get("numpy.random"):
        numpy.seed(seed % 2**32)
    return rows


def _seed(cursor: SampleCursor, *place: int) -> int:
    """Seed for a place in the epoch of ``cursor``; numbers have the same hash in all processes."""
    return hash((cursor.seed, cursor.epoch, *place)) % 2**63
