"""Base class of the optimizers here: exempt groups, float32 masters, dynamic loss scales.

Subclasses implement ``_update``, which changes weights; all tensors that it gets are float32 or wider.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, TypeAlias

import torch

from farandole.adapters.torch_tensors import HALF
from farandole.errors import UnsupportedError
from farandole.largebatch.trust import Group, at_least, split

Params: TypeAlias = Iterable[torch.Tensor] | Iterable[Group] | Iterable[tuple[str, torch.Tensor]]
State: TypeAlias = dict[str, Any]


class LargeBatchOptimizer(torch.optim.Optimizer, ABC):
    """Optimizer that updates a float32 copy, ``state[p]["master"]``, of weights in half precision.

    A step is skipped if ``GradScaler`` finds a gradient that is not finite; gradients are unscaled in float32.
    """

    _step_supports_amp_scaling = True  # GradScaler then sets grad_scale and found_inf, and does not unscale gradients

    def __init__(self, params: Params, defaults: dict[str, Any]) -> None:
        at_least("lr", defaults["lr"])
        at_least("weight_decay", defaults["weight_decay"])
        self._versions: dict[int, int] = {}  # version of each half-precision weight when it last equaled its master
        super().__init__(params, defaults)

    @abstractmethod
    def _update(
        self, group: Group, weights: list[torch.Tensor], grads: list[torch.Tensor], states: list[State]
    ) -> None:
        """Update ``weights`` by their ``grads``."""

    def _advance(self, group: Group) -> None:
        """Count a step of ``group``, also on a rank that has none of its weights: see ``ShardedOptimizer``."""

    def add_param_group(self, param_group: Group) -> None:
        """Add a group; its parameters with fewer than two dimensions become a second, ``exempt`` group."""
        for group in split(param_group):
            super().add_param_group(group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Run one step; return the result of ``closure``. Raises ``UnsupportedError`` for sparse gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found_inf, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        if found_inf is not None and float(found_inf):
            return loss
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                grads = [self._gradient(p, scale) for p in params]
                weights = [self._weight(p) for p in params]
                self._update(group, weights, grads, [self.state[p] for p in params])
                self._write_back(params, weights)
            self._advance(group)
        return loss

    def load_state_dict(self, state_dict: State) -> None:
        """Load a state like PyTorch, but keep the state of half-precision weights in float32."""
        super().load_state_dict(state_dict)
        numbers = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        params = chain.from_iterable(group["params"] for group in self.param_groups)
        for number, param in zip(numbers, params, strict=True):
            if param.dtype in HALF:
                for name, value in state_dict["state"].get(number, {}).items():
                    if isinstance(value, torch.Tensor) and value.is_floating_point():
                        self.state[param][name] = value.detach().to(param.device, torch.float32, copy=True)

    def _gradient(self, param: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
        grad = param.grad
        assert grad is not None
        if grad.is_sparse:
            raise UnsupportedError(
                f"{type(self).__name__} takes no sparse gradients, found one of shape {tuple(grad.shape)}: make the "
                "layer with sparse=False, or give its parameters to an optimizer of their own (SGD, SparseAdam)"
            )
        if param.dtype in HALF:
            grad = grad.float()
        return grad if scale is None else grad / scale.to(grad.device)

    def _weight(self, param: torch.Tensor) -> torch.Tensor:
        if param.dtype not in HALF:
            return param
        state = self.state[param]
        if "master" not in state:
            state["master"] = param.float()
        master: torch.Tensor = state["master"]
        # Weights written elsewhere (broadcast_parameters, a checkpoint) replace the master, unless values are equal.
        if self._versions.get(id(param)) != param._version and not torch.equal(master.to(param.dtype), param):
            master.copy_(param)
        return master

    def _write_back(self, params: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]) -> None:
        for param, weight in zip(params, weights, strict=True):
            if weight is not param:
                param.copy_(weight)
                self._versions[id(param)] = param._version


def buffers(states: Sequence[State], name: str, weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The state tensor ``name`` of each weight, initially zero."""
    for state, weight in zip(states, weights, strict=True):
        if name not in state:
            state[name] = torch.zeros_like(weight)
    return [state[name] for state in states]
