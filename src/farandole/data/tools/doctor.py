"""Diagnosis of a data set: are its samples sorted, so that windows of pieces do not shuffle them?

    print(diagnose(source, label=lambda sample: sample["y"], window=8))

The clustering is h = n Var(means of pieces) / Var(samples), with n samples in a piece: 1 if samples lie at random, n if
a piece holds one value alone (the design effect of cluster sampling; Kish, "Survey Sampling", 1965, section 5.4). A
window of w pieces averages the clustering away if h / w is small.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from farandole.data.formats.source import Source
from farandole.data.storage.pieces import Pieces
from farandole.errors import UsageError

MOST_CLUSTERED = 2.0
"""Ratio of clustering and window above which a window shuffles too little."""


@final
class Diagnosis(NamedTuple):
    """Finding about the order of a data set; ``print`` describes it."""

    samples: int
    pieces: int
    clustering: float
    window: int

    @property
    def is_sorted(self) -> bool:
        """True if windows do not shuffle these data well enough."""
        return self.pieces > self.window and self.clustering / self.window > MOST_CLUSTERED

    def __str__(self) -> str:
        pieces, window = _counted(self.pieces), _counted(self.window)
        measured = f"clustering {self.clustering:.1f} (1: at random)" if self.pieces > 1 else "clustering unknown"
        found = f"{self.samples} samples of {pieces} looked at: {measured}, window {window}"
        if not self.is_sorted:
            return f"{found}\n{self._why_fine}: training by windows sees what an exact shuffle would show it"
        return (
            f"{found}\nsorted: neighbours are alike, and a window of {window} does not hide that. Pack the "
            "data once in random order:\n  farandole data pack --shuffle SRC DST\nData that fit into the caches of a "
            "job are shuffled exactly from the second epoch on."
        )

    @property
    def _why_fine(self) -> str:
        if self.pieces <= self.window:
            return "small: one window holds all pieces, sorted or not"
        if self.pieces == self.samples:
            return "each sample is a piece, and pieces come in random order"
        if self.clustering > MOST_CLUSTERED:
            return f"neighbours are alike, but a window of {_counted(self.window)} hides that"
        return "well shuffled"


def diagnose(
    source: Source,
    label: Callable[[Any], Any],
    window: int = 8,
    most: int = 4096,
    most_bytes: int = 64 * 2**20,
    seed: int = 0,
) -> Diagnosis:
    """Read ``most`` samples, the same number of each piece, and compare ``label`` between and within pieces.

    A label is a number, an array of numbers (each is compared), or anything with ``==``, which counts as a class.
    Raises ``UsageError`` for data of fewer than two samples.
    """
    if len(source) < 2:
        raise UsageError(f"{source!r}: to check whether samples are sorted, there must be two or more")
    bounds, members = Pieces.of(source.manifest, most_bytes).sample_bounds()
    generator = np.random.default_rng(seed)
    filled = np.flatnonzero(np.diff(bounds) > 0)
    chosen = filled if len(filled) <= most // 4 else np.sort(generator.choice(filled, most // 4, replace=False))
    each = max(2, most // max(1, len(chosen)))
    values, of_piece, counts = [], [], []
    for piece in chosen:
        places = np.arange(bounds[piece], bounds[piece + 1])
        picked = places if len(places) <= each else np.sort(generator.choice(places, each, replace=False))
        counts.append(len(places))
        for place in picked:
            sample = int(place if members is None else members[place])
            values.append(label(source[sample]))
            of_piece.append(int(piece))
    found = clustering(_numbers(values), np.array(of_piece), float(np.mean(counts)))
    return Diagnosis(len(values), len(chosen), found, window)


def clustering(values: npt.NDArray[np.float64], pieces: npt.NDArray[np.int64], per_piece: float) -> float:
    """Largest clustering among the columns of ``values``, with one row for each sample and its piece in ``pieces``.

    The variance between pieces is the variance of their means, less the part due to chance, because samples are few.
    """
    total = values.var(axis=0)
    numbers, places = np.unique(pieces, return_inverse=True)
    counts = np.bincount(places).astype(np.float64)
    if len(numbers) < 2 or not (total > 0).any():
        return 1.0
    means = np.stack([np.bincount(places, weights=column) / counts for column in values.T], axis=1)
    within = np.maximum(0.0, total - means.var(axis=0))
    between = np.maximum(0.0, means.var(axis=0) - (within / counts.mean()))
    usable = total > 0
    return float(1.0 + (per_piece - 1.0) * (between[usable] / total[usable]).max())


def _counted(pieces: int) -> str:
    return f"{pieces} piece{'s' * (pieces != 1)}"


def _numbers(values: list[Any]) -> npt.NDArray[np.float64]:
    """One row of numbers for each label; each class becomes a column."""
    rows = [np.asarray(value).ravel() for value in values]
    if all(row.dtype.kind in "fiub" and row.size == rows[0].size for row in rows):
        return np.stack(rows).astype(np.float64)
    classes = sorted({str(value) for value in values})
    return np.array([[float(str(value) == each) for each in classes] for value in values])
