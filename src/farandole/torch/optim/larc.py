"""LARC: layer-wise learning rates for any optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import torch

from farandole.adapters.torch_tensors import norms
from farandole.errors import UnsupportedError, UsageError
from farandole.largebatch.trust import Group, at_least, clipped_rate, lars_rate, split
from farandole.torch.reducing_optimizer import ReducingOptimizer
from farandole.torch.subclass import FrontOptimizer, put_before

Mode: TypeAlias = Literal["clip", "scale"]
MODES: tuple[Mode, ...] = ("clip", "scale")


class LARCOptimizer(FrontOptimizer):
    """Mixin that ``LARC`` puts before the user's class, which then gets gradients scaled layer by layer."""

    _larc_mode: Mode
    _larc_coefficient: float

    def add_param_group(self, param_group: Group) -> None:
        """Add a group; its parameters with fewer than two dimensions become a second, ``exempt`` group."""
        for group in split(param_group):
            super().add_param_group({"trust_coefficient": self._larc_coefficient, **group})

    def step(self, closure: Callable[[], Any] | None = None, **others: Any) -> Any:
        """Run the user's step; gradients and settings are restored afterwards."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with self._scaled():
            super().step(**others)
        return loss

    step.hooked = True  # type: ignore[attr-defined] # the user's class runs the step hooks; not twice

    @contextmanager
    def _scaled(self) -> Iterator[None]:
        before = [(p, p.grad) for group in self.param_groups for p in group["params"]]
        decays = [group.get("weight_decay") for group in self.param_groups]
        try:
            with torch.no_grad():
                for group in self.param_groups:
                    if not group["exempt"]:
                        self._scale(group)
            yield
        finally:
            for param, grad in before:
                param.grad = grad
            for group, decay in zip(self.param_groups, decays, strict=True):
                if decay is not None:
                    group["weight_decay"] = decay

    def _scale(self, group: Group) -> None:
        """Replace g by factor·(g + βw), and the group's β by 0."""
        params = [p for p in group["params"] if p.grad is not None]
        if any(p.grad.is_sparse for p in params):
            raise UnsupportedError(
                "LARC takes no sparse gradients: make the layer with sparse=False, or put its parameters into a group "
                'with "exempt": True'
            )
        if not params:
            return
        lr, decay = float(group["lr"]), 0.0 if _decouples(self, group) else float(group.get("weight_decay", 0.0))
        grads = [p.grad for p in params]
        for param, grad, w, g in zip(params, grads, norms(params), norms(grads), strict=True):
            rate = lars_rate(w, g, group["trust_coefficient"], decay)
            factor = clipped_rate(rate, lr) if self._larc_mode == "clip" else rate
            wide = torch.promote_types(grad.dtype, torch.float32)
            param.grad = grad.to(wide).add(param, alpha=decay).mul_(factor).to(grad.dtype)
        if decay:
            group["weight_decay"] = 0.0


def LARC(  # noqa: N802 (used like a class)
    optimizer: torch.optim.Optimizer, trust_coefficient: float = 0.001, mode: Mode = "clip"
) -> LARCOptimizer:
    """Wrap ``optimizer`` with a learning rate per layer. Use the returned object from then on.

    >>> optimizer = LARC(torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=1e-4))
    >>> optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    With λ = η‖w‖ / (‖g‖ + β‖w‖), 1 if a norm is 0, the optimizer gets the gradient λ·(g + βw) in the mode *scale*, and
    min(λ, γ)/γ·(g + βw) in the mode *clip*, in which no layer's rate exceeds γ. γ is the optimizer's ``lr``, β its
    ``weight_decay`` (which the optimizer itself then does not apply, except AdamW), η ``trust_coefficient``. λ is from
    You, Gitman, Ginsburg 2017, arXiv 1708.03888, equation 6; the modes are those of NVIDIA's Apex.

    The result is an instance of the class of ``optimizer`` and shares its state. Its groups are split: parameters with
    fewer than two dimensions are ``exempt``, without decay; a group with the key ``"exempt"`` is not split. Wrap before
    ``DistributedOptimizer``, so that LARC sees the averages, and before a scheduler, which counts groups. Useless for
    optimizers that are invariant to the scale of gradients (Adam, RMSprop): see ``LAMB``. Raises ``ValueError`` for
    invalid arguments, ``UnsupportedError`` for sparse gradients and for LBFGS.
    """
    if mode not in MODES:
        raise UsageError(f"mode={mode!r}: expected one of {', '.join(MODES)}")
    at_least("trust_coefficient", trust_coefficient)
    if isinstance(optimizer, ReducingOptimizer | LARCOptimizer):
        raise UsageError("LARC wraps the original optimizer, once: hvd.DistributedOptimizer(LARC(optimizer))")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UnsupportedError("LARC scales one gradient per step, and LBFGS evaluates many: use SGD")
    larc: LARCOptimizer = put_before(LARCOptimizer, optimizer)
    larc._larc_mode, larc._larc_coefficient = mode, trust_coefficient
    larc.__dict__["_step_supports_amp_scaling"] = False  # norms need gradients that GradScaler has unscaled
    larc.param_groups[:] = [
        {"trust_coefficient": trust_coefficient, **part} for group in larc.param_groups for part in split(group)
    ]
    return larc


def _decouples(optimizer: torch.optim.Optimizer, group: Group) -> bool:
    """True if the optimizer does not add the decay to the gradient."""
    return isinstance(optimizer, torch.optim.AdamW) or bool(group.get("decoupled_weight_decay", False))
