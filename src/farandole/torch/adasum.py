"""``DistributedOptimizer(op=Adasum)``: every rank steps with its own gradients, and the weight changes are combined.

Adasum adds two changes minus their common part (Maleki et al., "Scaling Distributed Training with Adaptive Summation",
MLSys 2021, equation 1): parallel changes are averaged, orthogonal ones are summed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch

from farandole.adapters.torch import verbs
from farandole.adapters.torch_tensors import tensors
from farandole.errors import UnsupportedError
from farandole.gradients.adasum import combine_changes
from farandole.gradients.comparison import ParameterComparison
from farandole.gradients.optimizer_key import Names
from farandole.gradients.reduction_options import ReductionOptions
from farandole.runtime.session.init import takes_part
from farandole.torch.subclass import FrontOptimizer, refuse_copies


class AdasumOptimizer(FrontOptimizer):
    """Mixin that ``DistributedOptimizer`` puts before the user's class: gradients stay local, steps are combined."""

    backward_passes_per_step: int
    _terms: ReductionOptions
    _names: Names
    _trained: set[torch.Tensor]
    _parameter_names: Mapping[torch.Tensor, str]
    _handles: dict[torch.Tensor, int]
    _comparison: ParameterComparison[torch.Tensor]

    def step(self, closure: Callable[[], Any] | None = None, **others: Any) -> Any:
        """Run the user's step, then replace each parameter's change by the combined changes of all ranks."""
        named = self._changing()
        process_set = self._terms.process_set
        if not named or not takes_part(process_set, "an optimizer's step") or len(process_set.ranks) == 1:
            return super().step(closure, **others)
        first, params = named[0][0], [param for _, param in named]
        self._comparison.compare(f"adasum.compare.{first}", lambda: [(name, p.detach()) for name, p in named])
        start = [p.detach().clone() for p in params]
        loss = super().step(closure, **others)
        with torch.no_grad():
            changes = [p - s for p, s in zip(params, start, strict=True)]
            combined = combine_changes(verbs, changes, f"adasum.{first}", self._terms)
            for param, before, change in zip(params, start, combined, strict=True):
                param.copy_(before + change)
        return loss

    __reduce_ex__ = refuse_copies

    step.hooked = True  # type: ignore[attr-defined] # the user's class runs the step hooks; not twice

    def _begin(self, names: Names, terms: ReductionOptions, passes: int) -> None:
        self.backward_passes_per_step, self._names, self._trained = passes, names, set()
        self._parameter_names = {param: name for name, param in names.pairs()}
        self._changing()
        self._handles, self._terms = {}, terms
        self._comparison = ParameterComparison(tensors, terms.process_set, "Adasum")

    def _changing(self) -> list[tuple[str, torch.Tensor]]:
        """Named parameters that a step may change, in one order on all ranks; parameters added later are last.

        Includes parameters that were trainable once: a frozen parameter with momentum still moves while it has a
        gradient, which differs between ranks.
        """
        every = [param for group in self.param_groups for param in group["params"]]
        self._trained.update(param for param in every if param.requires_grad)
        names, known = self._names, self._parameter_names
        changing = ((i, p) for i, p in enumerate(every) if p in self._trained or p.grad is not None)
        found = [(names.get(p, str(i)), p) for i, p in changing]
        if names.are_given:
            found.sort(key=lambda pair: (pair[1] not in known, known.get(pair[1], "")))
        return found

    def synchronize(self) -> None:
        """Nothing to do: gradients are not reduced."""

    def skip_synchronize(self) -> NoReturn:
        """Raise ``UnsupportedError``, because ``step`` has no reduction to leave out."""
        raise UnsupportedError("skip_synchronize() with op=Adasum: step() itself combines the ranks; call it alone")

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Set the number only: gradients accumulate until ``step()`` in any case."""
        self.backward_passes_per_step = passes
