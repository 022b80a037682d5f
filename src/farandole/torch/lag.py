"""Reducing gradients while later steps compute: the gradients of a run are handed out ``lag`` runs later.

exchange = LaggedExchange(params, 1, lambda shadows: GradientExchange(lane, shadows, names, terms))
exchange.run("step 7")          # takes the gradients of step 7 away, and puts those of step 6 there, reduced
"""

# Threads. The script's (on which backward passes end) appends runs and takes their results. Each run has a thread,
# which alone uses the inner exchange, its lane and the gradients of the shadows; it begins by waiting for the thread of
# the run before, so runs are one after the other, in an order that all ranks share. What is handed over needs no lock:
# a run gets its gradients, its weight and its snapshot before its thread starts, and results are read
# after the thread was joined. The script uses the inner exchange only after ``forget``, when there is no run.
#
# Shadows share the memory of the weights and not their ``grad``: so the script is free to compute the next gradients,
# and the exchange can do with ``grad`` what it does without a lag.
#
# An error is kept until its run is wanted, and runs that follow begin nevertheless: so all ranks raise it at the same
# step, whenever their threads have come to it.

from __future__ import annotations

import atexit
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple, TypeAlias, final

import torch

from farandole.errors import UnsupportedError, UsageError
from farandole.gradients.background import BackgroundTask
from farandole.runtime.collectives.divergence import StepDigests
from farandole.runtime.collectives.planned import PlannedLane
from farandole.torch.gradients import GradientExchange, Weigh, unweighted
from farandole.torch.targets import HandedOut

Gradients: TypeAlias = list[torch.Tensor | None]

LAST_WAIT_S = 10.0
"""How long a script that has ended waits for gradients on their way: all ranks have sent them off, if none failed."""

_on_their_way: weakref.WeakSet[BackgroundTask[Gradients]] = weakref.WeakSet()


@cache
def _end_before_the_interpreter() -> None:
    """A thread that comes back from a collective when the interpreter is gone would abort the process."""

    def finish() -> None:
        for task in list(_on_their_way):
            task.wait(LAST_WAIT_S)

    # Threads that are not daemons would be waited for before this, without a limit, also where other ranks are gone.
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
        self._given = HandedOut()
        self._lasting: dict[int, torch.Tensor] = {}  # what was handed out where some run has found it stale

    @property
    def lane(self) -> PlannedLane:
        """Lane of the runs; nobody else may use it."""
        return self._exchange.lane

    def run(
        self, step: str, weigh: Weigh = unweighted, observer: object = None, snapshot: StepDigests | None = None
    ) -> None:
        """Begin to reduce the gradients of ``step``, and replace them by the reduced ones of ``lag`` runs ago."""
        if observer is not None:
            raise UnsupportedError(
                "NoiseScale compares gradients before and after their reduction: not with GradientLag"
            )
        self._require_likeness(step)
        present: Gradients = [param.grad for param in self.params]
        taken = list(self._given.without_stale(self.params, present))
        stale = {i for i, (grad, here) in enumerate(zip(taken, present, strict=True)) if grad is not here}
        weight = weigh()
        previous = self._runs[-1].task if self._runs else None
        self._runs.append(_Run(_begin(lambda: self._reduce(step, taken, weight, snapshot), previous), stale))
        try:
            given = self._hand_out(present)
        except BaseException:  # Control-C, too: whoever goes on must find no run in the lane
            self.forget()
            raise
        for param, grad in zip(self.params, given, strict=True):
            param.grad = grad
        self._given.note(self.params)
        pairs = [(i, given[i]) for run in self._runs for i in run.stale]
        # Clones: what is handed out is the script's, which may clip it in place.
        self._lasting = {i: grad.clone() for i, grad in pairs if grad is not None}

    def begin_pass(self, step: str, weigh: Weigh) -> None:
        """See ``GradientExchange``: nothing is reduced during the pass that makes it."""

    def refuse_failed_pass(self, step: str) -> None:
        """See ``GradientExchange``: nothing is reduced during a pass."""

    def holds_any(self) -> bool:
        """True if some gradient is what a run has handed out."""
        return self._given.any_of(self.params)

    def refuse(self, step: str) -> None:
        """See ``GradientExchange``."""
        self.forget()
        self._exchange.refuse(step)

    def serve(self) -> int:
        """See ``GradientExchange``; afterwards the lag begins with zeros on every rank."""
        self.forget()
        return self._exchange.serve()

    def forget(self) -> None:
        """Wait for what is on its way, and drop it; what went wrong there shows at the next run, if it still is."""
        while self._runs:
            self._runs.popleft().task.wait()

    def _require_likeness(self, step: str) -> None:
        """Raise on every member if a parameter has become another one here than when the lag began."""
        for param, shadow in zip(self.params, self._shadows, strict=True):
            if param.shape != shadow.shape or param.dtype is not shadow.dtype or param.device != shadow.device:
                self.refuse(step)
                raise UsageError(
                    f"a parameter of {tuple(shadow.shape)} and {shadow.dtype} on {shadow.device} is one of "
                    f"{tuple(param.shape)} and {param.dtype} on {param.device} now, while gradients are on their way: "
                    "make the DistributedOptimizer and its GradientLag after that, on every rank"
                )

    def _reduce(self, step: str, taken: Gradients, weight: float, snapshot: StepDigests | None) -> Gradients:
        with torch.no_grad():  # of this thread: what the caller of ``run`` has set is not known here
            for shadow, grad in zip(self._shadows, taken, strict=True):
                shadow.grad = grad
            self._exchange.run(step, lambda: weight, snapshot=snapshot)
            reduced = [shadow.grad for shadow in self._shadows]
            for shadow in self._shadows:
                shadow.grad = None  # the result is the script's alone, and its memory free when that drops it
            return reduced

    def _hand_out(self, present: Gradients) -> Gradients:
        """The gradients of ``lag`` runs ago; those that were stale there are still what they were before.

        In the beginning zeros for all parameters alike, or ranks with and without a gradient would step differently.
        """
        if len(self._runs) > self._lag:
            run = self._runs.popleft()
            pairs = enumerate(run.task.result())
            return [self._lasting.get(i) if grad is None and i in run.stale else grad for i, grad in pairs]
        likes = (param if grad is None else grad for param, grad in zip(self.params, present, strict=True))
        return list(map(torch.zeros_like, likes))


class _Run(NamedTuple):
    """One reduction on its way.

    It takes nothing of the parameters in ``stale``, which are frozen, and whose gradients an earlier run has left.
    """

    task: BackgroundTask[Gradients]
    stale: set[int]


def _begin(reduce: Callable[[], Gradients], previous: BackgroundTask[Gradients] | None) -> BackgroundTask[Gradients]:
    """Reduce in the background, after the ``previous`` one."""

    def call() -> Gradients:
        if previous is not None:
            previous.wait()  # and not ``result``, whose error is that of another step
        return reduce()

    _end_before_the_interpreter()
    task = BackgroundTask(call, "farandole-gradient-lag")
    _on_their_way.add(task)
    return task
