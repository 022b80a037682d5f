"""Pool of threads that loads batches ahead, in order, into reused memory; it ends with its iterator.

    with closing(LoadedBatches([[3, 1], [2, 0]], [Loader(load, epoch)] * 8, BatchMemory())) as batches:
        for batch in batches: ...              # load(epoch, 3), load(epoch, 1) ... in eight threads

Each thread has a loader, which decodes in the thread, or has a process decode.
"""

# Threads. The consumer, one thread at a time, plans: it makes batches, and puts a token for each helping thread into
# ``_Work.tokens``. A loading thread takes a token and then rows of that batch until all are taken. Loading threads need
# no lock between them, because ``deque.popleft`` gives each row to one of them. The thread that finishes the last row
# sets ``ready``; two threads may both find that all rows are finished, and then both set it.
#
# Waking a thread costs as much as reading a small sample from memory. So for fast samples only a few threads get a
# token, always the same ones, and one of them reads a whole batch by one call, if the data set can. Otherwise
# ``Concurrency`` says how many threads load. The batches ahead get more tokens after the consumer has waited for
# ``HELP_S``, and tokens for all threads once a batch is late.
#
# Loading threads refer to ``_Work`` and never to the iterator, which can thus be garbage while they run. Its finalizer
# puts an end mark into ``tokens``, a ``SimpleQueue``, because a finalizer may run inside of any other call, even
# ``put``. The threads are daemons, because the interpreter joins other threads before it calls finalizers. The
# finalizer joins them for at most ``END_S``: a read from a file server that has failed may not return.

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any, final

from farandole import events
from farandole.data.loading.batch_memory import BatchMemory, SampleRows
from farandole.data.loading.concurrency import FEW, Concurrency
from farandole.data.loading.corrupt import CorruptSampleError, described
from farandole.data.storage.waits import LANE, Meter, ThreadTimes, mine, waited_for_storage
from farandole.errors import DataError, UsageError


@final
class Loader:
    """Loads samples of one epoch by number, with a ``SampleLoader`` or a process that has one."""

    def __init__(self, load: Any, epoch: int) -> None:
        self.dataset, self._load, self._epoch = load.dataset, load, epoch
        self._read_into: Any = getattr(load, "read_into", None) if hasattr(load.dataset, "read_into") else None

    def put(self, rows: SampleRows, row: int) -> None:
        """Load a sample into its row, without a copy if the data set can read into given arrays."""
        index = rows.indices[row]
        arrays = None if self._read_into is None else rows.arrays(row)
        if arrays is not None and self._read_into(self._epoch, index, arrays):
            return
        rows.put(row, self._load(self._epoch, index))

    def put_all(self, rows: SampleRows, form: Any) -> bool:
        """Load all samples of a batch of known form by one call of the data set; false if that is impossible."""
        read = getattr(self._load, "read_batch", None)
        if read is None or (columns := rows.lay_out_as(form)) is None:
            return False
        return bool(read(rows.indices, columns))


LATE_S = 5.0
"""Wait for a batch after which the rank reports it as late; each further report after twice the time."""
END_S = 5.0
"""Timeout for joining the threads at the end of a pool."""
HELP_S, LOOK_S = 2e-3, 0.03
"""Wait for a batch after which more threads help, and the time between looks whether still more would be useful."""
_NOT_AT_ONCE_S = 1e-4
_TOLD = 4
"""Number of late samples of a batch that are examined for the cause."""
_SUBSTITUTES = 16
"""Number of other samples that are tried if a batch has none but corrupt ones."""


@final
class InputWait:
    """Wait of the consumer for one batch: its seconds, and the seconds of late samples by category."""

    __slots__ = ("cpu_s", "late", "seconds")

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.late, self.cpu_s = seconds, Meter(), 0.0

    @property
    def cause(self) -> str:
        """Category that took most of the time."""
        return self.late.largest()


