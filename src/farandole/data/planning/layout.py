"""``ShuffledLayout``: order of a data set that is read in place: a global shuffle without a list in memory."""

from __future__ import annotations

from typing import final

from farandole.data.planning.order import ExactOrder, SampleOrder
from farandole.elastic.worker.layout import Layout
from farandole.errors import UsageError


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
