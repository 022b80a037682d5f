"""Who competes in loading: epochs of one data set, in a random order, in batches of 16, by one library each."""

from __future__ import annotations

import importlib.util
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import numpy.typing as npt

BATCH = 16
THREADS = 8
WORKERS = 2
MDS = "mds"
"""Folder of the copy that mosaicml-streaming reads, beside the files that all others do."""

Array = npt.NDArray[Any]


@final
class DataSet:
    """Arrays in ``.npy`` shards, of which each sample begins with its number, or JPEG files."""

    SIZES: ClassVar[dict[str, tuple[str, tuple[int, ...], int, int]]] = {
        "100 KB": ("<f4", (160, 160), 256, 4000),
        "2.8 MB": ("<f4", (700, 1000), 16, 160),
        "JPEG of 256 x 256": ("u1", (256, 256, 3), 1, 2000),
    }
    """dtype, shape, samples in a file, samples; the sizes of MLPerf's ResNet-50 and CosmoFlow."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.dtype, self.shape, self.in_file, self.samples = self.SIZES[name]

    @property
    def is_encoded(self) -> bool:
        """Whether samples are images."""
        return self.name.startswith("JPEG")

    @property
    def files(self) -> list[Path]:
        """All files, in the order of their samples."""
        return sorted((self.folder / "files").iterdir())

    def write(self, samples: int) -> DataSet:
        """Make the files; as many samples as are asked for, or a little less."""
        (self.folder / "files").mkdir(parents=True)
        rng = np.random.default_rng(0)
        for number in range(max(1, samples // self.in_file)):
            name = self.folder / "files" / f"{number:05}"
            if self.is_encoded:
                from PIL import Image

                smooth = rng.integers(0, 255, (16, 16, 3), np.uint8)
                Image.fromarray(smooth).resize(self.shape[:2]).save(name.with_suffix(".jpg"), quality=90)
                continue
            rows = rng.random((self.in_file, *self.shape), np.float32)
            rows.reshape(self.in_file, -1)[:, 0] = np.arange(self.in_file) + number * self.in_file
            np.save(name.with_suffix(".npy"), rows)
        return self

    def copy_to_mds(self) -> None:
        """Write the same samples as mosaicml-streaming has them."""
        from streaming import MDSWriter

        kind = "bytes" if self.is_encoded else f"ndarray:float32:{','.join(map(str, self.shape))}"
        with MDSWriter(out=str(self.folder / MDS), columns={"x": kind}) as writer:
            for path in self.files:
                for sample in [path.read_bytes()] if self.is_encoded else np.load(path, mmap_mode="r"):
                    writer.write({"x": sample if self.is_encoded else np.array(sample)})


class Loader(ABC):
    """One library; ``run`` takes a whole epoch from it."""

    package: ClassVar[str] = ""

    def __init__(self, data: DataSet) -> None:
        self.data, self.epoch = data, 0
        self.open()

    @classmethod
    def is_installed(cls) -> bool:
        """Whether it can be measured here."""
        return not cls.package or importlib.util.find_spec(cls.package) is not None

    @abstractmethod
    def open(self) -> None:
        """Make the loader."""

    @abstractmethod
    def batches(self, epoch: int) -> Iterator[Array]:
        """Batches of a whole epoch."""

    def next_epoch(self) -> Iterator[Array]:
        """Batches of the epoch after the last one."""
        self.epoch += 1
        return self.batches(self.epoch)

    def run(self) -> int:
        """Take an epoch; returns the number of samples."""
        return sum(len(batch) for batch in self.next_epoch())

    def check(self) -> list[int]:
        """Numbers of the samples of an epoch, sorted; none of images."""
        first = [batch.reshape(len(batch), -1)[:, 0].tolist() for batch in self.next_epoch()]
        return [] if self.data.is_encoded else sorted(int(each) for some in first for each in some)


class Ours(Loader):
    """``farandole.data``, by one way to the bytes."""

    def open(self) -> None:
        from farandole.data import arrays, images
        from farandole.data.loading.batches import Batches

        source = (images if self.data.is_encoded else arrays)(self.data.folder / "files")
        self._batches = Batches(self.through(source), batch_size=BATCH, threads=THREADS)

    @abstractmethod
    def through(self, source: Any) -> Any:
        """Source that the batches are loaded from."""

    def batches(self, epoch: int) -> Iterator[Array]:
        self._batches.set_epoch(epoch)
        for batch in self._batches:
            yield batch
            self._batches.commit()


@final
class OursDirect(Ours):
    """Files where they are."""

    def through(self, source: Any) -> Any:
        return source


@final
class OursStaged(Ours):
    """Cache of this host, with checksums compared."""

    def through(self, source: Any) -> Any:
        from farandole.data import stage

        return stage(source, cache=self.data.folder / "cache")


@final
class TorchFiles:
    """The data set that a user of PyTorch writes for such files: memory-mapped shards, or Pillow."""

    def __init__(self, data: DataSet) -> None:
        self._data, self._files = data, data.files
        self._shards: dict[int, Array] = {}

    def __len__(self) -> int:
        return len(self._files) * self._data.in_file

    def __getitem__(self, index: int) -> Array:
        file, row = divmod(index, self._data.in_file)
        if self._data.is_encoded:
            from PIL import Image

            with Image.open(self._files[file]) as image:
                return np.asarray(image)
        if file not in self._shards:
            self._shards[file] = np.load(self._files[file], mmap_mode="r")
        return np.array(self._shards[file][row])


@final
class TorchWorkers(Loader):
    """``torch.utils.data.DataLoader``: two processes, which live on between epochs."""

    package = "torch"

    def open(self) -> None:
        from torch.utils.data import DataLoader

        data: Any = TorchFiles(self.data)
        self._loader: Any = DataLoader(
            data, batch_size=BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True
        )

    def batches(self, epoch: int) -> Iterator[Array]:
        return (batch.numpy() for batch in self._loader)


@final
class Streaming(Loader):
    """mosaicml-streaming: its copy of the data, two processes."""

    package = "streaming"

    def open(self) -> None:
        import streaming.base.util
        from streaming import StreamingDataset
        from torch.utils.data import DataLoader

        streaming.base.util.clean_stale_shared_memory()
        data = StreamingDataset(local=str(self.data.folder / MDS), shuffle=True, batch_size=BATCH)
        collate = _decoded if self.data.is_encoded else None
        self._loader: Any = DataLoader(
            data, batch_size=BATCH, num_workers=WORKERS, persistent_workers=True, collate_fn=collate
        )

    def batches(self, epoch: int) -> Iterator[Array]:
        return (batch["x"].numpy() for batch in self._loader)


def _decoded(samples: list[dict[str, bytes]]) -> dict[str, Any]:
    import io

    import torch
    from PIL import Image

    return {"x": torch.from_numpy(np.stack([np.asarray(Image.open(io.BytesIO(each["x"]))) for each in samples]))}


@final
class Grain(Loader):
    """Grain on the same files, in its threads, whose number it chooses."""

    package = "grain"

    def open(self) -> None:
        import grain

        source: Any = TorchFiles(self.data)
        self._source = grain.MapDataset.source(source)

    def batches(self, epoch: int) -> Iterator[Array]:
        return iter(self._source.shuffle(seed=epoch).batch(BATCH).to_iter_dataset())


@final
class Copy(Loader):
    """``cp`` of the folder into memory: what reading the files costs that nobody shuffles."""

    def open(self) -> None:
        self._samples = len(self.data.files) * self.data.in_file

    def batches(self, epoch: int) -> Iterator[Array]:
        raise NotImplementedError

    def run(self) -> int:
        with tempfile.TemporaryDirectory(prefix="bench-copy-", dir="/dev/shm") as folder:
            subprocess.run(["cp", "-r", str(self.data.folder / "files"), folder], check=True)
        return self._samples

    def check(self) -> list[int]:
        return list(range(self._samples))


LOADERS: dict[str, type[Loader]] = {
    "farandole": OursDirect,
    "staged": OursStaged,
    "torch": TorchWorkers,
    "grain": Grain,
    "streaming": Streaming,
    "cp": Copy,
}
"""By the name that tables use."""
