"""Training in virtual time: its progress for a number of workers, and the advice that it would get.

    training = SimulatedTraining(TrainingModel())
    training.train(3600.0, workers=4)
    training.share, training.advice(now_s, workers=4, most=16)

Step times follow ``largebatch.goodput``; a step of B samples makes as much progress as B (phi + m) / (phi + B) samples
in steps of m, with the current noise scale phi (McCandlish et al. 2018, equation 2.11).
"""

from __future__ import annotations

import math
import random
import sys
from bisect import bisect_right
from pathlib import Path
from typing import Literal, final

import msgspec

from farandole.errors import SettingsError, UsageError
from farandole.largebatch.advice import decide as decide_workers
from farandole.largebatch.advice import prospect
from farandole.largebatch.goodput import Prospect, StepModel, SyncTime
from farandole.largebatch.noise import Estimate
from farandole.launch.leases.observation import LeaseAdvice

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

STRIDE_S = 300.0
"""Longest time for which the noise scale is taken as constant."""


@final
class TrainingModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """Model of a training, read from the file ``--training``. Defaults: ResNet-50 on ImageNet, 90 epochs.

    ``samples``: needed in steps of ``base_batch``. A worker takes ``pass_s`` for its ``batch``; the all-reduce takes
    ``sync_s`` plus ``sync_slope_s`` for each worker beyond two, overlapped with the pass according to ``overlap``: the
    model of ``largebatch.goodput``. ``noise_scale``: points of its curve (share of the training, samples), interpolated
    by powers. Its estimates have the error ``noise_error`` (a standard deviation), one each ``advice_s``. A change of
    the workers pauses the others for ``pause_s``; a lease warms up for ``warmup_s``.
    """

    samples: float = 90 * 1_281_167.0
    base_batch: float = 256.0
    batch: float = 64.0
    pass_s: float = 0.08
    sync_s: float = 0.012
    sync_slope_s: float = 0.0004
    overlap: float = 2.0
    noise_scale: tuple[tuple[float, float], ...] = ((0.0, 900.0), (0.1, 3000.0), (0.5, 9000.0), (1.0, 24000.0))
    noise_error: float = 0.1
    advice_s: float = 120.0
    pause_s: float = 0.2
    warmup_s: float = 20.0

    def __post_init__(self) -> None:
        shares = [share for share, _ in self.noise_scale]
        if not shares or shares != sorted(set(shares)) or min(scale for _, scale in self.noise_scale) <= 0:
            raise SettingsError("noise-scale: write points with growing shares, as in [[0.0, 900], [1.0, 24000]]")
        if min(self.samples, self.base_batch, self.batch, self.pass_s, self.advice_s) <= 0 or self.overlap < 1:
            raise SettingsError(
                "samples, base-batch, batch, pass-s and advice-s must be above 0, and overlap 1 or more"
            )

    @classmethod
    def read(cls, path: Path) -> TrainingModel:
        """Read the model from a TOML file."""
        try:
            return msgspec.convert(tomllib.loads(path.read_text()), cls)
        except OSError as error:
            raise UsageError(f"the training {path} cannot be read: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
            keys = ", ".join(cls.__struct_encode_fields__)
            raise SettingsError(f"the training {path}: {error}; the keys are: {keys}") from error

    def phi(self, share: float) -> float:
        """The noise scale after this share of the training."""
        points = self.noise_scale
        at = bisect_right([point for point, _ in points], share)
        if at in (0, len(points)):
            return points[min(at, len(points) - 1)][1]
        (left, low), (right, high) = points[at - 1], points[at]
        return math.exp(math.log(low) + (math.log(high) - math.log(low)) * (share - left) / (right - left))


@final
class SimulatedTraining:
    """State of a training; ``share`` of it is done. With ``batch="fixed"`` all workers share ``base_batch``."""

    def __init__(self, model: TrainingModel, batch: Literal["fixed", "grow"] = "grow", seed: int = 1) -> None:
        self.model = model
        self.done = 0.0
        self._batch = batch
        self._random = random.Random(seed)  # noqa: S311 - chance that can be repeated
        self._models: dict[int, StepModel] = {}

    @property
    def share(self) -> float:
        """Share of the training that is done."""
        return self.done / self.model.samples

    @property
    def is_over(self) -> bool:
        """Whether the training is complete."""
        return self.done >= self.model.samples * (1 - 1e-9)

    def steps(self, workers: int) -> StepModel:
        """Step times on ``workers``."""
        if workers not in self._models:
            m = self.model
            each = m.batch if self._batch == "grow" else m.base_batch / workers
            sync = SyncTime(m.sync_s, m.sync_slope_s, (1, 1 << 20))
            pass_s = m.pass_s * each / m.batch
            self._models[workers] = StepModel(pass_s, each, 1, m.overlap, None, sync, 1)
        return self._models[workers]

    def per_s(self, workers: int) -> float:
        """Progress per second, in equivalent samples of steps of ``base_batch``."""
        if not workers:
            return 0.0
        steps, phi = self.steps(workers), self.model.phi(self.share)
        return steps.samples_per_s(workers) * (phi + self.model.base_batch) / (phi + steps.global_batch(workers))

    def train(self, seconds: float, workers: int) -> float:
        """Train for ``seconds``, or until the training is complete; return the time used."""
        left_s = seconds
        while left_s > 0 and workers and not self.is_over:
            per_s = self.per_s(workers)
            stride_s = min(left_s, STRIDE_S, (self.model.samples - self.done) / per_s)
            self.done += stride_s * per_s
            left_s -= stride_s
        return seconds - (left_s if workers else 0.0)

    def remaining_s(self, workers: int) -> float:
        """Time until the end at the current noise scale; 0 without workers."""
        return (self.model.samples - self.done) / self.per_s(workers) if workers else 0.0

    def alone_s(self, workers: int) -> float:
        """Time of the whole training on ``workers``."""
        fresh = SimulatedTraining(self.model, self._batch)
        return sum(iter(lambda: fresh.train(STRIDE_S * 12, workers), 0.0))

    def advice(self, now_s: float, workers: int, most: int) -> LeaseAdvice:
        """Advice for the rest of the training, from an estimate of the noise scale with a random error."""
        m = self.model
        phi = m.phi(self.share) * math.exp(self._random.gauss(0.0, m.noise_error))
        apart = math.exp(2 * m.noise_error)
        estimate = Estimate(phi, 1.0, phi / apart, phi * apart, int(self.done))
        left = m.samples - self.done
        found = [prospect(self.steps(n), estimate, n, left, m.base_batch) for n in range(1, most + 1)]
        # With a fixed batch the noise scale sets no bound: more workers change only the time.
        critical = estimate.low if self._batch == "grow" else math.inf
        best, _ = decide_workers(found, critical, max(workers, 1))
        saves_s = _seconds(found, workers) - found[best - 1].seconds
        return LeaseAdvice(now_s, best, estimate.low, estimate.high, saves_s)


def _seconds(prospects: list[Prospect], workers: int) -> float:
    return prospects[min(max(workers, 1), len(prospects)) - 1].seconds
