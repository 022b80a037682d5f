"""Batch normalization over the batches of all ranks: the layer of ``farandole.tensorflow``."""

from __future__ import annotations

from farandole.tensorflow.sync_batch_norm import SyncBatchNormalization

__all__ = ["SyncBatchNormalization"]
