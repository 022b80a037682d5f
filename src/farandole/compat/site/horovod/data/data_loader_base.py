"""A data loader to derive from, and a mix-in that loads ahead in a thread.

class Loader(AsyncDataLoaderMixin, MyDataLoader):      # MyDataLoader derives from BaseDataLoader
    pass

loader = Loader(async_loader_queue_size=8, batch_size=32)
for batch in loader: ...
loader.close_async_loader()
"""

# Two threads, and a bounded queue between them: the loading one only puts, the consuming one only gets. ``_thread`` and
# ``started`` belong to the consumer, who starts and joins; ``_stop`` is set by the consumer and read by the loader.
# There must be one consumer only: of two, one could take what the other waits for.
#
# Whatever ends the loading thread but ``_stop`` it puts into the queue, SystemExit and KeyboardInterrupt too: nobody
# else would hear of them, and the consumer would wait for ever. To end it, the consumer takes until it is gone, which
# wakes a loader that waits for room: a ``put`` can be interrupted in no other way. Each thread has a queue of its own:
# what is left in one is nobody's batch, and a consumer that is interrupted while it closes can do so again.

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from typing import Any


class BaseDataLoader:
    """Derive from it and write ``__len__`` and ``_iterate``."""

    def __len__(self) -> int:
        raise NotImplementedError("a data loader must say how many batches it has: write __len__")

    def _iterate(self) -> Iterator[Any]:
        """Yield the batches of one epoch."""
        raise NotImplementedError("a data loader must yield batches: write _iterate")

    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)

    def _process_batch(self, batch: Any) -> Any:
        """Change a batch in the consuming thread; by default it stays as it is."""
        return batch


class AsyncDataLoaderMixin:
    """Iterates the loader it is mixed into in a thread, up to ``async_loader_queue_size`` batches ahead (0: no thread).

    ``None`` in the queue ends an epoch. What the thread raises is raised where the batches are consumed.
    """

    def __init__(
        self, async_loader_queue_size: int = 64, debug_data_loader: bool = False, *args: Any, **kwargs: Any
    ) -> None:
        self.async_loader_queue_size = async_loader_queue_size
        self.debug_data_loader = debug_data_loader
        self.started = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._queue: queue.Queue[Any] = queue.Queue()
        super().__init__(*args, **kwargs)

    def close_async_loader(self) -> None:
        """End the thread; the loader can be iterated again afterwards."""
        if self._thread is None:
            return
        self._stop.set()  # before the queue is emptied, or the thread would go on filling it
        while self._thread.is_alive():
            with contextlib.suppress(queue.Empty):
                self._queue.get(timeout=_LOOK_S)  # makes room for a thread that waits for it
        self._thread.join()
        self._thread, self.started = None, False

    def __iter__(self) -> Iterator[Any]:
        if self.async_loader_queue_size <= 0:
            yield from super().__iter__()  # type: ignore[misc]
            return
        if self._thread is None:
            self._stop.clear()  # the thread before has been joined, and cannot miss that it was set
            self._queue = queue.Queue(self.async_loader_queue_size)
            # A daemon: scripts end without closing their loaders, and this thread may be waiting for room for ever.
            self._thread = threading.Thread(target=self._load, name="farandole data loader", daemon=True)
            self._thread.start()
            self.started = True
        while (batch := self._queue.get()) is not None:
            if isinstance(batch, _Raised):  # the thread has ended or is about to: the next iteration starts another
                self.close_async_loader()
                raise batch.error
            yield self._process_batch(batch)  # type: ignore[attr-defined]

    def _load(self) -> None:
        try:
            while not self._stop.is_set():
                for batch in self._iterate():  # type: ignore[attr-defined]
                    if self._stop.is_set():
                        return
                    self._queue.put(batch)
                self._queue.put(None)
        except BaseException as error:
            self._queue.put(_Raised(error))


class _Raised:
    """Carries an exception from the thread to the consumer."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


_LOOK_S = 0.1
"""How long a thread that has ended while its consumer closes may go unnoticed."""
