"""Reduction of PyTorch's gradients: hooks on parameters tell which are complete, and the end of a pass.

reducer = TorchReducer(lambda: params, identity, ReductionOptions(), passes_per_step=1)
loss.backward()             # its last act is the reduction
reducer.settle()            # nothing left to do
reducer.stepped()
"""

# Threads: see ``gradients/step_reducer``; ``_first_arrived`` and ``pass_ended`` run on a thread of autograd.
#
# References. Parameters hold hooks, and a model outlives its optimizers; autograd holds the end of a pass, and the
# graph of one that failed may be kept for ever. Both refer to the reducer weakly.

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

import torch

from farandole.adapters.torch import verbs
from farandole.adapters.torch_tensors import tensors
from farandole.collective import ReduceOp, Reduction
from farandole.errors import UsageError
from farandole.gradients.exchange import GradientExchange
from farandole.gradients.lag import LaggedExchange
from farandole.gradients.optimizer_key import OptimizerKey
from farandole.gradients.reduction_options import ReductionOptions
from farandole.gradients.step_reducer import GradientReducer
from farandole.runtime.session.init import Session, current
from farandole.torch.parameters import TorchParameters
from farandole.torch.passes import OUTSIDE, ArrivalHooks, Arrived, Arriving, PassEnd, is_compiled, no_pass, running_pass

Closure: TypeAlias = Callable[[], Any]


