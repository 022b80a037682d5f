"""``DistributedOptimizer(op=Adasum)``: every rank steps on its own gradients, and the changes are combined.

Adasum adds two changes less their common part (Maleki et al., "Scaling Distributed Training with Adaptive Summation",
MLSys 2021, equation 1): parallel changes are averaged, orthogonal ones are summed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from farandole.collective import ReduceOp
from farandole.errors import UnsupportedError
from farandole.runtime.lanes.reduction import Reduction
from farandole.torch.adapter import verbs
from farandole.torch.gradients import Terms


class AdasumOptimizer(torch.optim.Optimizer):
    """What ``DistributedOptimizer`` puts before the user's class: gradients stay local, steps are combined."""

    backward_passes_per_step: int
    _terms: Terms
    _parameter_names: dict[torch.Tensor, str]
    _handles: dict[torch.Tensor, int]

    def step(self, closure: Callable[[], Any] | None = None, **others: Any) -> Any:
        """Step as the user's class does, then replace the change of every parameter by all ranks' changes combined."""
        params = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        if not params or not self._terms.process_set.included() or len(self._terms.process_set.ranks) == 1:
            return super().step(closure, **others)
        start = [p.detach().clone() for p in params]
        loss = super().step(closure, **others)
        with torch.no_grad():
            compressed = [self._terms.compression.compress(p - s) for p, s in zip(params, start, strict=True)]
            combined = verbs.allreduce(
                [delta for delta, _ in compressed],
                "adasum." + self._parameter_names[params[0]],
                Reduction(ReduceOp.ADASUM),
                self._terms.process_set,
                in_place=True,
            ).run()
            for param, before, delta, (_, context) in zip(params, start, combined, compressed, strict=True):
                param.copy_(before + self._terms.compression.decompress(delta, context))
        return loss

    step.hooked = True  # type: ignore[attr-defined] # the user's class runs the step hooks; once is enough

    def _begin(self, names: dict[torch.Tensor, str], terms: Terms, passes: int) -> None:
        self.backward_passes_per_step = passes
        self._parameter_names, self._handles, self._terms = names, {}, terms

    def synchronize(self) -> None:
        """Nothing to do: gradients are not reduced."""

    def skip_synchronize(self) -> NoReturn:
        """Not possible: raises ``UnsupportedError``, as there is no reduction that ``step`` could leave out."""
        raise UnsupportedError("skip_synchronize() with op=Adasum: step() itself combines the ranks; call it alone")

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Gradients accumulate until ``step()`` in any case."""
        self.backward_passes_per_step = passes
