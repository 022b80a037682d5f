"""The oracle's ``DistributedOptimizer``: a plain optimizer that averages ``p.grad`` when the contract requires it."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Protocol, final

import torch

from workbench.differential.meeting import Given
from workbench.differential.outcome import digest_of


class Meets(Protocol):
    """Interface of a rank that averaging needs."""

    optimizers: list[OracleOptimizer]
    parameters: list[torch.Tensor]
    """Every parameter that an optimizer has had, kept alive: names go by ``id``, which must not be reused."""
    steps: dict[str, bytes]
    """Digests of the parameters and gradients of each step, by optimizer and number of the step."""

    def meet(self, name: str, value: Any, members: tuple[int, ...] | None = None) -> Given:
        """Contribute ``value`` under a name; returns the values of all members, by rank."""

    def rank(self) -> int:
        """The number of this rank."""


@final
@dataclass(frozen=True)
class ReductionTerms:
    """Terms of a reduction: the operation, backward passes per step, and the ranks of the process set."""

    op: int
    passes: int
    members: tuple[int, ...]


@final
class Averaging:
    """State of one distributed optimizer on one rank: how many passes there were, and whether they are averaged."""

    def __init__(
        self, optimizer: OracleOptimizer, hvd: Meets, names: dict[int, str], label: str, terms: ReductionTerms
    ) -> None:
        self.optimizer, self.hvd, self.names, self.label, self.terms = optimizer, hvd, names, label, terms
        self.passes, self.reduced = 0, False
        self.steps = 0
        self.last: list[tuple[torch.Tensor, int]] = []  # gradients as the last reduction has left them, and versions
        hvd.optimizers.append(optimizer)

    def params(self) -> dict[str, torch.Tensor]:
        """The parameters by name."""
        every = [p for group in self.optimizer.param_groups for p in group["params"]]
        return {self.names.get(id(p), str(i)): p for i, p in enumerate(every)}

    def pass_ended(self) -> None:
        """Count a backward pass, and reduce if it is the last that a step takes."""
        self.passes += 1
        if self.passes >= self.terms.passes:
            self.reduce()

    def settle(self) -> None:
        """Average gradients that were not averaged since the last step."""
        if self.passes or not self.reduced:
            self.reduce()

    def reduce(self) -> None:
        """Replace the gradients by the averages over all ranks."""
        self.passes, self.reduced = 0, True
        if self.hvd.rank() not in self.terms.members:
            return
        params = self.params()
        mine = {name: wide(p.grad) for name, p in params.items() if p.grad is not None and self.is_due(p)}
        given = self.hvd.meet(f"optimizer {self.label}", mine, self.terms.members)
        for name, p in params.items():
            theirs = [each[name] for _, each in sorted(given.items()) if name in each]
            if theirs:
                total = torch.stack([dense for dense, _ in theirs]).sum(0)
                put(p, total / (len(self.terms.members) if self.terms.op == 0 else 1), any(s for _, s in theirs))
        self.last = [(p.grad, p.grad._version) for p in params.values() if p.grad is not None]

    def note_step(self) -> None:
        """Keep a digest of the parameters and gradients of the next step."""
        self.steps += 1
        found = [(name, p, p.grad) for name, p in sorted(self.params().items(), key=itemgetter(0))]
        if self.hvd.rank() in self.terms.members:
            digests = repr([(name, digest_of(p), digest_of(g)) for name, p, g in found])
            self.hvd.steps[f"{self.label} {self.steps}"] = digests.encode()

    def is_due(self, p: torch.Tensor) -> bool:
        """True if the gradient of ``p`` must be reduced; the gradient of a frozen parameter is not summed twice."""
        is_left = any(p.grad is g and g._version == version for g, version in self.last)
        return p.requires_grad or self.terms.op == 0 or not is_left

    def reduced_loss(self, loss: Any) -> Any:
        """The loss of a closure, averaged or summed over the ranks as the gradients are."""
        if self.hvd.rank() not in self.terms.members:
            return loss
        given = self.hvd.meet(f"loss {self.label}", torch.as_tensor(loss).detach().double(), self.terms.members)
        total = torch.stack(list(given.values())).sum() / (len(self.terms.members) if self.terms.op == 0 else 1)
        return total.to(torch.as_tensor(loss).dtype)


def wide(grad: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """A gradient as float64, and whether it was sparse."""
    return (grad.to_dense() if grad.is_sparse else grad).detach().double().clone(), grad.is_sparse


def put(p: torch.Tensor, mean: torch.Tensor, sparse: bool) -> None:
    """Make ``mean`` the gradient: in the present tensor, if that is dense."""
    if sparse:
        p.grad = mean.to(p.dtype).to_sparse(1)
    elif p.grad is None:
        p.grad = torch.empty_like(p).copy_(mean).detach()
    else:
        p.grad.data.copy_(mean)


class OracleOptimizer(torch.optim.Optimizer):
    """Base that precedes the class of a user's optimizer, and averages before its ``step``."""

    oracle: Averaging

    def step(self, closure: Any = None, **others: Any) -> Any:
        """See ``farandole.torch.DistributedOptimizer``, like the rest."""
        if closure is None:
            self.oracle.settle()
            self.oracle.note_step()
            loss = super().step(**others)
        else:
            loss = super().step(self._evaluated(closure), **others)
        self.oracle.reduced, self.oracle.passes = False, 0
        return loss

    step.hooked = True  # type: ignore[attr-defined] # as Optimizer asks of those that call its step

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """See ``step``."""
        super().zero_grad(*args, **kwargs)
        self.oracle.reduced = False

    def synchronize(self) -> None:
        """See ``step``."""
        self.oracle.settle()

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """See ``step``."""
        super().load_state_dict(*args, **kwargs)
        self.oracle.passes, self.oracle.reduced = 0, False

    def _evaluated(self, closure: Any) -> Any:
        def evaluate() -> Any:
            self.oracle.reduced = False
            loss = closure()
            self.oracle.settle()
            self.oracle.note_step()
            return self.oracle.reduced_loss(loss)

        return evaluate

    def __deepcopy__(self, memo: dict[int, Any]) -> OracleOptimizer:
        made: OracleOptimizer = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__dict__.update({k: copy.deepcopy(v, memo) for k, v in self.__dict__.items() if k != "oracle"})
        names = {id(memo[p]): name for p, name in self.oracle.names.items() if p in memo}
        made.oracle = Averaging(made, self.oracle.hvd, names, self.oracle.label + " copied", self.oracle.terms)
        return made


def distribute(optimizer: torch.optim.Optimizer, hvd: Meets, named: Any, terms: ReductionTerms) -> OracleOptimizer:
    """Make ``optimizer`` one of the oracle's; ranks match their optimizers by the names of the parameters."""
    every = [p for group in optimizer.param_groups for p in group["params"]]
    pairs = [(str(i), p) for i, p in enumerate(every)] if named is None else list(named)
    names = {id(p): name for name, p in pairs}
    hvd.parameters.extend(p for _, p in pairs)
    label = " ".join(sorted(names.values()))
    same = sum(each.oracle.label.rpartition(" ")[0] == label for each in hvd.optimizers)
    cls: Any = type(type(optimizer).__name__, (OracleOptimizer, type(optimizer)), {})
    made: OracleOptimizer = cls.__new__(cls)
    made.__dict__.update(optimizer.__dict__)
    made.__dict__.pop("step", None)
    made.oracle = Averaging(made, hvd, names, f"{label} {same}", terms)
    return made
