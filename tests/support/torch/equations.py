"""The optimizers for large batches, one layer at a time in float64, written down from the equations of their papers.

layer = Layer(weights)
layer.lars(gradient, lr=0.1, momentum=0.9, weight_decay=1e-4, trust_coefficient=0.001)
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from farandole.torch import optim

Vector: TypeAlias = NDArray[np.float64]


class Layer:
    """Weights, and what an optimizer remembers of them. Vectors are exempt from decay and layer-wise rates."""

    def __init__(self, weights: Any) -> None:
        self.w: Vector = np.array(weights, dtype=np.float64)
        self.exempt = self.w.ndim < 2
        self.v, self.m, self.step = np.zeros_like(self.w), np.zeros_like(self.w), 0

    def rate(self, g: Vector, coefficient: float, decay: float) -> float:
        """λ of You, Gitman, Ginsburg 2017, equation 6; 1 where a norm is zero."""
        w_norm, g_norm = math.sqrt((self.w**2).sum()), math.sqrt((g**2).sum())
        return coefficient * w_norm / (g_norm + decay * w_norm) if w_norm > 0 and g_norm > 0 else 1.0

    def lars(self, g: Vector, lr: float, momentum: float, weight_decay: float, trust_coefficient: float) -> None:
        """You, Gitman, Ginsburg 2017, algorithm 1."""
        rate = 1.0 if self.exempt else self.rate(g, trust_coefficient, weight_decay)
        decay = 0.0 if self.exempt else weight_decay
        self.v = momentum * self.v + lr * rate * (g + decay * self.w)
        self.w = self.w - self.v

    def larc(
        self, g: Vector, lr: float, momentum: float, weight_decay: float, trust_coefficient: float, mode: str
    ) -> None:
        """SGD with momentum, as PyTorch has it, at a rate of λ·γ (scale) or min(λ, γ) (clip)."""
        if not self.exempt:
            rate = self.rate(g, trust_coefficient, weight_decay)
            g = (rate if mode == "scale" else min(rate, lr) / lr) * (g + weight_decay * self.w)
        self.v = momentum * self.v + g
        self.w = self.w - lr * self.v

    def lamb(self, g: Vector, lr: float, betas: tuple[float, float], eps: float, weight_decay: float) -> None:
        """You et al. 2020, algorithm 2."""
        self.step += 1
        self.m = betas[0] * self.m + (1 - betas[0]) * g
        self.v = betas[1] * self.v + (1 - betas[1]) * g**2
        mean, square = self.m / (1 - betas[0] ** self.step), self.v / (1 - betas[1] ** self.step)
        update = mean / (np.sqrt(square) + eps)
        ratio = 1.0
        if not self.exempt:
            update = update + weight_decay * self.w
            w_norm, u_norm = math.sqrt((self.w**2).sum()), math.sqrt((update**2).sum())
            ratio = w_norm / u_norm if w_norm > 0 and u_norm > 0 else 1.0
        self.w = self.w - lr * ratio * update

    def rmsprop_warmup(
        self, g: Vector, lr: float, epoch: float, rmsprop_lr: float, center: float, period: float, weight_decay: float
    ) -> None:
        """Akiba, Suzuki, Fukuda 2017, section 2.1, with α_SGD continued so that it does not jump."""
        if not self.exempt:
            g = g + weight_decay * self.w
        if epoch < center:
            alpha_sgd = 0.5 * math.exp(2 * (epoch - center) / period)
        elif epoch < center + period / 2:
            alpha_sgd = 0.5 + (epoch - center) / period
        else:
            alpha_sgd = 1.0
        alpha_rmsprop = (1 - alpha_sgd) * rmsprop_lr / lr
        self.m = 0.99 * self.m + (1 - 0.99) * g**2
        self.v = 0.9 * self.v - (alpha_sgd + alpha_rmsprop / (np.sqrt(self.m) + 1e-8)) * g
        self.w = self.w + lr * self.v


STEPS = 50


def rate_at(step: int) -> float:
    """A warm-up and a quadratic decay, by step: what is wrong about a changing rate shows."""
    return 0.05 * min(1.0, (step + 1) / 5) * (1 - step / STEPS) ** 2


SGD = {"momentum": 0.9, "weight_decay": 0.01}
COMMON: dict[str, dict[str, Any]] = {
    "lars": {**SGD, "trust_coefficient": 0.02},
    "larc clip": {**SGD, "trust_coefficient": 0.02, "mode": "clip"},
    "larc scale": {**SGD, "trust_coefficient": 2.0, "mode": "scale"},
    "lamb": {"betas": (0.9, 0.98), "eps": 1e-6, "weight_decay": 0.01},
    "rmsprop warm-up": {"rmsprop_lr": 3e-3, "center": 2.0, "period": 2.0, "weight_decay": 0.01},
}
"""What the optimizer and its equations are given alike, by name."""


def make(name: str, params: Any) -> torch.optim.Optimizer:
    """The optimizer; its rate is to be set before every step."""
    settings = dict(COMMON[name])
    if name == "lars":
        return optim.LARS(params, lr=1.0, **settings)
    if name == "lamb":
        return optim.LAMB(params, lr=1.0, **settings)
    if name == "rmsprop warm-up":
        return optim.RMSpropWarmupSGD(params, lr=1.0, steps_per_epoch=10, **settings)
    coefficient, mode = settings.pop("trust_coefficient"), settings.pop("mode")
    return optim.LARC(torch.optim.SGD(params, lr=1.0, **settings), coefficient, mode)


def advance(name: str, layers: list[Layer], grads: list[torch.Tensor], step: int) -> None:
    """One step of all layers, by the equations."""
    for layer, grad in zip(layers, grads, strict=True):
        lr, g = rate_at(step), grad.double().numpy()
        if name == "rmsprop warm-up":
            layer.rmsprop_warmup(g, lr=lr, epoch=step / 10, **COMMON[name])
        elif name == "lamb":
            layer.lamb(g, lr=lr, **COMMON[name])
        elif name == "lars":
            layer.lars(g, lr=lr, **COMMON[name])
        else:
            layer.larc(g, lr=lr, **COMMON[name])
