"""``farandole.torch``, as the contract of bindings wants it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import farandole.torch as hvd
from farandole.torch.amp import GradScaler
from farandole.torch.optim import GradientLag
from workbench.binding.under_test import BindingUnderTest, Distributed, Trainer, Values


class TorchUnderTest(BindingUnderTest):
    """``farandole.torch``."""

    name = "torch"
    hvd: Any = hvd
    elastic = hvd.elastic

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

    def distributed(self, like: Mapping[str, torch.Tensor], **options: Any) -> Distributed:
        return self._reducing(like, **options)[0]

    def observed(self, like: Mapping[str, torch.Tensor]) -> tuple[Distributed, Any]:
        reduce, optimizer = self._reducing(like)
        return reduce, hvd.NoiseScale(optimizer, every=1, horizon_samples=1e12)

    def _reducing(
        self, like: Mapping[str, torch.Tensor], lag: int = 0, **options: Any
    ) -> tuple[Distributed, torch.optim.Optimizer]:
        params = {name: torch.nn.Parameter(each.clone()) for name, each in like.items()}
        optimizer: Any = torch.optim.SGD(list(params.values()), lr=0.0)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=params.items(), **options)
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

        return reduce, optimizer

    def outlandish(self) -> torch.Tensor:
        return torch.ones(3).to(torch.float8_e4m3fn)

    def trainer(self, rule: str, distributed: bool = True, **options: Any) -> Trainer:
        return TorchTrainer(rule, distributed, **options)

    def state(self, **values: Any) -> Any:
        return hvd.elastic.TorchState(**values)


class Line(torch.nn.Module):
    """The model of a ``Trainer``."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(3, 1, dtype=torch.float64))
        self.b = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.w + self.b


class TorchTrainer(Trainer):
    """With the optimizers of PyTorch."""

    def __init__(
        self, rule: str, distributed: bool, loss_scale: float = 0.0, virtual_workers: int = 0, **options: Any
    ) -> None:
        self.model, self.sharded = Line(), bool(virtual_workers)
        params = self.model.parameters()
        self.optimizer: Any = torch.optim.Adam(params, 0.05)
        if rule == "sgd":
            self.optimizer = torch.optim.SGD(self.model.parameters(), 0.05, momentum=0.9)
        if self.sharded:
            options["virtual_workers"] = hvd.VirtualWorkers(virtual_workers, self.model)
        if distributed:
            self.optimizer = hvd.DistributedOptimizer(self.optimizer, self.model.named_parameters(), **options)
        enabled = loss_scale > 0
        self.scaler = GradScaler("cpu", init_scale=loss_scale or 1.0, growth_interval=10**6, enabled=enabled)

    def step(self, x: Values, y: Values) -> None:
        self.optimizer.zero_grad()
        for shard in self.optimizer.shards(len(x)) if self.sharded else [None]:
            rows = slice(None) if shard is None else shard.rows
            error = self.model(torch.from_numpy(x[rows])) - torch.from_numpy(y[rows])
            self.scaler.scale(error.pow(2).mean()).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def weights(self) -> dict[str, Values]:
        return {name: param.detach().numpy().copy() for name, param in self.model.named_parameters()}

    def add(self, name: str, amount: float) -> None:
        with torch.no_grad():
            getattr(self.model, name).add_(amount)

    def state(self, **values: Any) -> Any:
        return hvd.elastic.TorchState(self.model, self.optimizer, **values)

    def loss_scale(self) -> float:
        return self.scaler.get_scale()
