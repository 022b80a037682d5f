"""Our bindings, as the contract of bindings wants them."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import farandole.numpy
import farandole.torch
from farandole.collective import DType
from farandole.testing.binding.under_test import BindingUnderTest, Distributed, Values
from farandole.torch.optim import GradientLag

WITH_BFLOAT16 = importlib.util.find_spec("ml_dtypes") is not None


class TorchUnderTest(BindingUnderTest):
    """``farandole.torch``."""

    name = "torch"
    hvd: Any = farandole.torch

    def make(self, values: npt.ArrayLike, dtype: str = "float64") -> torch.Tensor:
        return torch.from_numpy(np.array(values)).to(getattr(torch, dtype))

    def values(self, tensor: torch.Tensor) -> Values:
        return np.asarray(tensor.to(torch.complex128 if tensor.is_complex() else torch.float64).numpy())

    def dtype(self, tensor: torch.Tensor) -> str:
        return str(tensor.dtype).removeprefix("torch.")

    def views(self, values: Values) -> list[torch.Tensor]:
        return [self.make(values).t(), self.make(values).flatten()[::3], self.make(values)[:, 1:]]

    def repeated(self, value: float, count: int) -> torch.Tensor:
        return torch.tensor([value]).expand(count)

    def distributed(self, like: Mapping[str, torch.Tensor], lag: int = 0, **options: Any) -> Distributed:
        params = {name: torch.nn.Parameter(each.clone()) for name, each in like.items()}
        optimizer: Any = torch.optim.SGD(list(params.values()), lr=0.0)
        optimizer = farandole.torch.DistributedOptimizer(optimizer, named_parameters=params.items(), **options)
        if lag:
            optimizer = GradientLag(optimizer, lag)
        done = 0

        def reduce(gradients: Mapping[str, torch.Tensor | None]) -> dict[str, torch.Tensor | None] | None:
            nonlocal done
            used = [(params[name] * each).sum() for name, each in gradients.items() if each is not None]
            sum(used, torch.zeros(())).backward()
            done = (done + 1) % options.get("backward_passes_per_step", 1)
            if done:
                return None
            optimizer.step()
            reduced = {name: param.grad for name, param in params.items()}
            optimizer.zero_grad()
            return reduced

        return reduce

    def outlandish(self) -> torch.Tensor:
        return torch.ones(3).to(torch.float8_e4m3fn)


class NumpyUnderTest(BindingUnderTest):
    """``farandole.numpy``; with ``ml_dtypes`` where that is installed."""

    name = "numpy"
    hvd: Any = farandole.numpy
    dtypes = tuple(d.label for d in DType if WITH_BFLOAT16 or d is not DType.BFLOAT16)
    compressors = ("none", "fp16", "bf16") if WITH_BFLOAT16 else ("none", "fp16")

    def make(self, values: npt.ArrayLike, dtype: str = "float64") -> Values:
        if dtype == "bfloat16":
            import ml_dtypes

            return np.array(values).astype(ml_dtypes.bfloat16)
        return np.array(values).astype(dtype)

    def values(self, tensor: Values) -> Values:
        return tensor if np.iscomplexobj(tensor) else tensor.astype(np.float64)

    def dtype(self, tensor: Values) -> str:
        return tensor.dtype.name

    def views(self, values: Values) -> list[Any]:
        made = [self.make(values) for _ in range(4)]
        packed = np.zeros(values.shape, np.dtype([("before", "u1"), ("value", "f8")]))["value"]  # at odd addresses
        packed[...] = values
        swapped = self.make(values).astype(">f8")
        return [made[0].T, made[1].ravel()[::3], made[2][:, 1:], made[3][::-1, ::-1], packed, swapped]

    def repeated(self, value: float, count: int) -> Values:
        return np.broadcast_to(np.array(value), count)

    def distributed(self, like: Mapping[str, Values], **options: Any) -> Distributed:
        return farandole.numpy.DistributedGradients(like, **options)

    def outlandish(self) -> Values:
        return np.ones(3, np.uint32)


BINDINGS: tuple[BindingUnderTest, ...] = (TorchUnderTest(), NumpyUnderTest())
