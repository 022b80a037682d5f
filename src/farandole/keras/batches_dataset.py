"""``BatchesDataset``: batches that ``farandole.data`` loads, for ``fit``.

    batches = Batches(source, batch_size=32, threads=8)
    model.fit(BatchesDataset(batches), epochs=90, shuffle=False)

In an elastic job use it like ``SampledBatches``: for one ``fit`` of one epoch, with ``RecordSamplesCallback(dataset)``.
"""

from __future__ import annotations

import threading
from typing import Any, final

from farandole.data.loading.batches import Batches
from farandole.data.loading.pool import LoadedBatches
from farandole.data.loading.report import input_log
from farandole.errors import UsageError
from farandole.keras.elastic import EpochDataset


@final
class BatchesDataset(EpochDataset):
    """Remaining batches of an epoch for this rank, loaded ahead by the threads or processes of ``batches``.

    >>> model.fit(BatchesDataset(batches), shuffle=False)

    Without a ``RecordSamplesCallback``, the next epoch begins after an epoch. Each rank has the same number of batches.
    Raises ``UsageError`` in a ``fit`` that shuffles (the default of Keras), and for ``on_corrupt="skip"``: Keras
    asks for batches ahead of their steps.
    """

    def __init__(self, batches: Batches) -> None:
        if batches.skips:
            raise UsageError("BatchesDataset: on_corrupt='skip' is for loops over batches; leave the bad files out")
        size = batches.sampler.num_replicas
        super().__init__(batches.sampler, batches.batch_size or max(1, batches.global_batch_size // size))
        self._batches = batches
        self._lock = threading.Lock()  # threads of the backend call ``__getitem__``, one after the other
        self._loaded: LoadedBatches | None = None
        self._next = 0

    def __getitem__(self, index: int) -> Any:
        with self._lock:
            if self._loaded is None or index != self._next:  # TensorFlow reads some to get their form, then restarts
                self._close()
                self._loaded = self._batches.load(self.rows(i).tolist() for i in range(index, len(self)))
                input_log.begin(self._batches.workers, bool(self._batches.processes))
            batch, self._next = next(self._loaded), index + 1
            place = self.sampler.epoch, self.begin[1] + index
            input_log.handed_out(place, len(self.rows(index)) * self.sampler.num_replicas, self._loaded.last)
            return batch

    def on_epoch_end(self) -> None:
        """See ``PyDataset``."""
        with self._lock:
            if self._next < len(self):  # Keras read a batch only to build the model, or has steps_per_epoch
                return
            self._close()
            if self.is_current and not self.is_recorded:
                self.sampler.set_epoch(self.sampler.epoch + 1)
                self._share_out()

    def _close(self) -> None:
        """See ``EpochDataset``."""
        if self._loaded is not None:
            self._loaded.close()
            self._loaded = None
