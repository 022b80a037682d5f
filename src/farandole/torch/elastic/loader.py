"""``DataLoader``: torch's loader over the batches of an ``ElasticSampler``, which counts the samples."""

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
"""Arguments of torch's loader that the sampler determines."""


class DataLoader(torch.utils.data.DataLoader[Any]):
    """Torch's ``DataLoader`` over the rest of an epoch; a batch counts when the step that used it is voted.

    >>> loader = hvd.elastic.DataLoader(dataset, batch_size=32, sampler=sampler, num_workers=2)
    >>> for x, y in loader:
    ...     loss(model(x), y).backward()
    ...     optimizer.step()

    ``batch_size`` is per rank. ``global_batch_size``, used instead, is the total of all ranks: then the sequence of
    global batches does not depend on the workers. No sample is repeated or left out: in the last step of an epoch the
    ranks may have unequal numbers of samples, and a rank without samples computes on a sample of weight 0.

    ``whole``: every rank gets the complete global batches; for virtual workers, whose ``optimizer.shards(len(x))``
    selects the rows of this rank.

    Worker processes and prefetching are torch's. Prepared batches that no step has used do not count. After a change of
    the workers, begin a new iteration; ``elastic.run`` does so by calling the training function again.

    Random numbers of the loader's processes (global generators of torch, Python, NumPy) depend on the sampler's seed,
    the epoch and the position at which an iteration begins, and differ between ranks. With ``whole`` they are the same
    on all ranks, and depend only on the position of each batch in the epoch, for any workers and any history.
    The loader's processes ignore SIGTERM, which schedulers send to all processes as a notice: their worker leaves at
    its next commit, and needs them until then.

    ``threads``, or ``processes`` of new interpreters, load instead of torch's processes, into memory that is reused
    when no tensor refers to it any more; ``augment``: see ``farandole.data.loading.augment``. The batches are those of
    torch's ``default_collate``, the same for any number of threads and processes. With them
    ``on_corrupt="skip"`` leaves corrupt samples out of their batches, with a warning: the gradient is the mean over the
    samples that are left. See ``farandole.data.Batches.iterate``.

    Other arguments are torch's. Raises ``ValueError`` for arguments that the sampler determines.
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
        on_corrupt: str = "raise",
        **others: Any,
    ) -> None:
        wrong = [name for name in TWICE if others.get(name)]
        if wrong:
            raise UsageError(f"elastic.DataLoader({wrong[0]}=...): the sampler decides about this; leave it out")
        if not isinstance(sampler, ElasticSampler):
            raise UsageError(f"sampler is a {type(sampler).__name__}: pass an ElasticSampler of this data set")
        self._batches, self._whole = IndexBatches(sampler, batch_size, global_batch_size, whole), whole
        others["generator"] = torch.Generator()  # otherwise every iteration would draw from the global generator
        batches: Any = _SeededBatches(self._batches) if whole else self._batches
        if others.get("num_workers"):
            others["worker_init_fn"] = _Spared(others.get("worker_init_fn"))
        self._pool: Batches | None = None
        if threads or processes:
            from farandole.data.loading.batches import Batches  # a lazy import: most loaders do not need it

            _require_alone(others)
            self._pool = Batches(
                dataset, 0 if global_batch_size else batch_size, global_batch_size=global_batch_size, sampler=sampler,
                whole=whole, threads=threads or processes, processes=processes or None, augment=augment,
                on_corrupt=on_corrupt,
            )  # fmt: skip
        elif augment or on_corrupt != "raise":
            name = "augment=..." if augment else f"on_corrupt={on_corrupt!r}"
            raise UsageError(f"elastic.DataLoader({name}) without threads: give threads=8, or processes=4")
        super().__init__(dataset, batch_sampler=batches, **others)

    def close(self) -> None:
        """End the ``processes``; without a call, they end when this loader is freed."""
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
        # Batches of an evaluation count as progress, but do not affect the weights of gradients.
        plan = self._batches.plan()
        batches: Iterator[Any] = self._started()
        if is_control() and plan:
            batches = itertools.repeat(next(batches), len(plan))
        yield from cursor.hand_out_with(plan, batches, torch.is_grad_enabled)

    def _started(self) -> Iterator[Any]:
        """Torch's iterator; SIGTERM stays blocked in its processes until their handler is installed."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        try:
            batches = super().__iter__()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for process in getattr(batches, "_workers", ()):
            process._popen.terminate = process._popen.kill  # torch and Python end hanging processes by ``terminate``
        return batches


def _require_alone(others: dict[str, Any]) -> None:
    """Refuse arguments of torch's loader for its own processes."""
    for name in ("num_workers", "collate_fn", "persistent_workers", "prefetch_factor", "worker_init_fn"):
        if others.get(name):
            raise UsageError(
                f"elastic.DataLoader(threads=..., {name}=...): {name} is for torch's own processes; leave it out, or "
                "threads= and processes="
            )


def _as_tensors(batch: Any, pinned: bool) -> Any:
    """Tensors on the memory of a batch's arrays, in the structure of ``default_collate``: tuples become lists."""
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
    """``worker_init_fn`` that ignores SIGTERM while the parent lives, and then calls the script's own.

    It uses a handler and not SIG_IGN, which programs started by a data set would inherit.
    """

    def __init__(self, init: Callable[[int], object] | None) -> None:
        self._init = init

    def __call__(self, worker: int) -> None:
        parent = os.getppid()

        def exit_if_orphaned(number: int, _: object) -> None:
            if os.getppid() != parent:
                os._exit(128 + number)

        signal.signal(signal.SIGTERM, exit_if_orphaned)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        if self._init is not None:
            self._init(worker)


@final
class _SeededBatches:
    """Global batches for virtual workers: each batch seeds the process that loads it."""

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
    """Rows of a batch. Unpickling makes a plain list and seeds the generators with ``seed``.

    A process of the loader unpickles them just before it loads the batch, because it takes one batch after the other.
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
    """Seed for a position in the epoch of ``cursor``; the hash of integers is the same in all processes."""
    return hash((cursor.seed, cursor.epoch, *place)) % 2**63
