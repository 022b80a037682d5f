"""Recipes: what they choose, that they say why, and what they refuse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from farandole.largebatch import BASE_RATES, Cosine, Piecewise, Polynomial, Recipe, recipe

OPTIMIZERS = ("adadelta", "adagrad", "adam", "adamw", "lamb", "lars", "rmsprop", "sgd")


def of(optimizer: str, ratio: int = 16, base_lr: float | None = 0.2, epochs: float = 90, **changes: object) -> Recipe:
    """From a batch of 512."""
    return recipe(optimizer, base_lr, base_batch=512, global_batch=512 * ratio, epochs=epochs, **changes)  # type: ignore[arg-type]


def test_the_recipe_of_the_issue() -> None:
    found = recipe(optimizer="lars", base_lr=0.2, base_batch=512, global_batch=8192, epochs=90)
    assert found.settings == {"lr": 0.2, "momentum": 0.9, "weight_decay": 1e-4}
    assert found.peak_lr == pytest.approx(3.2)
    plan = found.schedule
    assert (plan.rule, plan.warmup_epochs, plan.decay) == ("linear", 5, Polynomial(2))
    position = replace(plan.begin(1000), samples=45_000, progress=45_000)
    assert plan.rate(position) == pytest.approx(3.2 / 4)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_choice_has_its_reason_and_source(optimizer: str) -> None:
    found = of(optimizer)
    names = [choice.name for choice in found.choices]
    assert names[:4] == ["base_lr", "rule", "warmup_epochs", "decay"]
    assert set(found.settings) - {"lr", "eps", "betas"} <= set(names)
    for choice in found.choices:
        assert choice.value
        assert len(choice.why.split()) >= 2
        assert choice.source
        assert choice.why in str(found)
    console = Console(width=80)
    with console.capture() as shown:
        console.print(found)
    assert max(map(len, shown.get().splitlines())) <= 80


def test_base_rates_are_the_usual_ones_unless_given() -> None:
    assert {name: of(name, base_lr=None).settings["lr"] for name in BASE_RATES} == BASE_RATES
    with pytest.raises(ValueError, match="base_lr for 'lars': none is usual, give what was good with a batch of 512"):
        of("lars", base_lr=None)


def test_adams_betas_follow_the_batch_until_they_cannot() -> None:
    four = of("adam", ratio=4).settings
    assert four["betas"] == pytest.approx((0.6, 0.996))
    assert four["eps"] == pytest.approx(0.5e-8)
    assert of("adam", ratio=16).settings["betas"] == (0.9, 0.999)
    assert "the rule ends at 10 base batches" in str(of("adam", ratio=16))
    assert of("adam", ratio=4, rule="linear").settings["betas"] == (0.9, 0.999)


def test_lamb_warms_up_longer_with_the_batch() -> None:
    for ratio, epochs in ((1, 0.3125), (16, 5.0), (64, 20.0)):
        assert of("lamb", ratio).schedule.begin(100).scale.end == pytest.approx(epochs)


def test_what_is_not_of_a_paper_is_said_to_be_ours() -> None:
    """LEGW says nothing of the warm-up at the base batch, and LAMB's papers tune its rate."""
    sources = {choice.name: choice.source for choice in of("lamb", base_lr=None).choices}
    assert sources["base_lr"] == "this library's default"
    assert "1901.08256" in sources["warmup_epochs"]
    assert "the base is this library's" in sources["warmup_epochs"]


def test_short_trainings_have_short_warm_ups_and_stairs() -> None:
    plan = of("sgd", epochs=9).schedule
    assert plan.warmup_epochs == pytest.approx(0.5)
    assert plan.decay == Piecewise({3.0: 0.1, 6.0: 0.01, 8.0: 0.001})


def test_what_is_asked_for_is_taken() -> None:
    plan = of("sgd", rule="sqrt", warmup_epochs=2.0, decay=Cosine()).schedule
    assert (plan.rule, plan.warmup_epochs, plan.decay) == ("sqrt", 2.0, Cosine())
    assert of("sgd", rule="adascale").schedule.warmup_epochs == 0


@pytest.mark.parametrize(
    ("optimizer", "changes", "said"),
    [
        ("lion", {}, "optimizer='lion': expected one of adadelta, adagrad, adam"),
        ("sgd", {"rule": "cubic"}, "rule='cubic': expected one of linear, sqrt"),
        ("sgd", {"warmup_epochs": 91.0}, "warm-up of 91 epochs is longer"),
        ("sgd", {"base_lr": -1.0}, "base_lr=-1.0"),
    ],
)
def test_what_cannot_be_is_refused(optimizer: str, changes: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        of(optimizer, **changes)  # type: ignore[arg-type]


def test_schedules_are_drawn(tmp_path: Path) -> None:
    of("lars").schedule.plot(tmp_path / "rate.png")
    replace(of("sgd").schedule, warmup_batch=512).plot(tmp_path / "deep" / "batch.png")
    for path in (tmp_path / "rate.png", tmp_path / "deep" / "batch.png"):
        assert path.read_bytes().startswith(b"\x89PNG")
    assert of("sgd", rule="adascale").schedule.plot() is not None
