"""``Source``: the samples of a data set by number, read from its files as they are.

    source = hdf5("/lustre/set", keys=["x", "y"], decode=lambda sample: (sample["x"] / 255, sample["y"]))
    len(source), source[17]

The module of a format has a class that reads one sample, and a function that builds the manifest from headers alone.
"""

from __future__ import annotations

import copy
import operator
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, SupportsIndex, TypeVar, final

from farandole.data.planning.order import ExactOrder, SampleOrder
from farandole.data.storage.byte_store import ByteStore
from farandole.data.storage.manifest import Manifest
from farandole.data.storage.stores import store_for
from farandole.data.storage.waits import during
from farandole.elastic.worker.layout import Layout
from farandole.errors import DataError, UsageError
from farandole.runtime.collectives.objects import allgather_object, broadcast_object
from farandole.runtime.session.init import current, is_initialized


@final
class ShuffledLayout(Layout):
    """Every epoch in an order of its own; a batch is shared out in slices."""

    @property
    def name(self) -> str:
        return ExactOrder.name

    def check(self, name: str) -> None:
        if name != self.name:
            raise UsageError(f"the state was saved in the order {name!r}: stage the data as it was when it was saved")

    def order(self, length: int, seed: int, epoch: int, name: str = "") -> SampleOrder:
        return ExactOrder(length, seed, epoch)


Self = TypeVar("Self", bound="Source")

Decode = Callable[[Any], Any]


class Source(ABC):
    """Samples of a data set, by number.

    ``decode`` is applied to each sample. A copy, pickled for another process or with another store, reopens its files.
    """

    holds_lock: ClassVar[bool] = False
    """True if reading a sample holds the GIL or a lock of the library: then use processes, not threads."""

    decodes: ClassVar[bool] = False
    """True if reading a sample mostly computes: then more threads than processors help only while storage is slow."""

    def __init__(self, manifest: Manifest, decode: Decode | None = None, store: ByteStore | None = None) -> None:
        self.manifest, self.decode = manifest, decode
        first = manifest.paths[0] if len(manifest.paths) else ""
        self.store = store if store is not None else store_for(first, manifest.version_of)
        self.layout: Layout = ShuffledLayout()
        """Order of the samples, for samplers."""

    @abstractmethod
    def sample(self, index: int) -> Any:
        """One sample as its format has it, before ``decode``."""

    def on(self: Self, store: ByteStore) -> Self:
        """The same samples, read from ``store``; no open file is shared."""
        other = copy.copy(self)
        other.store = store
        other.reopen()
        return other

    def reopen(self) -> None:  # noqa: B027 (a format may keep nothing open)
        """Drop open files, because this source is a new copy."""

    def __len__(self) -> int:
        return self.manifest.samples

    def __getitem__(self, index: SupportsIndex) -> Any:
        """Sample number ``index``; negative numbers count from the end. Raises ``IndexError`` like lists.

        Raises ``UsageError`` for a slice, which would read all of it.
        """
        try:
            at = operator.index(index)
        except TypeError:
            raise UsageError(
                f"source[...] reads one sample by its number, and got a {type(index).__name__}. Write source[0]; for "
                "some samples [source[i] for i in range(2, 4)]; for a part to train on, without reading it, "
                "torch.utils.data.Subset(source, range(100)); for batches farandole.data.batches(source, 32)"
            ) from None
        if not -len(self) <= at < len(self):
            raise IndexError(f"sample {at} of a data set of {len(self)}")
        sample = self.sample(at + len(self) if at < 0 else at)
        if self.decode is None:
            return sample
        with during("decode"):
            return self.decode(sample)

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        files, total = len(self.manifest.paths), self.manifest.nbytes
        where = f"{self.manifest.root}{'' if isinstance(self.layout, ShuffledLayout) else ', staged'}"
        return f"<{self.manifest.format}: {len(self)} samples in {files} files, {total} bytes, {where}>"

    def path_of(self, index: int) -> str:
        """Path of the file that holds the first part of a sample."""
        return self.manifest.paths[self.manifest.extents(index)[0][0]]

    def parts(self, index: int) -> list[bytearray]:
        """The bytes of each part of a sample, at the places of the manifest."""
        return [
            self.store.read(self.manifest.paths[file], offset, nbytes)
            for file, offset, nbytes in self.manifest.extents(index)
        ]


@final
class ForkGuard:
    """Process that first used a library with threads or locks of its own; in a fork of it the library is refused.

    >>> guard = ForkGuard("zarr")
    >>> guard.enter()
    """

    def __init__(self, library: str) -> None:
        self._library, self._pid = library, 0

    def enter(self) -> None:
        """Note the process. Raises ``DataError`` in a fork of a process that has used the library."""
        if self._pid not in (0, os.getpid()):
            raise DataError(
                f"this process was forked from one that has used {self._library}, whose locks and threads do not "
                "survive a fork: load in threads (threads=8), or in processes that are started afresh "
                "(processes=4, or multiprocessing_context='forkserver' for torch's loader)"
            )
        self._pid = os.getpid()


def load_index(index: str | os.PathLike[str] | Manifest, format_name: str) -> Manifest:
    """A stored manifest. Raises ``UsageError`` if it is of another format."""
    manifest = index if isinstance(index, Manifest) else Manifest.load(index)
    if manifest.format != format_name:
        raise UsageError(f"the index is that of {manifest.format}, and {format_name} was asked for")
    return manifest


def made_once(make: Callable[[], Manifest]) -> Manifest:
    """Manifest that rank 0 of a job makes and sends to all others; every rank calls this.

    A worker that waits for admission to an elastic job makes its own. An error of rank 0 is raised on all ranks.
    """
    if not is_initialized() or current().provisional or current().topology.size == 1:
        return make()
    found: tuple[bytes, str] = b"", ""
    if current().topology.rank == 0:
        try:
            found = make().encode(), ""
        except (DataError, UsageError, OSError) as failure:
            found = b"", str(failure)
    text, error = broadcast_object(found, name="farandole.data.manifest")
    if error:
        raise DataError(error)
    return Manifest.decode(text)


def raise_everywhere(failure: str) -> None:
    """Raise ``DataError`` on all ranks if one of them has a ``failure`` ("": none); every rank calls this."""
    failures = [failure]
    if is_initialized() and not current().provisional and current().topology.size > 1:
        failures = allgather_object(failure, name="farandole.data.failure")
    for each in failures:
        if each:
            raise DataError(each)