@final
class _Pending:
    """Batch that is being loaded."""

    def __init__(self, memory: BatchMemory, indices: Sequence[int]) -> None:
        self.content = SampleRows(memory, indices)
        self.left = deque(range(len(indices)))
        self.done: list[tuple[float, dict[str, float], float]] = []
        """For each loaded row: the time when it was finished, its seconds by category, and its CPU seconds."""
        self.ready = threading.Event()
        self.error: BaseException | None = None
        self.corrupt: dict[int, str] = {}
        """Samples that are to be left out, with the reasons."""

    def wait(self, begin_s: float) -> InputWait:
        """Measure a wait from ``begin_s`` until now."""
        found = InputWait(time.monotonic() - begin_s)
        for finished_s, spent, cpu_s in self.done[-_TOLD:] if found.seconds > _NOT_AT_ONCE_S else ():
            if finished_s > begin_s:
                found.late.add(spent)
                found.cpu_s += cpu_s
        return found


@final
class _Work:
    """State that the threads of a pool share."""

    def __init__(self, threads: int, concurrency: Concurrency) -> None:
        self._tokens: tuple[SimpleQueue[_Pending | None], ...] = (SimpleQueue(), SimpleQueue(), SimpleQueue())
        self.has_ended = False
        self.concurrency = concurrency
        self._last = 0
        self.doing: list[tuple[_Pending, int, ThreadTimes] | None] = [None] * threads
        """Batch and sample that each thread is loading."""
        self.threads: list[threading.Thread] = []

    @property
    def useful(self) -> int:
        """Number of threads that may load: others take the places of those that wait for storage just now."""
        stuck = sum(doing is not None and doing[2].now()[0] not in ("", "decode") for doing in [*self.doing])
        return min(len(self.doing), self.concurrency.number + stuck)

    def tokens_of(self, number: int) -> SimpleQueue[_Pending | None]:
        """Tokens for a thread; the first few have queues of their own, so that a batch for few wakes no other."""
        return self._tokens[(number >= FEW) + (number >= self.concurrency.few)]

    def help(self, batch: _Pending, threads: int) -> None:
        """Have some of the first ``threads`` threads, in turn, load a batch."""
        for _ in range(min(threads, len(batch.left))):
            self._last = (self._last + 1) % threads
            self.tokens_of(self._last).put(batch)

    def end(self) -> None:
        """End the threads, each after its current sample."""
        self.has_ended = True
        for number in range(len(self.threads)):
            self.tokens_of(number).put(None)
        limit_s = time.monotonic() + END_S
        if threading.current_thread() not in self.threads:  # a garbage collection in a loading thread calls this, too
            for thread in self.threads:
                thread.join(max(0.0, limit_s - time.monotonic()))


def _serve(work: _Work, number: int, load: Loader) -> None:
    """Load rows until the pool ends."""
    times = mine()
    tokens = work.tokens_of(number)
    while (batch := tokens.get()) is not None:
        begin_s = time.monotonic()
        work.doing[number] = batch, batch.content.indices[0], times  # a late batch that is read whole has a thread, too
        if work.concurrency.reads_whole and not work.has_ended and _whole(work, batch, load, times):
            work.doing[number] = batch = None
            continue
        while not work.has_ended and batch.error is None:
            try:
                row = batch.left.popleft()
            except IndexError:
                break
            index = batch.content.indices[row]
            work.doing[number] = batch, index, times
            cpu_s = time.thread_time()
            try:
                load.put(batch.content, row)
            except CorruptSampleError as error:  # the consumer loads the batch again without it
                batch.corrupt[index] = str(error)
            except BaseException as error:  # the consumer raises it
                if batch.error is None:
                    batch.error = _named(index, load, error)
            cpu_s, times.cpu_s = time.thread_time() - cpu_s + times.cpu_s, 0.0
            end_s, spent = time.monotonic(), times.pop_times()
            batch.done.append((end_s, spent, cpu_s))
            work.concurrency.note(end_s - begin_s, cpu_s, waited_for_storage(spent))
            begin_s = end_s
            if len(batch.done) == len(batch.content.indices) or batch.error is not None:
                known = work.concurrency
                known.form = batch.content.form if known.reads_batches else None
                batch.ready.set()
        work.doing[number] = batch = None  # a finished batch belongs to its user


