"""``EpochSampler``: the samples of an epoch for data loaders, each exactly once while workers join and leave."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from typing import Any

from farandole.elastic.worker.layout import Layout
from farandole.elastic.worker.sampler import SampleCursor, sequential, shuffled
from farandole.errors import UsageError
from farandole.runtime.session.init import current, is_initialized


class EpochSampler:
    """The indices of this rank among those of ``dataset`` that are not committed yet.

    >>> sampler = EpochSampler(range(1000), shuffle=False)
    >>> list(sampler)[:3]
    [0, 1, 2]

    Register it with the state. ``set_epoch`` begins an epoch, unless that epoch is under way. The names are Horovod's.
    Framework modules derive samplers for their data loaders.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        layout = getattr(dataset, "layout", None)
        self._layout: Layout | None = layout if isinstance(layout, Layout) else None
        order, layout_of_order = (self._shuffled, self._layout) if shuffle else (sequential, None)
        self.cursor = SampleCursor(len(dataset), order, seed, layout=layout_of_order)
        self.reset()

    @staticmethod
    def _shuffled(length: int, seed: int, epoch: int) -> Sequence[int]:
        """Random order of an epoch, the same on all ranks."""
        return shuffled(length, seed, epoch)

    @property
    def epoch(self) -> int:
        """The number of the epoch under way."""
        return self.cursor.epoch

    @property
    def rank(self) -> int:
        """The rank that the indices are for."""
        return self.cursor.rank

    @property
    def num_replicas(self) -> int:
        """Number of ranks that share the indices."""
        return self.cursor.size

    @property
    def processed_num(self) -> int:
        """Number of samples of this epoch that all ranks together have committed."""
        return self.cursor.position

    @property
    def remaining_indices(self) -> Sequence[int]:
        """The indices of this epoch that are not committed."""
        return self.cursor.remaining

    @property
    def num_samples(self) -> int:
        """Number of indices that this rank gets when it begins now."""
        return -(-(self.cursor.length - self.cursor.position) // self.cursor.size)

    @property
    def total_size(self) -> int:
        """Number of indices that all ranks together get: ``num_samples`` times the number of ranks."""
        return self.num_samples * self.cursor.size

    def set_epoch(self, epoch: int) -> None:
        """Begin ``epoch`` with all of its samples; an epoch under way goes on with the samples that are left.

        Raises ``UsageError`` if the number of samples in the data set has changed.
        """
        if len(self.dataset) != self.cursor.length:
            raise UsageError(
                f"the data set has {len(self.dataset)} samples, and had {self.cursor.length} when its sampler was "
                "made: make another sampler of it, in the place of this one in the state"
            )
        self.cursor.set_epoch(epoch)

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Record that every rank has used ``batch_size`` samples of its own; not for batches from ``hand_out``."""
        self.cursor.record(batch_size)

    def state_dict(self) -> dict[str, Any]:
        """Epoch and position in it, for ``load_state_dict`` at any number of ranks."""
        return self.cursor.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a position. Raises ``ValueError`` for the state of another data set."""
        self.cursor.load_state_dict(state_dict)

    def reset(self) -> None:
        """Distribute the remaining samples over the current ranks; the state does this for a registered sampler."""
        if is_initialized():
            topology = current().topology
            self.cursor.rearrange(topology.rank, topology.size)

    def agree(self) -> None:
        """Let the data set agree with the other ranks on where its samples are stored. Collective."""
        if self._layout is not None:
            self._layout.agree()

    def __iter__(self) -> Iterator[int]:
        return iter(self.cursor.strided())

    def __len__(self) -> int:
        return self.num_samples
