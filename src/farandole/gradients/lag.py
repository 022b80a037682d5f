"""Gradient lag: gradients are reduced while later steps compute, and a run returns the gradients of ``lag`` runs ago.

exchange = LaggedExchange(parameters, 1, lambda shadows: GradientExchange(lane, shadows, names, terms))
exchange.reduce_gradients("step 7")  # takes the gradients of step 7 away, and puts those of step 6 there, reduced
"""

# Threads. The script's thread (on which backward passes end) appends runs and takes their results. Each run has its own
# thread, which alone uses the inner exchange, its lane and the gradients of the shadows. The thread first waits for the
# thread of the previous run, so runs are sequential, in an order that all ranks share. No lock is needed: a run gets
# its gradients, its weight and its snapshot before its thread starts, and results are read after the thread was
# joined. The script's thread uses the inner exchange only after ``forget``, when no run is pending.
#
# Shadows share the memory of the weights but have their own ``grad``. So the script can compute the next gradients
# while the exchange uses ``grad`` of the shadows just as without a lag.
#
# A rank that leaves waits for all runs that it has begun, even if their results are not used: the other ranks need its
# part, and the ranks are not all at the same step.
#
# An error is kept until the result of its run is due. So all ranks raise it at the same step, independent of thread
# timing. Later runs fail with the same error and reduce nothing: every rank gets the error, and the rank that caused it
# may have raised it already.

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
    """Stand-in for a ``GradientExchange`` of ``parameters``; ``make`` makes the inner exchange of their shadows.

    Runs are reduced one after the other, each on its own thread. The run that takes the gradients of an earlier run
    raises that run's error. The first ``lag`` runs return zeros.
    """

    overlaps = False

    def __init__(
        self, parameters: Parameters[T], lag: int, make: Callable[[Parameters[T]], GradientExchange[T]]
    ) -> None:
        self._parameters, self._shadows = parameters, parameters.shadowed()
        self._exchange = make(self._shadows)
        self._lag = lag
        self._runs: deque[_Run[T]] = deque()
        self._lasting: dict[int, T] = {}  # last returned gradients of parameters that a pending run found stale

    @property
    def params(self) -> Sequence[Param]:
        """See ``GradientExchange``."""
        return self._parameters.params

    @property
    def lane(self) -> PlannedLane:
        """Lane of the runs; for no other use."""
        return self._exchange.lane

    def reduce_gradients(
        self, step: str, weigh: Weigh = unweighted, observer: object = None, snapshot: StepDigests | None = None
    ) -> None:
        """Begin to reduce the gradients of ``step``, and replace them by the reduced gradients of ``lag`` runs ago."""
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
        except BaseException:  # Control-C, too: the next call must find no run in the lane
            self.forget()
            raise
        parameters.put(given)
        parameters.note()
        pairs = [(i, given[i]) for run in self._runs for i in run.stale]
        # Clones, because the script may clip the returned gradients in place.
        self._lasting = {i: parameters.tensors.clone(grad) for i, grad in pairs if grad is not None}

    def begin_pass(self, step: str, weigh: Weigh) -> None:
        """See ``GradientExchange``: a lagged exchange reduces nothing during a pass."""

    def refuse_failed_pass(self, step: str) -> None:
        """See ``GradientExchange``: no pass can be half reduced here."""

    def holds_any(self) -> bool:
        """True if some gradient is still the result of an earlier run."""
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
        """Wait for pending runs and drop their results and errors; a lasting error shows again at the next run."""
        while self._runs:
            self._runs.popleft().task.wait()

    def _require_likeness(self, step: str) -> None:
        """Raise on every member if a parameter changed its shape, dtype or device here since the lag began."""
        if difference := self._parameters.difference(self._shadows):
            self.refuse(step)
            raise UsageError(
                f"{difference} now, while gradients are on their way: make the DistributedOptimizer and its "
                "GradientLag after that, on every rank"
            )

    def _reduce(self, step: str, taken: Gradients[T], weight: float, snapshot: StepDigests | None) -> list[T | None]:
        shadows = self._shadows
        with shadows.tensors.untracked():  # per thread: the caller's mode does not apply here
            shadows.put(taken)
            self._exchange.reduce_gradients(step, lambda: weight, snapshot=snapshot)
            reduced = list(shadows.present())
            shadows.put([None] * len(reduced))  # then only the script refers to the result, and can free it
            return reduced

    def _hand_out(self, present: Gradients[T]) -> list[T | None]:
        """Gradients of ``lag`` runs ago; a gradient that was stale in that run keeps its previous value.

        The first runs return zeros for all parameters; otherwise ranks with and without a gradient would step unlike.
        """
        if len(self._runs) > self._lag:
            run = self._runs.popleft()
            pairs = enumerate(run.task.result())
            return [self._lasting.get(i) if grad is None and i in run.stale else grad for i, grad in pairs]
        return self._parameters.zeros(present)


class _Run(NamedTuple, Generic[T]):
    """One pending reduction.

    It skips the parameters in ``stale``: these are frozen, and their gradients are the result of an earlier run.
    """

    task: BackgroundTask[list[T | None]]
    stale: set[int]


def _begin(
    reduce: Callable[[], list[T | None]], previous: BackgroundTask[list[T | None]] | None
) -> BackgroundTask[list[T | None]]:
    """Start ``reduce`` in the background, after the ``previous`` run."""

    def call() -> list[T | None]:
        if previous is not None:
            previous.result()  # raises its error here, too: a rank that has raised it may never begin this run
        return reduce()

    task = BackgroundTask(call, "farandole-gradient-lag")
    finish_before_leaving(task.thread)  # the other ranks need this rank in the reduction
    return task
