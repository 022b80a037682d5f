"""Collectives on PyTorch tensors, differentiable if autograd records.

ops = TorchOps(__name__)
loss = ops.allreduce(loss, name="loss")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch

from farandole.adapters.torch import verbs
from farandole.collective import Reduction
from farandole.gradients.factors import DERIVATIVE, Factors
from farandole.runtime.collectives.ops import Ops
from farandole.runtime.session.process_sets import ProcessSet
from farandole.torch import autograd


@final
class TorchOps(Ops[torch.Tensor]):
    """Functions of ``farandole.torch``. All that are neither in place nor asynchronous are differentiable."""

    def __init__(self, module: str, factors: Factors = DERIVATIVE) -> None:
        super().__init__(verbs, torch.Tensor, module)
        self._factors = factors

    def _reduced(
        self, tensors: Sequence[torch.Tensor], name: str | None, how: Reduction, process_set: ProcessSet
    ) -> list[torch.Tensor]:
        if not autograd.wanted(*tensors):
            return verbs.allreduce(tensors, name, how, process_set).run()
        return list(autograd.apply(autograd.Allreduce, name, how, process_set, *tensors))

    def _scattered(
        self, tensors: Sequence[torch.Tensor], name: str | None, how: Reduction, process_set: ProcessSet
    ) -> list[torch.Tensor]:
        if not autograd.wanted(*tensors):
            return super()._scattered(tensors, name, how, process_set)
        return list(autograd.apply(autograd.Reducescatter, name, how, process_set, self._factors, *tensors))

    def _gathered(
        self, tensors: Sequence[torch.Tensor], name: str | None, process_set: ProcessSet
    ) -> list[torch.Tensor]:
        if not autograd.wanted(*tensors):
            return super()._gathered(tensors, name, process_set)
        return list(autograd.apply(autograd.Allgather, name, process_set, self._factors, *tensors))

    def _copied(self, tensor: torch.Tensor, root: int, name: str | None, process_set: ProcessSet) -> torch.Tensor:
        if not autograd.wanted(tensor):
            return super()._copied(tensor, root, name, process_set)
        result: torch.Tensor = autograd.apply(autograd.Broadcast, tensor, root, name, process_set, self._factors)
        return result

    def _exchanged(
        self, tensor: torch.Tensor, rows: tuple[int, ...] | None, name: str | None, process_set: ProcessSet
    ) -> tuple[torch.Tensor, tuple[int, ...]]:
        if not autograd.wanted(tensor):
            return super()._exchanged(tensor, rows, name, process_set)
        received, counts = autograd.apply(autograd.Alltoall, tensor, rows, name, process_set)
        return received, counts

    def _counts(self, counts: tuple[int, ...]) -> torch.Tensor:
        return torch.tensor(counts, dtype=torch.int32)
