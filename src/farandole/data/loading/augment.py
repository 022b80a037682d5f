"""Augmentation that depends on seed, epoch and sample alone: any number of workers makes the same batch.

    data = Batches(source, batch_size=32, augment=[
        Flip(axes=(0, 1), fields=("image", "mask")),        # the same flip for both
        Crop((224, 224), fields=("image", "mask")),
        GaussianNoise(0.1, fields=("image",)),
    ])

A step is a callable ``(sample, rng) -> sample``; your own functions work, too. Axes are those of a sample: images are
height x width x channels, volumes depth x height x width, with or without channels last. Without ``fields`` a step
changes a sample that is an array, or the first element of a tuple; for a dict, name the fields.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast, final

import numpy as np

from farandole.data.loading.corrupt import CorruptSampleError, described, is_corrupt
from farandole.data.storage.waits import during
from farandole.errors import DataError, UsageError

Step: TypeAlias = Callable[[Any, np.random.Generator], Any]
Field: TypeAlias = str | int


def generator(seed: int, epoch: int, sample: int, step: int = 0) -> np.random.Generator:
    """Random numbers of one step for one sample: a range of 2**128 numbers of Philox, used for nothing else."""
    key = np.array([seed % 2**64, sample], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=np.array([0, 0, step, epoch], np.uint64)))


@final
class SampleLoader:
    """Loads a sample of a data set by number, with ``steps`` applied for an epoch; any thread or process may call it.

    >>> SampleLoader([10, 20, 30], [lambda sample, rng: sample + 1], seed=0)(0, 1)
    21

    With ``skips`` a corrupt sample raises ``CorruptSampleError``; an error of a step stays what it is.
    """

    def __init__(self, dataset: Any, steps: Sequence[Step] = (), seed: int = 0, skips: bool = False) -> None:
        self.dataset, self.steps, self.seed, self.skips = dataset, tuple(steps), seed, skips

    def __call__(self, epoch: int, index: int) -> Any:
        with during("decode"):
            return self._after(len(self.steps), epoch, index)

    def read_into(self, epoch: int, index: int, arrays: list[Any]) -> bool:
        """Read a sample into ``arrays``; false if the data set cannot, or the sample has another form."""
        read = None if self.steps else getattr(self.dataset, "read_into", None)
        if read is None:
            return False
        with during("decode"):
            return bool(self._read(read, index, arrays))

    def read_batch(self, indices: Sequence[int], columns: list[Any]) -> bool:
        """Read samples into the columns of a batch; false if the data set cannot."""
        read = None if self.steps else getattr(self.dataset, "read_batch", None)
        return read is not None and bool(read(indices, columns))

    def _after(self, steps: int, epoch: int, index: int) -> Any:
        sample = self._read(operator.getitem, self.dataset, index)
        for number, step in enumerate(self.steps[:steps]):
            rng = generator(self.seed, epoch, index, number)
            if isinstance(step, MixUp):
                partner, other = step.partner(rng, len(self.dataset)), sample
                with contextlib.suppress(CorruptSampleError):  # else it is mixed with itself
                    other = self._after(number, epoch, partner)
                sample = step.mix(sample, other, rng)
            else:
                sample = step(sample, rng)
        return sample

    def _read(self, read: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return read(*arguments)
        except Exception as error:
            if self.skips and is_corrupt(error):
                raise CorruptSampleError(described(error)) from error
            raise


class Augmentation(ABC):
    """Step that changes named fields of a sample alike: each draw is made once for all of them."""

    fields: tuple[Field, ...] | None = None

    def __call__(self, sample: Any, rng: np.random.Generator) -> Any:
        found = select(sample, self.fields, type(self).__name__)
        draw = self.draw(next(iter(found.values())).shape, rng)
        if any(draw is not None and not self._fits(field, found) for field in found):
            shapes = ", ".join(f"{field!r} is {array.shape}" for field, array in found.items())
            raise DataError(f"{type(self).__name__} of fields that differ in shape: {shapes}; name those that do not")
        return replaced(sample, {field: self.change(field, array, draw, rng) for field, array in found.items()})

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
        """Draw what all fields share; ``shape`` is the shape of the first field. None: nothing to draw."""
        return None

    @abstractmethod
    def change(self, field: Field, array: Any, draw: Any, rng: np.random.Generator) -> Any:
        """The field after this step."""

    def _fits(self, field: Field, found: dict[Field, Any]) -> bool:
        first, axes = next(iter(found.values())), getattr(self, "axes", ())
        array = found[field]
        return max(axes, default=-1) < array.ndim and all(array.shape[a] == first.shape[a] for a in axes)


@final
class Flip(Augmentation):
    """Flip along each of ``axes`` with probability ``p``."""

    def __init__(self, axes: Sequence[int] = (1,), p: float = 0.5, fields: Sequence[Field] | None = None) -> None:
        self.axes, self.p, self.fields = tuple(axes), p, _fields(fields)

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
        return [axis for axis in self.axes if rng.random() < self.p]

    def change(self, field: Field, array: Any, draw: Any, rng: np.random.Generator) -> Any:
        return np.flip(array, draw)


@final
class Roll(Augmentation):
    """Shift by a random number of cells along each of ``axes``, with wrap-around: for periodic simulations."""

    def __init__(self, axes: Sequence[int] = (0, 1, 2), fields: Sequence[Field] | None = None) -> None:
        self.axes, self.fields = tuple(axes), _fields(fields)

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
        return [int(rng.integers(shape[axis])) for axis in self.axes]

    def change(self, field: Field, array: Any, draw: Any, rng: np.random.Generator) -> Any:
        return np.roll(array, draw, self.axes)


@final
class Rotate90(Augmentation):
    """Rotation by quarter turns, exact: one of 4 in a plane (two ``axes``), one of the 24 of a cube (three).

    Raises ``DataError`` if the axes are not equally long, because batches have one shape.
    """

    def __init__(self, axes: Sequence[int] = (0, 1), fields: Sequence[Field] | None = None) -> None:
        self.axes, self.fields = tuple(axes), _fields(fields)

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
        lengths = {shape[axis] for axis in self.axes}
        if len(lengths) > 1:
            raise DataError(f"Rotate90(axes={self.axes}) of a sample of {shape}: put Crop to equal lengths before")
        order = rng.permutation(len(self.axes))
        flips = rng.random(len(self.axes)) < 0.5
        swaps = sum(a > b for a, b in itertools.combinations(order, 2))
        flips[-1] = (swaps + flips[:-1].sum()) % 2  # else it would be a reflection
        return [int(i) for i in order], [axis for axis, flip in zip(self.axes, flips, strict=True) if flip]

    def change(self, field: Field, array: Any, draw: Any, rng: np.random.Generator) -> Any:
        order, flips = draw
        axes = [*range(array.ndim)]
        for axis, source in zip(self.axes, order, strict=True):
            axes[axis] = self.axes[source]
        return np.flip(array.transpose(axes), flips)


@final
class Rotate(Augmentation):
    """Rotation of an image by an angle of at most ``degrees``, bilinear; nearest for the fields in ``labels``.

    In NumPy, for a few degrees now and then: it takes milliseconds for a photograph. Pixels from outside of the image
    become ``fill``. Integers are rounded.
    """

    axes = (0, 1)

    def __init__(
        self, degrees: float, fields: Sequence[Field] | None = None, labels: Sequence[Field] = (), fill: float = 0
    ) -> None:
        self.degrees, self.labels, self.fill, self.fields = degrees, (*labels,), fill, _fields(fields)

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
        angle = np.deg2rad(rng.uniform(-self.degrees, self.degrees))
        y, x = np.ogrid[: shape[0], : shape[1]]
        y, x = y - (shape[0] - 1) / 2, x - (shape[1] - 1) / 2
        rows = np.cos(angle) * y + np.sin(angle) * x + (shape[0] - 1) / 2
        return rows, np.cos(angle) * x - np.sin(angle) * y + (shape[1] - 1) / 2

    def change(self, field: Field, array: Any, draw: Any, rng: np.random.Generator) -> Any:
        rows, columns = draw
        if field in self.labels:
            return self._at(array, np.rint(rows).astype(int), np.rint(columns).astype(int))
        top, left = np.floor(rows).astype(int), np.floor(columns).astype(int)
        kind = array.dtype if array.dtype.kind in "fc" else np.dtype(np.float32)
        found = np.zeros(array.shape, kind)
        for down, right in itertools.product((0, 1), (0, 1)):
            weight = (1 - abs(rows - top - down)) * (1 - abs(columns - left - right))
            weight = weight.astype(kind).reshape(weight.shape + (1,) * (array.ndim - 2))
            found += weight * self._at(array, top + down, left + right)
        return found if kind == array.dtype else np.rint(found).astype(array.dtype)

    def _at(self, array: Any, rows: Any, columns: Any) -> Any:
        height, width = array.shape[:2]
        inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
        found = array[rows.clip(0, height - 1), columns.clip(0, width - 1)]
        found[~inside] = self.fill
        return found


@final
class Crop(Augmentation):
    """Part of ``shape`` along the first axes, or ``axes``, at a random place, or with where="centre" in the middle.

    ``padding`` first adds that many zeros at both ends of each axis. Raises ``DataError`` for too small a sample.
    """

    def __init__(
        self,
        shape: Sequence[int],
        where: str = "random",
        padding: int = 0,
        axes: Sequence[int] | None = None,
        fields: Sequence[Field] | None = None,
    ) -> None:
        if where not in ("random", "centre"):
            raise UsageError(f"Crop(where={where!r}): it is 'random' or 'centre'")
        self.shape, self.where, self.padding, self.fields = tuple(shape), where, padding, _fields(fields)
        self.axes = tuple(axes) if axes is not None else tuple(range(len(self.shape)))

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
        room = [
            shape[a] + 2 * self.padding - n if a < len(shape) else -1
            for a, n in zip(self.axes, self.shape, strict=True)
        ]
        if min(room) < 0:
            raise DataError(f"Crop({self.shape}) of a sample of shape {shape}: give padding=, or a smaller shape")
        return [int(rng.integers(n + 1)) if self.where == "random" else n // 2 for n in room]

    def change(self, field: Field, array: Any, draw: Any, rng: np.random.Generator) -> Any:
        if self.padding:
            array = np.pad(array, [(self.padding if a in self.axes else 0,) * 2 for a in range(array.ndim)])
        part = [slice(None)] * array.ndim
        for axis, begin, length in zip(self.axes, draw, self.shape, strict=True):
            part[axis] = slice(begin, begin + length)
        return array[tuple(part)]


@final
class GaussianNoise(Augmentation):
    """Normal noise of standard deviation ``sigma``, independent for each field. Raises ``DataError`` for integers."""

    def __init__(self, sigma: float, fields: Sequence[Field] | None = None) -> None:
        self.sigma, self.fields = sigma, _fields(fields)

    def change(self, field: Field, array: Any, draw: Any, rng: np.random.Generator) -> Any:
        if array.dtype.kind != "f":
            raise DataError(f"GaussianNoise({self.sigma}) of {array.dtype}: put Normalize(mean, std) before it")
        noise: Any = rng.standard_normal(array.shape, np.float64 if array.dtype.itemsize > 4 else np.float32)
        return array + np.asarray(self.sigma * noise, array.dtype)


@final
class Normalize(Augmentation):
    """``(x - mean) / std`` as float32 (float64 stays); numbers, or one for each channel, along ``axis``."""

    def __init__(self, mean: Any, std: Any, axis: int = -1, fields: Sequence[Field] | None = None) -> None:
        self.mean, self.std = np.asarray(mean), np.asarray(std)
        self.axis, self.fields = axis, _fields(fields)

    def change(self, field: Field, array: Any, draw: Any, rng: np.random.Generator) -> Any:
        kind = np.float64 if array.dtype == np.float64 else np.float32
        shape = [1] * array.ndim
        shape[self.axis] = -1
        mean, std = (each.astype(kind).reshape(shape if each.ndim else ()) for each in (self.mean, self.std))
        return (array.astype(kind) - mean) / std


@final
class MixUp:
    """Mean of a sample and another of the whole data set, weighted by a draw of Beta(alpha, alpha) (arXiv 1710.09412).

    ``classes``: number of classes; an integer label becomes class probabilities. A sample needs a second read, for its
    partner; the partner goes through the steps before this one, too.
    """

    def __init__(self, alpha: float = 0.2, classes: int = 0, fields: Sequence[Field] | None = None) -> None:
        self.alpha, self.classes, self.fields = alpha, classes, _fields(fields)

    def __call__(self, sample: Any, rng: np.random.Generator) -> Any:
        raise UsageError("MixUp needs a data set to choose from: give it in augment= of Batches or DataLoader")

    def partner(self, rng: np.random.Generator, samples: int) -> int:
        """Number of the other sample; the first draw from ``rng``."""
        return int(rng.integers(samples))

    def mix(self, sample: Any, other: Any, rng: np.random.Generator) -> Any:
        """Mix the fields of two samples, by default all of them."""
        share = float(rng.beta(self.alpha, self.alpha))
        fields = self.fields
        if fields is None and isinstance(sample, (dict, tuple, list)):
            fields = tuple(sample) if isinstance(sample, dict) else tuple(range(len(sample)))
        mine, others = (select(each, fields, "MixUp") for each in (sample, other))
        return replaced(sample, {field: self._mean(mine[field], others[field], share, field) for field in mine})

    def _mean(self, mine: Any, other: Any, share: float, field: Field) -> Any:
        if mine.dtype.kind in "iub" and not mine.ndim:
            if not self.classes:
                raise UsageError(f"MixUp of the integer {field!r}: give MixUp(classes=N), or fields= without it")
            mine, other = (np.eye(1, self.classes, int(each), np.float32)[0] for each in (mine, other))
        elif mine.dtype.kind != "f":
            mine, other = mine.astype(np.float32), other.astype(np.float32)
        return (mine * share + other * (1 - share)).astype(mine.dtype)


def select(sample: Any, fields: tuple[Field, ...] | None, step: str) -> dict[Field, Any]:
    """Arrays of the named fields of a sample, which may be an array itself."""
    if fields is None and isinstance(sample, dict):
        raise UsageError(f"{step} of a dict: name its fields, {step}(..., fields={tuple(sample)[:2]})")
    if not isinstance(sample, (dict, tuple, list)):
        return {0: np.asarray(sample)}
    try:
        return {field: np.asarray(cast("Any", sample)[field]) for field in fields or (0,)}
    except (KeyError, IndexError, TypeError) as error:
        has = list(sample) if isinstance(sample, dict) else f"{len(sample)} elements"
        raise UsageError(f"{step}(fields={fields}): the sample has {has}") from error


def replaced(sample: Any, fields: dict[Field, Any]) -> Any:
    """The sample with some of its fields replaced."""
    if isinstance(sample, dict):
        return {**sample, **fields}
    if not isinstance(sample, (tuple, list)):
        return fields[0]
    elements = [*sample]
    for field, array in fields.items():
        elements[int(field)] = array
    return sample._make(elements) if hasattr(sample, "_make") else type(sample)(elements)


def _fields(fields: Sequence[Field] | None) -> tuple[Field, ...] | None:
    return (fields,) if isinstance(fields, str) else None if fields is None else tuple(fields)
