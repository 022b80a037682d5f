"""Reduction of PyTorch gradients, triggered by hooks for complete gradients and for the end of a pass.

reducer = TorchReducer(lambda: params, key, ReductionOptions(), passes_per_step=1)
loss.backward()             # its last act is the reduction
reducer.settle()            # nothing left to do
reducer.stepped()
"""

# Threads: see ``gradients/step_reducer``; ``_first_arrived`` and ``pass_ended`` run on a thread of autograd.
#
# References. Parameters hold hooks, and a model outlives its optimizers. Autograd holds the ``PassEnd``, and the script
# may keep the graph of a failed pass for ever. Both refer to the reducer weakly.

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
    """Reducer with hooks on the parameters of one optimizer, which ``params`` lists."""

    def __init__(
        self,
        params: Callable[[], list[torch.Tensor]],
        identity: OptimizerKey,
        terms: ReductionOptions,
        passes_per_step: int,
    ) -> None:
        self._hooks = ArrivalHooks()
        self._ongoing: Callable[[], PassEnd | None] = no_pass
        # No bound methods, which are strong references: here they make a cycle, on a parameter they leak the optimizer.
        self._reference = weakref.ref(self)
        self._hook, self._early_hook = _hook_of(self._reference), _early_hook_of(self._reference)
        self._first_weight = self._share = 1.0
        self._reduced_in = OUTSIDE
        self.adds_in_order = False
        """True if the optimizer sums over all parameters, like LBFGS: another order of parameters gives other bits."""
        super().__init__(tensors, params, identity, terms, passes_per_step, self._hooks.remove)

    def belongs_to(self, optimizer: torch.optim.Optimizer) -> None:
        """Remove the hooks when ``optimizer`` is freed, even if the traceback of an error keeps this reducer alive."""
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
        if self._rests:  # wake up before the next pass, which needs the hooks
            self._take_part()
        self._ongoing = no_pass  # the outer graph may keep the ``PassEnd`` of a failed nested pass alive

    def wrap(self, closure: Closure) -> Closure:
        """Wrap a closure for ``Optimizer.step``: it reduces the gradients and returns the reduced loss.

        Line searches then decide alike on every rank. The loss is reduced like the gradients; raises ``UsageError`` for
        operations whose gradients belong to no reduced loss (other than Average and Sum).
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
            if votes:  # vote once, after the first evaluation, because the optimizer then begins to change parameters
                votes.pop()()
            return reduced

        return evaluate

    def watch_again(self) -> None:
        """See ``Reducer``."""
        super().watch_again()
        if self._hooks:
            self._watch()

    def _watch(self) -> list[torch.Tensor]:
        """Hook all parameters; return those that are or were trainable, or have a gradient.

        Optimizers apply every gradient that is set, also one that the script has set on a frozen parameter.
        """
        hooks = self._hooks
        params = self.params()
        arriving = self._early_hook if self.passes_per_step > 1 and self._weighs_passes else None
        if known := hooks.those_on(params, arriving):  # the usual case, in every step
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
                "and gets other bits. Give them to it in the same order on every rank"
            )
        return exchange

    def _bound(self, params: Sequence[torch.Tensor], groups: Sequence[int]) -> TorchParameters:
        return TorchParameters(params, groups, self._terms)

    # -- the weights of the passes of an accumulation -----------------------------------------------------------------
    #
    # A rank's share of the samples may change from pass to pass. The weight of the first pass is applied when the sum
    # is reduced. The gradients of another pass are multiplied by (its weight / first weight) before they are added.

    @property
    def _weighs_passes(self) -> bool:
        weighs = self.op in (ReduceOp.AVERAGE, ReduceOp.SUM)
        return self.passes_per_step > 1 and self.step_vote is not None and weighs

    def _weigh(self) -> float:
        """See ``GradientReducer``."""
        if self.step_vote is None:
            return 1.0
        return self._first_weight if self._weighs_passes else super()._weigh()

    def _arriving(self, param: torch.Tensor, grad: torch.Tensor) -> torch.Tensor | None:
        """Weigh the gradient that a pass will add, relative to the first pass; ``None`` for no change."""
        if not self._weighs_passes:
            return None
        if self._ongoing() is None:  # first gradient of the pass
            weight = super()._weigh()
            if not self._passes:
                self._first_weight = weight or 1.0
            self._share = weight / self._first_weight
        return None if self._share == 1.0 or self._is_weighed_by_another(param) else grad * self._share

    def _is_weighed_by_another(self, param: torch.Tensor) -> bool:
        """True if an older optimizer with this parameter weighs its gradients already."""
        older = (each for each in self._siblings.find() if isinstance(each, TorchReducer) and each.number < self.number)
        return any(each._weighs_passes and each._hooks.is_early(param) for each in older)

    # -- during a backward pass ---------------------------------------------------------------------------------------

    def _first_arrived(self) -> None:
        if is_compiled():
            self._refuse_compiled()
        if torch.is_grad_enabled() and self._passes + 1 >= self.passes_per_step:
            self._refuse_graph()
        self.begin_pass()  # before ``queued``: if it raises, the pass fails, and must have no queued end
        self._ongoing = PassEnd.queued(self._reference)

    def pass_ended(self) -> None:
        """See ``Watcher``."""
        if self._ongoing() is None:
            return  # the end of an earlier failed pass, whose graph was traversed again
        self._ongoing = no_pass  # first, because the rest may raise: the pass is over in any case
        self.end_pass()

    def _may_be_new(self) -> bool:
        """See ``GradientReducer``; true if ``step()`` is called in a hook, which may run before this reducer's hook."""
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
            "a backward pass under compiled autograd does not report when it is over, so that gradients would stay "
            "those of this rank: compile the model alone, by torch.compile(model), without "
            "torch._dynamo.compiled_autograd (torch._dynamo.config.compiled_autograd = False)"
        )

    def _refuse_graph(self) -> None:
        """Refuse ``create_graph``: reduced gradients have no graph, so their derivatives would silently lack terms."""
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
            value = value * weight if weight else torch.zeros_like(value)  # the mean over no samples is NaN
        how, process_set = Reduction(self.op), self._terms.process_set
        [reduced] = verbs.allreduce([value], f"{self.label}.loss", how, process_set).run()
        return reduced if isinstance(loss, torch.Tensor) else reduced.item()


def _hook_of(reference: weakref.ref[TorchReducer]) -> Arrived:
    """Hook for complete gradients, with a weak reference: a model must not keep its optimizer alive."""

    def arrived(param: torch.Tensor) -> None:  # called for every parameter in every step
        reducer = reference()
        if reducer is None:
            return
        if reducer._ongoing() is None:  # first gradient of this pass; the reference of a failed pass is dead
            reducer._first_arrived()
        if reducer._overlapped is not None:
            reducer.completed(param)

    return arrived


def _early_hook_of(reference: weakref.ref[TorchReducer]) -> Arriving:
    """Hook for gradients before they are added, with a weak reference, too."""

    def arriving(param: torch.Tensor, grad: torch.Tensor) -> torch.Tensor | None:
        reducer = reference()
        return None if reducer is None else reducer._arriving(param, grad)

    return arriving
