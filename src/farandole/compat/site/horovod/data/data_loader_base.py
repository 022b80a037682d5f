"""Base class of data loaders, and a mix-in that loads ahead on a thread.

class Loader(AsyncDataLoaderMixin, MyDataLoader):      # MyDataLoader derives from BaseDataLoader
    pass

loader = Loader(async_loader_queue_size=8, batch_size=32)
for batch in loader: ...
loader.close_async_loader()
"""

# Two threads, and a bounded queue between them: the loading thread only puts, the consuming thread only gets.
# ``_thread`` and ``started`` belong to the consumer, which starts and joins the thread. The consumer sets ``_stop``,
# and the loading thread reads it. There must be only one consumer: of two, one could take what the other waits for.
#
# The loading thread puts every error that ends it into the queue, even SystemExit and KeyboardInterrupt: otherwise the
# error would be lost, and the consumer would wait for ever. To end the thread, the consumer gets until the thread has
# ended. This wakes a ``put`` that waits for room, which cannot be interrupted otherwise. Each thread has its own queue:
# batches left in an old queue are dropped, and a consumer that is interrupted while it closes can close again.

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from typing import Any


class BaseDataLoader:
    """Base class of data loaders; subclasses implement ``__len__`` and ``_iterate``."""

    def __len__(self) -> int:
        raise NotImplementedError("a data loader must say how many batches it has: write __len__")

    def _iterate(self) -> Iterator[Any]:
        """Yield the batches of one epoch."""
        raise NotImplementedError("a data loader must yield batches: write _iterate")

    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)

    def _process_batch(self, batch: Any) -> Any:
        """Change a batch on the consuming thread; by default unchanged."""
        return batch


class AsyncDataLoaderMixin:
    """Mix-in that iterates a loader on a thread, up to ``async_loader_queue_size`` batches ahead (0: no thread).

    ``None`` in the queue ends an epoch. The consumer raises the errors of the thread.
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
        """End the thread; afterwards the loader can be iterated again."""
        if self._thread is None:
            return
        self._stop.set()  # before emptying the queue; otherwise the thread would continue to fill it
        while self._thread.is_alive():
            with contextlib.suppress(queue.Empty):
                self._queue.get(timeout=_LOOK_S)  # makes room for a ``put`` that waits
        self._thread.join()
        self._thread, self.started = None, False

    def __iter__(self) -> Iterator[Any]:
        if self.async_loader_queue_size <= 0:
            yield from super().__iter__()  # type: ignore[misc]
            return
        if self._thread is None:
            self._stop.clear()  # safe: the previous thread has been joined
            self._queue = queue.Queue(self.async_loader_queue_size)
            # A daemon: scripts exit without closing their loaders, while this thread may wait for room for ever.
            self._thread = threading.Thread(target=self._load, name="farandole data loader", daemon=True)
            self._thread.start()
            self.started = True
        while (batch := self._queue.get()) is not None:
            if isinstance(batch, _Raised):  # the thread has ended or will: the next iteration starts a new one
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
    """Exception of the thread, in the queue for the consumer."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


_LOOK_S = 0.1
"""Seconds between checks whether the thread has ended, while the consumer closes."""
