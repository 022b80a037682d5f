"""Gradient noise scale of a training, from values that the gradient reduction computes anyway.

Every few steps, each rank computes the squared norm of its gradient after the backward pass, before reduction,
compression and clipping. The norm is reduced with the gradients as one more number. Each rank can compute the norm of
the reduced gradient itself. So all ranks have the same estimate.
"""

from __future__ import annotations

import math
import weakref
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from farandole.collective import ReduceOp
from farandole.errors import UsageError
from farandole.gradients.observers import Observer, Passing
from farandole.gradients.step_reducer import GradientReducer
from farandole.gradients.tensors import Param
from farandole.largebatch.advice import Advised, advise
from farandole.largebatch.goodput import Timing
from farandole.largebatch.noise import Estimate, Estimated, NoEstimate, NoiseEstimator, NormPair
from farandole.largebatch.scaling import gain
from farandole.largebatch.stopwatch import Stopwatch
from farandole.runtime.session.init import current
from farandole.runtime.session.training import training

SHARE = 0.0025
"""Mean cost of reading norms, as a share of the step time, if ``every`` is chosen automatically."""
FIRST_EVERY, MOST_EVERY = 16, 1024


class GradientNoise(Observer):
    """Observer of a reducer that estimates S, |G|^2 and B_simple; a framework's subclass computes the norms.

    For the arguments see a framework's ``NoiseScale``. Raises ``UsageError`` for gradients that are neither averaged
    nor summed.
    """

    lone_needs: ClassVar[str] = "backward_passes_per_step=2 or more"
    """Setting that gives a single rank two batches to compare."""

    def __init__(
        self,
        reducer: GradientReducer[Any],
        every: int | None,
        horizon_samples: float | None,
        dataset_size: int | None,
        summed_passes: bool,
    ) -> None:
        self._op = reducer.op
        if self._op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
            raise UsageError(f"NoiseScale needs the mean of the ranks' gradients: op={self._op.label} does not give it")
        if every is not None and every < 1:
            raise UsageError(f"every={every}: it must be at least 1")
        self.every = every or FIRST_EVERY
        self._adapts = every is None
        self._reducer = weakref.ref(reducer)  # weak: the reducer owns its observer
        self._summed_passes = summed_passes
        self._plain, self._adam = (NoiseEstimator(horizon_samples, dataset_size) for _ in range(2))
        self._trouble = ""
        self._stopwatch = Stopwatch()
        self._seen: list[tuple[int, float]] = []
        self._since = 0
        self._passing = Passing(0, 1, 1, alone=True)
        self._departed = False
        self._small: tuple[float, float] | None = None
        reducer.carry(self)

    @abstractmethod
    def _norms2(self, params: Sequence[Param]) -> tuple[float, float]:
        """Squared norms of the gradients, and of the gradients as Adam scales them (0 if unknown)."""

    # -- public methods -----------------------------------------------------------------------------------------------

    def saw(self, samples: int, weight: float = 1.0) -> None:
        """Report a batch before its backward pass: this rank's loss is ``weight`` times the mean over ``samples``."""
        if samples < 1 or not weight > 0:
            raise UsageError(f"saw({samples}, weight={weight}): both must be above 0")
        self._seen.append((samples, weight))

    def estimate(self) -> Estimated:
        """Estimate S, |G|^2 and B_simple. If they are unknown, return a ``NoEstimate`` with the reason."""
        return self._reported(self._plain)

    def adam_estimate(self) -> Estimated:
        """Like ``estimate``, of gradients divided by sqrt(v) + eps, the step direction of Adam and similar."""
        if self._plain.estimate() and not self._adam.samples:
            return NoEstimate("the optimizer keeps no second moment of its gradients")
        return self._reported(self._adam)

    def gain(self, base_batch: int, batch: int) -> float:
        """AdaScale's gain of steps of ``batch`` samples over steps of ``base_batch``; 1 while no estimate exists."""
        found = self._plain.estimate()
        return gain(found.trace, found.norm2, base_batch, batch) if isinstance(found, Estimate) else 1.0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Skip the steps inside: no measurement, no timing, no samples counted. All ranks must pause alike.

        >>> with noise.paused():
        ...     step_on_synthetic_data()
        """
        reducer = self._reducer()
        if reducer is None:
            raise UsageError("paused(): the optimizer of this NoiseScale does not exist any more; keep it")
        reducer.drop()
        try:
            yield
        finally:
            self._seen.clear()
            self._stopwatch.pause()
            reducer.carry(self)

    def timings(self) -> list[Timing]:
        """Step times, one for each number of workers and batch measured so far; the current one is last."""
        return self._stopwatch.timings()

    def cost_s(self) -> float:
        """Seconds that the measurement takes on this rank, per measured step."""
        return self._stopwatch.read()[3]

    def advise(
        self,
        samples: float,
        base_batch: float | None = None,
        max_workers: int | None = None,
        workers_per_host: int = 0,
        adam: bool = False,
    ) -> Advised:
        """Best number of workers and the reason, or what is missing for an answer. See ``farandole.largebatch.advise``.

        ``base_batch``: by default the current batch. ``adam``: use ``adam_estimate()``.
        """
        found, timings = self.adam_estimate() if adam else self.estimate(), self.timings()
        if base_batch is None:
            base_batch = timings[-1].batch * timings[-1].workers * timings[-1].passes if timings else 1.0
        return advise(
            found,
            timings,
            samples=samples,
            base_batch=base_batch,
            max_workers=max_workers,
            workers_per_host=workers_per_host,
        )

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers, the same on all ranks: for a checkpoint, and for ranks that join later."""
        estimators = {"plain": self._plain.state(), "adam": self._adam.state()}
        return {**estimators, "every": self.every, "timings": self._stopwatch.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict()``, on any number of ranks."""
        self._plain.load(state["plain"])
        self._adam.load(state["adam"])
        self.every = state["every"]
        self._stopwatch.load(state["timings"])

    # -- methods of ``Observer`` --------------------------------------------------------------------------------------

    def begins(self, passing: Passing) -> bool:
        """See ``Observer``."""
        if passing.number == 1:
            self._small, self._departed = None, False
            del self._seen[:-1]  # left from a failed pass
        self._passing = passing
        first_of_many = passing.number == 1 and not passing.last
        return passing.step % self.every == 0 and (first_of_many if passing.alone else passing.last)

    def read(self, params: Sequence[Param]) -> None:
        """See ``Observer``."""
        with self._stopwatch.cost():
            plain, adam = self._small or (0.0, 0.0)
            norm2, adam_norm2 = self._norms2(params)
            self._small = plain + norm2, adam + adam_norm2

    def ended(self) -> None:
        """See ``Observer``."""
        self._stopwatch.waits()

    def departs(self, weight: float) -> list[float] | None:
        """See ``Observer``."""
        if self._small is None or not self._seen:
            return None
        self._departed = True
        (*_, (_, factor)), passes = self._seen, len(self._seen)
        inverse_batch = sum(1.0 / samples for samples, _ in self._seen) / passes**2
        unit = (factor * (passes if self._summed_passes else 1)) ** 2
        plain, adam = (norm2 / unit for norm2 in self._small)
        counts = weight * factor
        norms = [counts * plain, counts * adam, counts * inverse_batch, counts**2 * inverse_batch]
        with self._stopwatch.cost():
            times = self._stopwatch.read()
        return [*norms, 1.0, self._batch(), self._since + self._batch(), *times]

    def returns(self, sums: list[float] | None, params: Sequence[Param]) -> None:
        """See ``Observer``."""
        if not self._seen:
            self._trouble = "it does not know how many samples there were: call noise.saw(len(x)) before backward()"
        elif self._passing.alone:
            self._alone(params)
        elif sums is not None:
            self._together(sums, params)
        else:
            self._since += self._batch()
            if self._departed:
                self._trouble = (
                    "not all ranks measure: make a NoiseScale on all, and call saw() before every backward()"
                )
        ranks = 1 if self._passing.alone else current("NoiseScale").topology.size
        self._stopwatch.stepped(ranks, max(1, len(self._seen)), self._batch())
        self._seen, self._small = [], None

    def _batch(self) -> int:
        """Samples of this rank in this step."""
        return sum(samples for samples, _ in self._seen)

    def _together(self, sums: list[float], params: Sequence[Param]) -> None:
        """The ranks' gradients are the small batches, and the reduced ones the large batch."""
        plain, adam, inverse, inverse2, ranks, batch, since, *times = sums
        with self._stopwatch.cost():
            large = self._norms2(params)
        unit = (ranks if self._op is ReduceOp.SUM else 1.0) * (len(self._seen) if self._summed_passes else 1.0)
        pairs = [
            NormPair(small / ranks, inverse / ranks, norm2 / unit**2, inverse2 / ranks**2)
            for small, norm2 in zip((plain, adam), large, strict=True)
        ]
        self._since = 0
        self._add(pairs, round(since), round(batch))
        hosts = len(set(current("NoiseScale").topology.hosts))
        self._timed(round(ranks), hosts, *(each / ranks for each in times))

    def _alone(self, params: Sequence[Param]) -> None:
        """The first pass is the small batch, and all of them together the large one."""
        passes = len(self._seen)
        if passes == 1:
            self._trouble = f"one rank alone has nothing to compare with: it needs {self.lone_needs}"
        if self._passing.step % self.every == 0:
            self._timed(1, 1, *self._stopwatch.read())
        if self._small is None:
            for estimator in (self._plain, self._adam):
                estimator.seen(self._batch())
            return
        with self._stopwatch.cost():
            large = self._norms2(params)
        inverse_batch = sum(1.0 / samples for samples, _ in self._seen) / passes**2
        of_small, of_large = (1.0, 1.0 / passes**2) if self._summed_passes else (float(passes**2), 1.0)
        pairs = [
            NormPair(small * of_small, 1.0 / self._seen[0][0], norm2 * of_large, inverse_batch)
            for small, norm2 in zip(self._small, large, strict=True)
        ]
        self._add(pairs, self._batch(), self._batch())

    def _add(self, pairs: Sequence[NormPair], since: int, batch: int) -> None:
        """Record the measurement of a step of ``batch`` samples; ``since`` samples passed since the last one."""
        self._trouble = ""
        for estimator, pair in zip((self._plain, self._adam), pairs, strict=True):
            if pair.small or pair.large:
                estimator.seen(since - batch)
                estimator.add(pair, batch)
        if training.is_heard:
            self._log_estimate()

    def _log_estimate(self) -> None:
        """Send the estimate to the live view. Only rank 0 sends, because all ranks have the same estimate."""
        found, rank = self._plain.estimate(), current("NoiseScale").topology.rank
        if isinstance(found, Estimate) and rank == 0:
            shown = {"noise_scale": found.b_simple, "noise_scale_low": found.low, "noise_scale_high": found.high}
            training.log(None, None, {name: value for name, value in shown.items() if math.isfinite(value)}, rank)

    def _timed(self, ranks: int, hosts: int, seconds: float, waited: float, samples: float, cost: float) -> None:
        """Keep the step time, and adapt ``every`` to the cost. All ranks choose alike, because their numbers agree."""
        passes = len(self._seen)
        if math.isfinite(seconds):
            self._stopwatch.keep(Timing(ranks, hosts, samples / passes, passes, seconds, max(seconds - waited, 1e-9)))
        if self._adapts and math.isfinite(seconds + cost):
            wanted = math.ceil(math.log2(max(1.0, cost / (SHARE * seconds))))
            self.every = min(MOST_EVERY, 2**wanted)  # powers of two: even ranks that differ share some steps

    def _reported(self, estimator: NoiseEstimator) -> Estimated:
        found = estimator.estimate()
        return NoEstimate(self._trouble) if self._trouble and not found else found