def _whole(work: _Work, batch: _Pending, load: Loader, times: ThreadTimes) -> bool:
    """Load a batch that no thread has started, by one call; false if that is impossible, with its rows unchanged."""
    rows: list[int] = []
    known = work.concurrency
    with contextlib.suppress(IndexError):
        while True:
            rows.append(batch.left.popleft())
    is_read, cpu_s, begin_s = False, time.thread_time(), time.monotonic()
    if len(rows) == len(batch.content.indices):
        try:
            is_read = known.reads_batches = load.put_all(batch.content, known.form)
        except Exception:  # loading sample by sample then finds the bad sample
            is_read = False
        if not is_read:
            batch.content.forget_form()  # no other thread has a row of this batch
    if not is_read:
        known.form = known.form if known.reads_batches else None
        batch.left.extend(rows)
        return False
    end_s, cpu_s, spent = time.monotonic(), time.thread_time() - cpu_s, times.pop_times()
    batch.done += [(end_s, spent if row == rows[-1] else {}, cpu_s / len(rows)) for row in rows]
    waited_s = waited_for_storage(spent)
    known.note((end_s - begin_s) / len(rows), cpu_s, waited_s)
    batch.ready.set()
    return True


def _named(index: int, load: Loader, error: BaseException) -> DataError:
    text = described(error)
    named = DataError(f"{sample_name(index, load, text)}: {text}")
    named.__cause__ = error.__cause__ if isinstance(error, DataError) else error  # the text has all of a reader's error
    named.is_outage = getattr(error, "is_outage", False)
    return named


def sample_name(index: int, load: Any, text: str = "") -> str:
    """Number of a sample, and its file if ``load.dataset`` knows it, and ``text``, which follows, does not name it."""
    path_of = getattr(getattr(load, "dataset", None), "path_of", None)
    path = None
    with contextlib.suppress(Exception):  # called while another error is reported
        path = path_of(index) if path_of is not None else None
    return f"sample {index}" if path is None or str(path) in text else f"sample {index} ({path})"


def concurrency_of(loads: Sequence[Loader]) -> Concurrency:
    """Concurrency of threads that have loaded nothing yet, one for each of ``loads``."""
    return Concurrency(len(loads), len(os.sched_getaffinity(0)), getattr(loads[0].dataset, "decodes", False))


