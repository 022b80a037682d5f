"""Settings and schedule for an optimizer and two batch sizes, with a reason for each choice.

>>> found = recipe(optimizer="lars", base_lr=0.2, base_batch=512, global_batch=8192, epochs=90)
>>> found.settings
{'lr': 0.2, 'momentum': 0.9, 'weight_decay': 0.0001}
>>> round(found.peak_lr, 3), found.schedule.warmup_epochs
(3.2, 5.0)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from farandole.errors import UsageError
from farandole.largebatch.decays import Cosine, Decay, Piecewise, Polynomial
from farandole.largebatch.scaling import BASE_RATES, RULES, rule_named
from farandole.largebatch.schedule import Schedule

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

GOYAL = "Goyal et al. 2017, arXiv 1706.02677"
LARS = "You et al. 2017, arXiv 1708.03888"
LAMB = "You et al. 2020, arXiv 1904.00962"
MALLADI = "Malladi et al. 2022, arXiv 2205.10287"
WARMUP_EPOCHS = 5.0
LEGW_WARMUP_EPOCHS = WARMUP_EPOCHS / 16.0
"""Warm-up at the base batch, chosen by this library. LEGW defines how a warm-up grows with the batch; at 16 times the
base batch it is then the usual five epochs."""
REFERENCE_EPOCHS = 90.0
"""Epochs of the trainings in the papers; warm-ups and stairs shrink with a shorter training."""


@final
@dataclass(frozen=True)
class Choice:
    """One decision of a recipe, with a sentence on the reason, and a source."""

    name: str
    value: str
    why: str
    source: str


@final
@dataclass(frozen=True)
class Recipe:
    """``settings``: keyword arguments of the optimizer; the rate in them is the base rate, which the schedule scales.

    Printed with ``rich`` it is a table of its ``choices``; ``str`` has one line for each choice.
    """

    optimizer: str
    settings: dict[str, float | tuple[float, float]]
    schedule: Schedule
    choices: tuple[Choice, ...]

    @property
    def peak_lr(self) -> float:
        """The base rate, scaled for the batch, before the decay."""
        schedule = self.schedule
        return schedule.base_lr * RULES[schedule.rule].scale(schedule.global_batch / schedule.base_batch)

    def __str__(self) -> str:
        return "\n".join(f"{c.name} = {c.value}: {c.why} [{c.source}]" for c in self.choices)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.table import Table  # every worker imports this module, and next to none prints

        table = Table(title=f"{self.optimizer}, batch {self.schedule.base_batch} to {self.schedule.global_batch}")
        for name in ("what", "value", "why", "source"):
            table.add_column(name, overflow="fold")
        for choice in self.choices:
            table.add_row(choice.name, choice.value, choice.why, choice.source)
        yield table


@final
@dataclass(frozen=True)
class _FrameworkDefaults:
    """Usual choices for one optimizer."""

    rule: str
    why: str
    source: str
    decay: Decay
    settings: dict[str, float | tuple[float, float]] = field(default_factory=dict)


_SGD_WHY = "the sum of k small steps is one step of k times the rate, as long as the weights change little meanwhile"
_ADAM_WHY = "updates are divided by their noise, which a larger batch lessens by the root of the ratio"
_MOMENTUM: dict[str, float | tuple[float, float]] = {"momentum": 0.9, "weight_decay": 1e-4}
_BETAS: dict[str, float | tuple[float, float]] = {"betas": (0.9, 0.999), "eps": 1e-8}

_HABITS = {
    "adadelta": _FrameworkDefaults("sqrt", _ADAM_WHY, MALLADI, Cosine()),
    "adagrad": _FrameworkDefaults("sqrt", _ADAM_WHY, MALLADI, Cosine()),
    "adam": _FrameworkDefaults("sqrt", _ADAM_WHY, MALLADI, Cosine(), _BETAS),
    "adamw": _FrameworkDefaults("sqrt", _ADAM_WHY, MALLADI, Cosine(), {**_BETAS, "weight_decay": 1e-2}),
    "lamb": _FrameworkDefaults(
        "legw", _ADAM_WHY, f"{LAMB}, section 4", Polynomial(1.0), {"betas": (0.9, 0.999), "weight_decay": 1e-2}
    ),
    "lars": _FrameworkDefaults("linear", _SGD_WHY, f"{GOYAL}, section 2.1", Polynomial(2.0), _MOMENTUM),
    "rmsprop": _FrameworkDefaults("sqrt", _ADAM_WHY, MALLADI, Cosine()),
    "sgd": _FrameworkDefaults("linear", _SGD_WHY, f"{GOYAL}, section 2.1", Piecewise(), _MOMENTUM),
}


def recipe(
    optimizer: str,
    base_lr: float | None = None,
    *,
    base_batch: int,
    global_batch: int,
    epochs: float,
    rule: str | None = None,
    warmup_epochs: float | None = None,
    decay: Decay | None = None,
) -> Recipe:
    """Settings and schedule for steps of ``global_batch`` samples, from a rate that was good with ``base_batch``.

    >>> print(recipe("adam", base_batch=256, global_batch=1024, epochs=30))     # a sentence for each choice
    base_lr = 0.001: where tuning usually begins; tune it at the base batch [the optimizer's usual default]
    rule = sqrt: ...

    ``optimizer``: adadelta, adagrad, adam, adamw, lamb, lars, rmsprop or sgd. ``base_lr``: the rate found
    with ``base_batch``; by default the usual rate. ``rule``, ``warmup_epochs`` and ``decay`` replace the choices of the
    papers behind the recipe. Raises ``UsageError`` for invalid arguments.
    """
    if optimizer not in _HABITS:
        raise UsageError(f"optimizer={optimizer!r}: expected one of {', '.join(_HABITS)}")
    habit, choices = _HABITS[optimizer], list[Choice]()
    rate = _base_rate(optimizer, base_lr, base_batch, choices)
    chosen = _rule(habit, rule, choices)
    warmup = _warmup(chosen, warmup_epochs, epochs, base_batch, global_batch, choices)
    decay = _decay(optimizer, habit, decay, epochs, choices)
    schedule = Schedule(rate, base_batch, global_batch, epochs, chosen, warmup, decay=decay)
    settings = {"lr": rate, **_scaled(optimizer, habit, chosen, global_batch / base_batch, choices)}
    return Recipe(optimizer, settings, schedule, tuple(choices))


def _base_rate(optimizer: str, given: float | None, base_batch: int, choices: list[Choice]) -> float:
    if given is not None:
        why = f"it was found good with steps of {base_batch} samples; the schedule multiplies it"
        choices.append(Choice("base_lr", f"{given:g}", why, "given"))
        return given
    if optimizer not in BASE_RATES:
        raise UsageError(f"base_lr for {optimizer!r}: none is usual, give what was good with a batch of {base_batch}")
    usual = BASE_RATES[optimizer]
    source = "this library's default" if optimizer == "lamb" else "the optimizer's usual default"
    choices.append(Choice("base_lr", f"{usual:g}", "where tuning usually begins; tune it at the base batch", source))
    return usual


def _rule(habit: _FrameworkDefaults, given: str | None, choices: list[Choice]) -> str:
    if given is None:
        choices.append(Choice("rule", habit.rule, habit.why, habit.source))
        return habit.rule
    choices.append(Choice("rule", given, "it was asked for", rule_named(given).source))
    return given


def _warmup(
    rule: str, given: float | None, epochs: float, base_batch: int, global_batch: int, choices: list[Choice]
) -> float:
    """Epochs of the warm-up at the base batch."""
    if given is not None:
        choices.append(Choice("warmup_epochs", f"{given:g}", "they were asked for", "given"))
        return given
    shorter = min(1.0, epochs / REFERENCE_EPOCHS)
    if RULES[rule].measured:
        why, source = "the measured gain begins near 1 by itself", RULES[rule].source
        found = 0.0
    elif RULES[rule].longer_warmup:
        found = LEGW_WARMUP_EPOCHS * shorter
        why = f"times the ratio of the batches, which makes {found * max(1.0, global_batch / base_batch):.3g} epochs"
        source = f"{RULES[rule].source}; the base is this library's: {WARMUP_EPOCHS:g} epochs at 16 base batches"
    else:
        found = WARMUP_EPOCHS * shorter
        why = "weights change fastest in the first epochs, when large steps diverge; every step a little more"
        source = f"{GOYAL}, section 2.2"
    choices.append(Choice("warmup_epochs", f"{found:.3g}", why, source))
    return found


def _decay(
    optimizer: str, habit: _FrameworkDefaults, given: Decay | None, epochs: float, choices: list[Choice]
) -> Decay:
    if given is not None:
        choices.append(Choice("decay", f"{given}", "it was asked for", "given"))
        return given
    found = habit.decay
    if isinstance(found, Piecewise):
        found = Piecewise({epoch * epochs / REFERENCE_EPOCHS: factor for epoch, factor in found.factors.items()})
    sources = {"lars": f"{LARS}, section 5", "sgd": f"{GOYAL}, section 5.1", "lamb": f"{LAMB}, section 4"}
    source = sources.get(optimizer, "Loshchilov and Hutter 2017, arXiv 1608.03983, equation 5")
    why = "what the results were reported with; it runs over all epochs, the warm-up included"
    choices.append(Choice("decay", f"{found}", why, source))
    return found


def _scaled(
    optimizer: str, habit: _FrameworkDefaults, rule: str, ratio: float, choices: list[Choice]
) -> dict[str, float | tuple[float, float]]:
    """The other settings; settings of Adam change with the batch under the square-root rule."""
    settings = dict(habit.settings)
    if optimizer in ("adam", "adamw") and rule == "sqrt" and ratio != 1:
        betas, eps = (1 - 0.1 * ratio, 1 - 0.001 * ratio), 1e-8 / ratio**0.5
        if min(betas) > 0:
            settings.update(betas=betas, eps=eps)
            why, source = (
                "averages over as many samples as before span fewer steps",
                MALLADI,
            )
        else:
            why = f"1 - beta1 would be {0.1 * ratio:g}; the rule ends at 10 base batches, and the usual ones stay"
            source = f"{MALLADI}, definition 2"
        choices.append(Choice("betas", f"{settings['betas']}", why, source))
    if "momentum" in settings:
        why = "averages the noise of about ten steps, at any batch"
        choices.append(Choice("momentum", f"{settings['momentum']:g}", why, f"{GOYAL}, section 5.1"))
    if "weight_decay" in settings:
        why = "what the results were reported with; none on biases and batch norm"
        source = {"lamb": LAMB, "adamw": "Loshchilov and Hutter 2019, arXiv 1711.05101"}.get(optimizer, GOYAL)
        choices.append(Choice("weight_decay", f"{settings['weight_decay']:g}", why, source))
    return settings
