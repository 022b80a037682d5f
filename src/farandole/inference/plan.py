"""Plan of a prediction: its batches and blocks of samples, and the arguments that a later call must repeat.

    plan = BlockPlan(samples=1000, batch_size=64, block_batches=4, seed=0)
    plan.blocks                                     # 4
    plan.rows(3)                                    # range(768, 1000)
    plan.batches(3)                                 # [range(768, 832), ..., range(960, 1000)]

Batches and blocks depend on the data set and the plan alone, not on the workers: libraries add up in an order that
depends on the size of a batch, so the same sample in another batch would have other bits.
"""

from __future__ import annotations

from typing import final

import msgspec

from farandole.errors import UsageError


@final
class BlockPlan(msgspec.Struct, frozen=True):
    """Samples in batches of ``batch_size``, each a call of the function, and blocks of ``block_batches`` batches.

    One worker computes a block, and writes it as a whole. ``key`` names the model, in the user's words.
    """

    samples: int
    batch_size: int
    block_batches: int
    seed: int = 0
    key: str = ""

    def check(self) -> BlockPlan:
        """Return the plan, or raise ``UsageError`` for numbers below 1."""
        if min(self.samples, self.batch_size, self.block_batches) < 1:
            raise UsageError(
                f"predict() of {self.samples} samples with batch_size={self.batch_size}, "
                f"block_batches={self.block_batches}: each must be at least 1"
            )
        return self

    @property
    def block_size(self) -> int:
        """Number of samples in a block; the last one may have fewer."""
        return self.batch_size * self.block_batches

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return -(-self.samples // self.block_size)

    def rows(self, block: int) -> range:
        """Samples of a block."""
        return range(block * self.block_size, min((block + 1) * self.block_size, self.samples))

    def batches(self, block: int) -> list[range]:
        """Samples of each batch of a block."""
        rows = self.rows(block)
        return [
            range(first, min(first + self.batch_size, rows.stop))
            for first in range(rows.start, rows.stop, self.batch_size)
        ]

    def order(self, rank: int, size: int) -> list[int]:
        """All blocks, in an order that begins elsewhere for each of ``size`` workers: they meet when most is done.

        >>> BlockPlan(samples=6, batch_size=1, block_batches=1).order(1, 2)
        [3, 4, 5, 0, 1, 2]
        """
        begin = self.blocks * rank // size
        return [*range(begin, self.blocks), *range(begin)]

    def differences(self, other: BlockPlan) -> str:
        """Describe how ``other`` differs; "" if the plans are equal."""
        mine, others = msgspec.structs.asdict(self), msgspec.structs.asdict(other)
        return ", ".join(
            f"{name}={others[name]!r} and not {mine[name]!r}" for name in mine if mine[name] != others[name]
        )