@final
class LoadedBatches(Iterator[Any]):
    """The batches of ``indices``, each a list of sample numbers; ``loads`` has one loader for each thread.

    ``ahead`` batches are loaded in advance: by default as many as ``concurrency`` says, or as give each thread two
    samples; pass the same one for each epoch, and the next begins as this one ends. Messages about late batches name
    ``rank``. Raises ``DataError`` in place of a batch with a sample that cannot be loaded; its ``__cause__`` has the
    traceback, if the error is not a reader's. ``last`` is the wait for the last batch. If loaders skip corrupt samples,
    the batch is smaller, or, where it would be empty, has one other sample; ``left_out`` are these samples of the last
    batch.
    """

    def __init__(
        self,
        indices: Iterable[Sequence[int]],
        loads: Sequence[Loader],
        memory: BatchMemory,
        ahead: int = 0,
        rank: int = 0,
        concurrency: Concurrency | None = None,
    ) -> None:
        self.last = InputWait()
        self.left_out: dict[int, str] = {}
        self._indices, self._loads, self._memory = iter(indices), loads, memory
        self._ahead, self._rank, self._pid = ahead, rank, os.getpid()
        self._pending: deque[_Pending] = deque()
        self._work = work = _Work(len(loads), concurrency or concurrency_of(loads))
        work.threads = [
            threading.Thread(target=_serve, args=(work, number, load), name=f"farandole-load-{number}", daemon=True)
            for number, load in enumerate(loads)
        ]
        for thread in work.threads:
            thread.start()
        self._end = weakref.finalize(self, work.end)

    def __next__(self) -> Any:
        if os.getpid() != self._pid:
            raise UsageError(
                "this process was forked while batches were loaded, and has no threads to load more: begin an "
                "iteration of its own in it, for batch in batches"
            )
        if not self._end.alive:
            raise StopIteration
        self._plan()
        if not self._pending:
            self.close()
            raise StopIteration
        batch = self._pending[0]
        begin_s = time.monotonic()
        self._await(batch, begin_s)
        self.left_out = dict(sorted(batch.corrupt.items()))
        if batch.corrupt and batch.error is None:
            batch = self._without_corrupt(batch, begin_s)
        self.last = batch.wait(begin_s)
        if self.last.late.seconds and events.subscribers:
            events.emit(events.Phase(LANE, self.last.cause, "input", "starve", begin_s, time.monotonic()))
        if batch.error is not None:
            self.close()
            raise batch.error
        self._pending.popleft()
        self._plan()
        return batch.content.collated()

    def close(self) -> None:
        """End the threads; later calls do nothing."""
        self._end()
        self._pending.clear()

    def _plan(self) -> None:
        """Queue batches for the threads until enough are ahead."""
        while not self._pending or len(self._pending) < self._enough():
            indices = next(self._indices, None)
            if indices is None:
                return
            batch = _Pending(self._memory, indices)
            self._pending.append(batch)
            self._work.help(batch, 1 if self._work.concurrency.reads_whole else self._work.concurrency.first)

    def _without_corrupt(self, batch: _Pending, begin_s: float) -> _Pending:
        """Load a batch again without its corrupt samples: they are too rare for code that moves rows."""
        length, asked = len(self._loads[0].dataset), batch.content.indices
        others = iter([(asked[0] + k * (length // _SUBSTITUTES + 1)) % length for k in range(1, _SUBSTITUTES)])
        while batch.corrupt and batch.error is None:
            left = [index for index in batch.content.indices if index not in batch.corrupt]
            if not left and (other := next(others, None)) is not None:
                left = [other]
            again = _Pending(self._memory, left)
            if left:
                self._work.help(again, len(self._loads))
                self._await(again, begin_s)
            else:
                index, why = next(iter(self.left_out.items()))
                again.error = DataError(f"{sample_name(index, self._loads[0])}: {why}, as all others that were tried")
            self.left_out |= {index: why for index, why in again.corrupt.items() if index in asked}
            batch = again
        return batch

    def _enough(self) -> int:
        rows = max(1, len(self._pending[0].content.indices))
        return self._ahead or max(self._work.concurrency.ahead, -(-2 * len(self._loads) // rows))

    def _await(self, batch: _Pending, begin_s: float) -> None:
        if batch.ready.wait(HELP_S):
            return
        late_s, helping = LATE_S, 0
        while True:
            if (useful := self._work.useful) > helping:
                self._help_all(useful)
                helping = useful
            if batch.ready.wait(max(0.0, min(LOOK_S, begin_s + late_s - time.monotonic()))):
                return
            if time.monotonic() < begin_s + late_s:
                continue
            text = f"rank {self._rank} has waited {late_s:g} s for its next batch: {self._reason(batch)}"
            events.logger.warning("%s", text)
            if events.subscribers:
                events.emit(events.Note(time.monotonic(), self._rank, text))
            late_s *= 2
            self._help_all(len(self._loads))

    def _help_all(self, threads: int) -> None:
        for pending in self._pending:
            self._work.help(pending, threads)

    def _reason(self, batch: _Pending) -> str:
        """Describe what the threads that load ``batch`` are doing."""
        found = []
        for load, doing in zip(self._loads, [*self._work.doing], strict=True):
            if doing is not None and doing[0] is batch:
                category, what = doing[2].now()
                at = f"{category or 'between reads'}{what and f', {what}'}"
                found.append(f"{sample_name(doing[1], load)} ({at})")
        return "; ".join(found) or "no thread is at it, as all are at others"
