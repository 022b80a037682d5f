"""Reducing gradients while later steps compute: the gradients of a run are handed out ``lag`` runs later.

exchange = LaggedExchange(params, 1, lambda shadows: GradientExchange(lane, shadows, names, terms))
exchange.run("step 7")          # takes the gradients of step 7 away, and puts those of step 6 there, reduced
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeAlias, final

import torch

from farandole.errors import UnsupportedError
from farandole.runtime.collectives.planned import PlannedLane
from farandole.torch.gradients import GradientExchange, Weigh, unweighted

Gradients: TypeAlias = list[torch.Tensor | None]

LAST_WAIT_S = 10.0
"""How long a script that has ended waits for gradients on their way: all ranks have sent them off, if none failed."""

_on_their_way: weakref.WeakSet[_Run] = weakref.WeakSet()


@cache
def _end_before_the_interpreter() -> None:
    """A thread that comes back from a collective when the interpreter is gone would abort the process."""

    def finish() -> None:
        for run in list(_on_their_way):
            run.wait(LAST_WAIT_S)

    atexit.register(finish)  # after init() has registered that this process leaves the job, so it comes first


@final
class LaggedExchange:
    """Stands for a ``GradientExchange`` of the same ``params``; ``make`` makes one of tensors that stand for these.

    Runs are reduced one after the other, each on a thread of its own, whose error the run raises that wants its
    gradients. The first ``lag`` runs hand out zeros.
    """

    overlaps = False

    def __init__(
        self, params: Sequence[torch.Tensor], lag: int, make: Callable[[list[torch.Tensor]], GradientExchange]
    ) -> None:
        self.params = list(params)
        self._shadows = [param.detach() for param in params]  # the same weights, with gradients of their own
        self._exchange = make(self._shadows)
        self._lag = lag
        self._runs: deque[_Run] = deque()
        self._given: list[weakref.ref[torch.Tensor]] = []

    @property
    def lane(self) -> PlannedLane:
        """What the runs use; nobody else may."""
        return self._exchange.lane

    def run(self, step: str, weigh: Weigh = unweighted, rider: object = None) -> None:
        """Begin to reduce the gradients of ``step``, and replace them by the reduced ones of ``lag`` runs ago."""
        if rider is not None:
            raise UnsupportedError(
                "NoiseScale compares gradients before and after their reduction: not with GradientLag"
            )
        taken: Gradients = [param.grad for param in self.params]
        weight = weigh()
        self._runs.append(_Run(lambda: self._reduce(step, taken, weight), self._runs[-1] if self._runs else None))
        try:
            given = self._runs.popleft().finish() if len(self._runs) > self._lag else self._zeros(taken)
        except BaseException:
            self.forget()
            raise
        for param, grad in zip(self.params, given, strict=True):
            param.grad = grad
        self._given = [weakref.ref(grad) for grad in given if grad is not None]

    def begin_pass(self, step: str, weigh: Weigh) -> None:
        """See ``GradientExchange``: nothing is reduced during the pass that makes it."""

    def holds_any(self) -> bool:
        """True if some gradient is what a run has handed out."""
        given = {id(grad) for reference in self._given if (grad := reference()) is not None}
        return any(id(param.grad) in given for param in self.params)

    def refuse(self, step: str) -> None:
        """See ``GradientExchange``."""
        self.forget()
        self._exchange.refuse(step)

    def serve(self) -> None:
        """See ``GradientExchange``; afterwards the lag begins with zeros on every rank."""
        self.forget()
        self._exchange.serve()

    def forget(self) -> None:
        """Wait for what is on its way, and drop it; what went wrong there shows at the next run, if it still is."""
        while self._runs:
            self._runs.popleft().wait()

    def _reduce(self, step: str, taken: Gradients, weight: float) -> Gradients:
        with torch.no_grad():
            for shadow, grad in zip(self._shadows, taken, strict=True):
                shadow.grad = grad
            self._exchange.run(step, lambda: weight)
            return [self._own(shadow, grad) for shadow, grad in zip(self._shadows, taken, strict=True)]

    def _own(self, shadow: torch.Tensor, taken: torch.Tensor | None) -> torch.Tensor | None:
        """The reduced gradient in memory that the next run leaves alone."""
        grad, shadow.grad = shadow.grad, None
        return grad if grad is None or grad is taken else grad.clone()

    def _zeros(self, taken: Gradients) -> Gradients:
        """For all parameters alike, or ranks with and without a gradient would step differently."""
        pairs = zip(self.params, taken, strict=True)
        return [torch.zeros_like(param if grad is None else grad) for param, grad in pairs]


@final
class _Run:
    """One reduction on a thread of its own, after the ``previous`` one."""

    def __init__(self, reduce: Callable[[], Gradients], previous: _Run | None) -> None:
        self._reduced: Gradients = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._work, args=(reduce, previous), name="farandole-gradient-lag", daemon=True
        )
        _end_before_the_interpreter()
        _on_their_way.add(self)
        self._thread.start()

    def wait(self, limit_s: float | None = None) -> None:
        """Until it is over, well or not."""
        self._thread.join(limit_s)

    def finish(self) -> Gradients:
        """What it has reduced; raises what went wrong."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._reduced

    def _work(self, reduce: Callable[[], Gradients], previous: _Run | None) -> None:
        try:
            if previous is not None:
                previous.wait()
            self._reduced = reduce()
        except BaseException as error:
            self._error = error
