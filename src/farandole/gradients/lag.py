"""Reducing gradients while later steps compute: the gradients of a run are handed out ``lag`` runs later.

exchange = LaggedExchange(parameters, 1, lambda shadows: GradientExchange(lane, shadows, names, terms))
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
# A rank that leaves waits for the runs that it has begun, also for those that nobody here will want any more: the other
# ranks need it there, and are not all equally far.
#
# An error is kept until its run is wanted: so all ranks raise it at the same step, whenever their threads have come to
# it. Runs that follow have it, too, and reduce nothing: all ranks know of it, and one has raised it already, if it was
# that one's own.

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, final

from farandole.errors import UnsupportedError, UsageError
from farandole.gradients.background import BackgroundTask
from farandole.gradients.exchange import GradientExchange, Weigh, unweighted
from farandole.gradients.parameters import Parameters
from farandole.gradients.tensors import Gradients, Param, T
from farandole.runtime.collectives.divergence import StepDigests
from farandole.runtime.collectives.planned import PlannedLane
from farandole.runtime.session.init import finish_before_leaving


@final
class LaggedExchange(Generic[T]):
    """Stands for a ``GradientExchange`` of the same ``parameters``; ``make`` makes one of what stands for these.

    Runs are reduced one after the other, each on a thread of its own, whose error the run raises that wants its
    gradients. The first ``lag`` runs hand out zeros.
    """

    overlaps = False

    def __init__(
        self, parameters: Parameters[T], lag: int, make: Callable[[Parameters[T]], GradientExchange[T]]
    ) -> None:
        self._parameters, self._shadows = parameters, parameters.shadowed()
        self._exchange = make(self._shadows)
        self._lag = lag
        self._runs: deque[_Run[T]] = deque()
        self._lasting: dict[int, T] = {}  # what was handed out where some run has found it stale

    @property
    def params(self) -> Sequence[Param]:
        """See ``GradientExchange``."""
        return self._parameters.params

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
        parameters, present = self._parameters, self._parameters.present()
        taken = list(parameters.without_stale(present))
        stale = {i for i, (grad, here) in enumerate(zip(taken, present, strict=True)) if grad is not here}
        weight = weigh()
        previous = self._runs[-1].task if self._runs else None
        self._runs.append(_Run(_begin(lambda: self._reduce(step, taken, weight, snapshot), previous), stale))
        try:
            given = self._hand_out(present)
        except BaseException:  # Control-C, too: whoever goes on must find no run in the lane
            self.forget()
            raise
        parameters.put(given)
        parameters.note()
        pairs = [(i, given[i]) for run in self._runs for i in run.stale]
        # Clones: what is handed out is the script's, which may clip it in place.
        self._lasting = {i: parameters.tensors.clone(grad) for i, grad in pairs if grad is not None}

    def begin_pass(self, step: str, weigh: Weigh) -> None:
        """See ``GradientExchange``: nothing is reduced during the pass that makes it."""

    def refuse_failed_pass(self, step: str) -> None:
        """See ``GradientExchange``: nothing is reduced during a pass."""

    def holds_any(self) -> bool:
        """True if some gradient is what a run has handed out."""
        return self._parameters.holds_any()

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
        if difference := self._parameters.difference(self._shadows):
            self.refuse(step)
            raise UsageError(
                f"{difference} now, while gradients are on their way: make the DistributedOptimizer and its "
                "GradientLag after that, on every rank"
            )

    def _reduce(self, step: str, taken: Gradients[T], weight: float, snapshot: StepDigests | None) -> list[T | None]:
        shadows = self._shadows
        with shadows.tensors.untracked():  # of this thread: what the caller of ``run`` has set is not known here
            shadows.put(taken)
            self._exchange.run(step, lambda: weight, snapshot=snapshot)
            reduced = list(shadows.present())
            shadows.put([None] * len(reduced))  # the result is the script's alone, and its memory free with that
            return reduced

    def _hand_out(self, present: Gradients[T]) -> list[T | None]:
        """The gradients of ``lag`` runs ago; those that were stale there are still what they were before.

        In the beginning zeros for all parameters alike, or ranks with and without a gradient would step differently.
        """
        if len(self._runs) > self._lag:
            run = self._runs.popleft()
            pairs = enumerate(run.task.result())
            return [self._lasting.get(i) if grad is None and i in run.stale else grad for i, grad in pairs]
        return self._parameters.zeros(present)


class _Run(NamedTuple, Generic[T]):
    """One reduction on its way.

    It takes nothing of the parameters in ``stale``, which are frozen, and whose gradients an earlier run has left.
    """

    task: BackgroundTask[list[T | None]]
    stale: set[int]


def _begin(
    reduce: Callable[[], list[T | None]], previous: BackgroundTask[list[T | None]] | None
) -> BackgroundTask[list[T | None]]:
    """Reduce in the background, after the ``previous`` one."""

    def call() -> list[T | None]:
        if previous is not None:
            previous.result()  # its error is this one's, too: a rank that has raised it may never come to this run
        return reduce()

    task = BackgroundTask(call, "farandole-gradient-lag")
    finish_before_leaving(task.thread)  # the other ranks are in this reduction, or will come to it
    return task
