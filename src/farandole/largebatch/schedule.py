"""The learning rate and the batch as functions of the samples seen.

    schedule = Schedule(base_lr=0.2, base_batch=512, global_batch=8192, epochs=90, warmup_epochs=5, decay=Polynomial())
    position = schedule.begin(epoch_samples=1_281_167)
    schedule.rate(position)                         # 0.2; 3.2 times the decay when five epochs have passed
    position = schedule.advance(position, samples=8192)
    position = schedule.resize(position, 4096)      # half of the workers left: the rate follows, gradually

A ``Schedule`` has the decisions and a ``Position`` the progress; neither changes, both are plain numbers, and the rate
depends on them alone. So all ranks have the same rate, and a job that goes on with other workers has the rate that it
would have had. A new rate or batch is reached over a ramp: the warm-up is the first ramp, and every resize begins
another ramp at the current rate.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, final

from farandole.errors import UsageError
from farandole.largebatch.decays import Constant, Decay
from farandole.largebatch.picture import Curves, draw_curves
from farandole.largebatch.scaling import Rule, rule_named

_STEPS = 1000
"""Number of steps in a picture."""

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure


@final
@dataclass(frozen=True)
class Ramp:
    """A straight line from one value to another between two epochs, and the values themselves before and after."""

    begin: float
    end: float
    start: float
    target: float

    def at(self, epoch: float) -> float:
        """The value after ``epoch`` epochs."""
        if epoch >= self.end:
            return self.target
        done = max(0.0, epoch - self.begin) / (self.end - self.begin)
        return self.start + (self.target - self.start) * done

    def turned(self, epoch: float, target: float, length: float) -> Ramp:
        """A ramp from here to another target, over ``length`` epochs, or over the rest of this ramp if longer."""
        return Ramp(epoch, max(self.end, epoch + length), self.at(epoch), target)


@final
@dataclass(frozen=True)
class Position:
    """Progress of a training. ``progress`` equals ``samples``, unless steps are weighted by their gain (AdaScale)."""

    epoch_samples: int
    global_batch: int
    """The target; while the batch warms up, ``Schedule.batch`` is smaller."""
    scale: Ramp
    batch: Ramp
    samples: int = 0
    progress: float = 0.0
    gain: float = 1.0
    steps: int = 0

    @property
    def epoch(self) -> float:
        """Number of passes over the data so far."""
        return self.samples / self.epoch_samples

    def state(self) -> dict[str, Any]:
        """Plain numbers, for a checkpoint."""
        return asdict(self)

    @classmethod
    def of(cls, state: dict[str, Any]) -> Position:
        """The position with the numbers of a ``state``."""
        return cls(**{**state, "scale": Ramp(**state["scale"]), "batch": Ramp(**state["batch"])})


@final
@dataclass(frozen=True)
class Schedule:
    """A learning rate for ``epochs`` epochs with steps of ``global_batch`` samples, all ranks together.

    ``base_lr``: rate that was found good with steps of ``base_batch`` samples. ``rule``: name of one of ``RULES``,
    which scales the rate for larger steps. The scaled rate is reached over ``warmup_epochs`` (LEGW: times the ratio of
    the batches), a little in every step, from ``base_lr * warmup_from``. With ``warmup_batch``, steps grow from that
    many samples to ``global_batch`` over the same epochs, and the first rate is that of the rule for ``warmup_batch``.
    Raises ``UsageError`` for invalid values.
    """

    base_lr: float
    base_batch: int
    global_batch: int
    epochs: float
    rule: str = "linear"
    warmup_epochs: float = 0.0
    warmup_from: float | None = None
    warmup_batch: int = 0
    decay: Decay = field(default_factory=Constant)

    def __post_init__(self) -> None:
        for name in ("base_lr", "base_batch", "global_batch", "epochs"):
            _at_least(name, getattr(self, name), above=True)
        for name in ("warmup_epochs", "warmup_batch"):
            _at_least(name, getattr(self, name))
        rule = self._rule
        if self.warmup_from is not None:
            _at_least("warmup_from", self.warmup_from)
            if self.warmup_batch:
                raise UsageError("warmup_from and warmup_batch: a growing batch says where the rate begins, give one")
        if rule.measured and self.warmup_epochs and not self.warmup_batch:
            raise UsageError(
                f"warmup_epochs={self.warmup_epochs:g} with rule={self.rule!r}: the measured gain begins near 1 by "
                "itself (arXiv 2007.05105, section 5): leave the warm-up out"
            )
        if self._warmup(self.global_batch) > self.epochs:
            raise UsageError(
                f"the warm-up of {self._warmup(self.global_batch):g} epochs is longer than the training of "
                f"{self.epochs:g}: warmup_epochs={self.warmup_epochs:g}"
                + (f" times {self._ratio(self.global_batch):g}, the ratio of the batches" if rule.longer_warmup else "")
            )

    # -- positions ----------------------------------------------------------------------------------------------------

    def begin(self, epoch_samples: int) -> Position:
        """The first position of a training whose epochs have ``epoch_samples`` samples."""
        _at_least("epoch_samples", epoch_samples, above=True)
        first, end = self.warmup_batch or self.global_batch, self._warmup(self.global_batch)
        if self.warmup_batch:
            start = self._scale(self.warmup_batch)
        else:
            start = 1.0 if self.warmup_from is None else self.warmup_from
        scale = Ramp(0.0, end, start, self._scale(self.global_batch))
        batch = Ramp(0.0, end if self.warmup_batch else 0.0, float(first), float(self.global_batch))
        return Position(epoch_samples, self.global_batch, scale, batch)

    def advance(self, position: Position, samples: int | None = None, gain: float = 1.0) -> Position:
        """The position after one more step, of ``samples`` samples on all ranks together (default: ``batch``).

        ``gain``: result of ``farandole.largebatch.gain`` for the estimates; rules that do not measure ignore it.
        """
        seen = self.batch(position) if samples is None else samples
        _at_least("samples", seen)
        worth = gain * self.base_batch if self._rule.measured else seen
        return replace(
            position,
            samples=position.samples + seen,
            progress=position.progress + worth,
            gain=gain if self._rule.measured else 1.0,
            steps=position.steps + 1,
        )

    def resize(self, position: Position, global_batch: int) -> Position:
        """Change the steps to ``global_batch`` samples: the rate moves to the new rate over a ramp, without a jump.

        The ramp takes as long as the warm-up (Lin et al. 2019, arXiv 1904.12043, section 3), or the rest of it; one
        epoch if there was no warm-up.
        """
        _at_least("global_batch", global_batch, above=True)
        if global_batch == position.global_batch:
            return position
        now, length = position.epoch, self._warmup(global_batch) or 1.0
        scale = position.scale.turned(now, self._scale(global_batch), length)
        growing = now < position.batch.end
        batch = position.batch.turned(now, float(global_batch), 0.0) if growing else Ramp(now, now, 0.0, global_batch)
        return replace(position, global_batch=global_batch, scale=scale, batch=batch)

    # -- rates and batches --------------------------------------------------------------------------------------------

    def rate(self, position: Position) -> float:
        """The learning rate of the next step."""
        scale = self._rule.scale(position.gain) if self._rule.measured else position.scale.at(position.epoch)
        return self.base_lr * scale * self.decay.factor(position.progress / position.epoch_samples, self.epochs)

    def batch(self, position: Position) -> int:
        """Number of samples that the next step should have, all ranks together."""
        return round(position.batch.at(position.epoch))

    def finished(self, position: Position) -> bool:
        """True if all ``epochs`` have passed; with AdaScale, if steps of the same worth have."""
        return position.progress >= self.epochs * position.epoch_samples

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw rate and batch over the epochs, and write the picture to ``path`` if it is given."""
        title = f"{self.rule} scaling from a batch of {self.base_batch} to {self.global_batch}"
        position = self.begin(epoch_samples=max(1, round(_STEPS * 1e6 / self.epochs)))
        curves = Curves(title, [], [], [], position.scale.end, self.epochs)
        while position.epoch < self.epochs:
            curves.epochs.append(position.epoch)
            curves.rates.append(self.rate(position))
            curves.batches.append(self.batch(position))
            position = self.advance(position, samples=10**6, gain=10**6 / self.base_batch)
        return draw_curves(curves, path)

    @property
    def _rule(self) -> Rule:
        return rule_named(self.rule)

    def _ratio(self, global_batch: int) -> float:
        return global_batch / self.base_batch

    def _scale(self, global_batch: int) -> float:
        return 1.0 if self._rule.measured else self._rule.scale(self._ratio(global_batch))

    def _warmup(self, global_batch: int) -> float:
        """Epochs of the ramp to this batch; for a batch smaller than the base batch, those of the base batch."""
        return self.warmup_epochs * (max(1.0, self._ratio(global_batch)) if self._rule.longer_warmup else 1.0)


def momentum_correction(old: float, new: float) -> float:
    """Factor of a buffer v = m*v + rate*g when the rate changes (arXiv 1706.02677, remark 2).

    A buffer without the rate in it, such as that of ``torch.optim.SGD``, needs no correction.
    """
    return new / old if old > 0 else 1.0


def _at_least(name: str, value: float, above: bool = False) -> None:
    if not (value > 0 if above else value >= 0):
        raise UsageError(f"{name}={value}: it must be {'above 0' if above else '0 or more'}")
