"""Random numbers of a prediction, keyed by seed, pass and sample: the same in any process, at any time."""

from __future__ import annotations

from typing import final

import numpy as np

from farandole.data.loading.augment import generator

_STEP = 2**32
"""First step of the random streams of predictions; augmentation uses the streams from 0 on."""


@final
class Draw:
    """Random numbers for one batch, whose ``samples`` are numbers in the data set.

    >>> of_four, of_one = Draw(seed=0, samples=range(4, 8)), Draw(seed=0, samples=range(5, 6))
    >>> int(of_four.rng(5).integers(100)) == int(of_one.rng(5).integers(100))
    True

    ``number`` is the number of the pass, for a function that answers a batch several times.
    """

    def __init__(self, seed: int, samples: range, number: int = 0) -> None:
        self.seed, self.samples, self.number = seed, samples, number

    def rng(self, sample: int) -> np.random.Generator:
        """Generator of one sample, by Philox: it does not depend on the batch."""
        return generator(self.seed, self.number, sample, _STEP)

    def batch_seed(self, stream: int = 0) -> int:
        """Seed below 2**63 of a generator that draws for the whole batch, as generators of frameworks do.

        It depends on the first sample of the batch; ``stream`` distinguishes several generators.
        """
        return int(generator(self.seed, self.number, self.samples.start, _STEP + 1 + stream).integers(2**63))

    def of_pass(self, number: int) -> Draw:
        """The random numbers of another pass over the same samples."""
        return Draw(self.seed, self.samples, number)
