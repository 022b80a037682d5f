"""``SamplesLR``: a schedule of ``farandole.largebatch`` as a PyTorch learning-rate scheduler.

found = recipe(optimizer="lars", base_lr=0.2, base_batch=512, global_batch=8192, epochs=90)
optimizer = hvd.DistributedOptimizer(LARS(model.parameters(), **found.settings))
schedule = hvd.SamplesLR(optimizer, found.schedule, epoch_samples=len(dataset))
...
optimizer.step()
schedule.step()                                 # after every step, with as many samples as the schedule says
"""

from __future__ import annotations

import math
from typing import Any, final

import torch
from torch.optim.lr_scheduler import LRScheduler

from farandole.errors import UsageError
from farandole.largebatch.progress import ScheduleProgress
from farandole.largebatch.schedule import Schedule, momentum_correction
from farandole.torch.noise import NoiseScale
from farandole.torch.reducing_optimizer import ReducingOptimizer
from farandole.torch.subclass import outermost


@final
class SamplesLR(ScheduleProgress, LRScheduler):
    """Learning rate by the number of samples seen: all ranks agree, and a resize makes no jump.

    >>> schedule = hvd.SamplesLR(optimizer, recipe(...).schedule, epoch_samples=len(dataset))
    >>> schedule.step()                             # after every optimizer.step()

    ``optimizer`` must have the base rate, which the schedule multiplies; parameter groups with other rates keep their
    ratio. ``epoch_samples``: samples of an epoch over all ranks. ``noise``: the estimator for AdaScale's rules. Buffers
    that contain the rate (``momentum_holds_rate`` of the optimizer's class, as in LARS) are corrected when the
    rate changes. Raises ``UsageError`` for an optimizer with another rate, or if ``noise`` is missing.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, schedule: Schedule, epoch_samples: int, noise: NoiseScale | None = None
    ) -> None:
        rates = [float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups]
        if not any(math.isclose(rate, schedule.base_lr, rel_tol=1e-6) for rate in rates):
            base = f"{schedule.base_lr:g}"
            raise UsageError(
                f"the schedule multiplies base_lr={base}: make the optimizer with lr={base}, not {rates[0]:g}"
            )
        gain = None if noise is None else noise.gain
        ScheduleProgress.__init__(self, schedule, epoch_samples, gain, ": pass noise=NoiseScale(optimizer)")
        self._begun = False
        LRScheduler.__init__(self, optimizer)

    def get_lr(self) -> list[float | torch.Tensor]:
        """See ``LRScheduler``."""
        factor = self.rate / self.schedule.base_lr
        return [base * factor for base in self.base_lrs]

    def step(self, samples: int | None = None) -> None:
        """Advance by a step of ``samples`` samples over all ranks; the same number on all ranks.

        Default: the samples of the step as counted by a sampler of an elastic state; without such a sampler, the
        schedule's ``batch``.
        """
        if self._begun:
            stepping = outermost(self.optimizer)
            if samples is None and isinstance(stepping, ReducingOptimizer):
                samples = stepping._reducer.samples
            self._correct_momentum(self.advance(samples))
        self._begun = True
        super().step()

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        return {"position": self.position.state(), "last_epoch": self.last_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from ``state_dict``; a schedule for another global batch makes this a resize."""
        self.load_position(state_dict["position"])
        self.last_epoch, self._last_lr = state_dict["last_epoch"], self.get_lr()
        for group, rate in zip(self.optimizer.param_groups, self._last_lr, strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def _correct_momentum(self, before: float) -> None:
        correction = momentum_correction(before, self.rate)
        if correction != 1.0 and getattr(self.optimizer, "momentum_holds_rate", False):
            for state in self.optimizer.state.values():
                if state.get("momentum_buffer") is not None:
                    state["momentum_buffer"].mul_(correction)