@final
class TorchReducer(GradientReducer[torch.Tensor]):
    """Watches the parameters of one optimizer, which ``params`` lists."""

    def __init__(
        self,
        params: Callable[[], list[torch.Tensor]],
        identity: OptimizerKey,
        terms: ReductionOptions,
        passes_per_step: int,
    ) -> None:
        self._hooks = ArrivalHooks()
        self._ongoing: Callable[[], PassEnd | None] = no_pass
        # Bound methods would be strong: one kept here a cycle, one kept by a parameter an optimizer that never goes.
        self._reference = weakref.ref(self)
        self._hook, self._early_hook = _hook_of(self._reference), _early_hook_of(self._reference)
        self._first_weight = self._share = 1.0
        self._reduced_in = OUTSIDE
        self.adds_in_order = False
        """True if the optimizer adds over all parameters, as LBFGS does: in another order, to other bits."""
        super().__init__(tensors, params, identity, terms, passes_per_step, self._hooks.remove)

    def belongs_to(self, optimizer: torch.optim.Optimizer) -> None:
        """End the hooks with ``optimizer``, also where the traceback of an error keeps this reducer."""
        weakref.finalize(optimizer, self._hooks.remove).atexit = False

    def rejoin(self, label: str) -> None:
        """See ``Reducer``."""
        self._ongoing = no_pass
        super().rejoin(label)

    def stepped(self) -> None:
        """See ``Reducer``."""
        super().stepped()
        self._ongoing = no_pass

    def zeroed(self) -> None:
        """See ``Reducer``."""
        self._reduced = False
        if self._rests:  # before a pass, which is to be seen
            self._take_part()
        self._ongoing = no_pass  # the end of a nested pass that failed may be kept alive by the graph around it

    def wrap(self, closure: Closure) -> Closure:
        """A closure for ``Optimizer.step`` that leaves reduced gradients, and returns the loss that they are of.

        Line searches then decide alike on every rank. The loss is reduced as the gradients are; raises ``UsageError``
        for operations of which no loss can be that of the gradients.
        """
        if self.op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
            raise UsageError(
                f"step(closure) with op={self.op.label}: gradients that are reduced so are those of no loss that the "
                "closure could return. Use op=Average or op=Sum, or call backward(), then step() without a closure"
            )
        votes = [self.vote]

        def evaluate() -> Any:
            self.zeroed()
            loss = closure()
            self.settle()
            reduced = self._reduce_loss(loss)
            if votes:  # the optimizer changes parameters from the first evaluation on
                votes.pop()()
            return reduced

        return evaluate

    def watch_again(self) -> None:
        """See ``Reducer``."""
        super().watch_again()
        if self._hooks:
            self._watch()

    def _watch(self) -> list[torch.Tensor]:
        """Watch what is trained now; returns that, what was trained earlier, and what has a gradient.

        Optimizers step with any gradient that is there, also with one that somebody has given to a frozen parameter.
        """
        hooks = self._hooks
        params = self.params()
        arriving = self._early_hook if self.passes_per_step > 1 and self._weighs_passes else None
        if known := hooks.those_on(params, arriving):  # the rule, asked in every step
            return known
        hooks.add(params, self._hook, arriving)
        return [p for p in params if p.requires_grad or hooks.has_seen_trained(p) or p.grad is not None]

    def _make_exchange(
        self, session: Session, params: list[torch.Tensor]
    ) -> GradientExchange[torch.Tensor] | LaggedExchange[torch.Tensor]:
        exchange = super()._make_exchange(session, params)
        if self.adds_in_order and self._identity.is_reordered:
            exchange.refuse(self._where())
            raise UsageError(
                "this rank has given LBFGS its parameters in another order than others have: it adds over all of them, "
                "and comes to other bits. Give them to it in the same order on every rank"
            )
        return exchange

    def _bound(self, params: Sequence[torch.Tensor], groups: Sequence[int]) -> TorchParameters:
        return TorchParameters(params, groups, self._terms)

    # -- the weights of the passes of an accumulation -----------------------------------------------------------------
    #
    # Ranks may have other shares of the samples in each pass. What the first adds is weighed when the sum is reduced,
    # and so are those like it; what another pass adds is multiplied, before it is added, by how much more it weighs.

    @property
    def _weighs_passes(self) -> bool:
        return self.passes_per_step > 1 and self.step_vote is not None and self._terms.how.op is ReduceOp.AVERAGE

    def _weigh(self) -> float:
        """See ``GradientReducer``."""
        if self.step_vote is None:
            return 1.0
        return self._first_weight if self._weighs_passes else super()._weigh()

    def _arriving(self, param: torch.Tensor, grad: torch.Tensor) -> torch.Tensor | None:
        """The part of a gradient that a pass is about to add, weighed as the other passes are; once for a gradient."""
        if not self._weighs_passes:
            return None
        if self._ongoing() is None:  # the pass begins when the first is added
            weight = super()._weigh()
            if not self._passes:
                self._first_weight = weight or 1.0
            self._share = weight / self._first_weight
        return None if self._share == 1.0 or self._is_weighed_by_another(param) else grad * self._share

    def _is_weighed_by_another(self, param: torch.Tensor) -> bool:
        """True if an older optimizer with this parameter weighs what is added to its gradient."""
        older = (each for each in self._siblings.find() if isinstance(each, TorchReducer) and each.number < self.number)
        return any(each._weighs_passes and each._hooks.is_early(param) for each in older)

    # -- during a backward pass ---------------------------------------------------------------------------------------

    def _first_arrived(self) -> None:
        if is_compiled():
            self._refuse_compiled()
        if torch.is_grad_enabled() and self._passes + 1 >= self.passes_per_step:
            self._refuse_graph()
        self.begin_pass()  # may raise, and the pass with it: so no end is queued before
        self._ongoing = PassEnd.queued(self._reference)

    def pass_ended(self) -> None:
        """The outermost backward pass is over."""
        if self._ongoing() is None:
            return  # this is the end of one that failed, whose graph was gone through again
        self._ongoing = no_pass  # before anything that may raise: the pass is over in any case
        self.end_pass()

    def _may_be_new(self) -> bool:
        """See ``GradientReducer``; in a hook, which may be before this reducer's own."""
        return running_pass() not in (OUTSIDE, self._reduced_in)

    def _reduce(self) -> None:
        self._reduced_in = running_pass()
        super()._reduce()

    def _refuse_compiled(self) -> None:
        session = current("backward()")
        if not self._is_needed(session):
            return
        self._bind(session).refuse(self._where())
        raise UsageError(
            "a backward pass under compiled autograd does not tell when it is over, so that gradients would stay those "
            "of this rank: compile the model alone, by torch.compile(model), without torch._dynamo.compiled_autograd "
            "(torch._dynamo.config.compiled_autograd = False)"
        )

    def _refuse_graph(self) -> None:
        """Reduced values have no graph: what is computed from them would lack terms, and nobody would notice."""
        session = current("backward()")
        if not self._is_needed(session):
            return
        self._bind(session).refuse(self._where())
        raise UsageError(
            "backward(create_graph=True) would leave reduced gradients without a graph: compute what has to be "
            "differentiated again with torch.autograd.grad(..., create_graph=True), and call backward() on the sum"
        )

    def _reduce_loss(self, loss: Any) -> Any:
        session = current()
        if not isinstance(loss, torch.Tensor | float) or not self._is_needed(session):
            return loss
        value = torch.as_tensor(loss, dtype=None if isinstance(loss, torch.Tensor) else torch.float64)
        if (weight := self._weigh()) != 1.0:
            value = value * weight if weight else torch.zeros_like(value)  # the mean over no samples is no number
        how, process_set = Reduction(self.op), self._terms.process_set
        [reduced] = verbs.allreduce([value], f"{self.label}.loss", how, process_set).run()
        return reduced if isinstance(loss, torch.Tensor) else reduced.item()


def _hook_of(reference: weakref.ref[TorchReducer]) -> Arrived:
    """A hook for parameters: a model must not keep its optimizer alive."""

    def arrived(param: torch.Tensor) -> None:  # every parameter comes here in every step
        reducer = reference()
        if reducer is None:
            return
        if reducer._ongoing() is None:  # the first gradient of this pass; one that failed half-way has left no trace
            reducer._first_arrived()
        if reducer._overlapped is not None:
            reducer.completed(param)

    return arrived


def _early_hook_of(reference: weakref.ref[TorchReducer]) -> Arriving:
    """A hook for what is about to be added to a gradient; it keeps no optimizer alive either."""

    def arriving(param: torch.Tensor, grad: torch.Tensor) -> torch.Tensor | None:
        reducer = reference()
        return None if reducer is None else reducer._arriving(param, grad)

    return arriving
