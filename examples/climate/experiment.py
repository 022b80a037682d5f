"""What is measured: three weightings, two networks, a lag, LARC, and cyclones of half the depth, beside linear models.

measured = measure(seed=0, quick=False)             # some minutes of two cores
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import farandole
import farandole.torch as hvd
from examples.climate.files import frequencies, load, made, write, write_hdf5
from examples.climate.linear import fitted, linear_iou
from examples.climate.metrics import counts, iou
from examples.climate.training import WEIGHTINGS, Plan, evaluated, train
from examples.common.reproduce import ROOT, Figure, Finding, Measured, Results

WORDS = {"none": "no weighting", "sqrt": "1/√f", "inverse": "1/f"}
PLANS = {
    **{f"tiramisu {name}": Plan(weighting=name) for name in WEIGHTINGS},
    "deeplab": Plan("deeplab", epochs=6),
    "deeplab lag": Plan("deeplab", lag=1, epochs=6),
    "deeplab larc": Plan("deeplab", larc=True, epochs=6),
}
FIGURES = (
    Figure("background", "mean IoU of background everywhere", "baseline"),
    *(Figure(f"linear {each}", f"linear model of a pixel, {said}", "baseline") for each, said in WORDS.items()),
    *(Figure(f"tiramisu {each}", f"Tiramisu, {said}") for each, said in WORDS.items()),
    Figure("deeplab", "DeepLabv3+, Adam, lag 0"),
    Figure("deeplab lag", "DeepLabv3+, Adam, lag 1"),
    Figure("deeplab larc", "DeepLabv3+, LARC"),
    Figure("weak linear", "linear model, cyclones half as deep", "baseline"),
    Figure("weak", "Tiramisu, cyclones half as deep"),
)


def measure(seed: int, quick: bool) -> Measured:
    """Make the states, fit the linear models, and train each plan on two processes."""
    train_on, test_on = (16, 8) if quick else (200, 40)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write(folder, train=train_on, validation=test_on, seed=seed)
        write_hdf5(folder, "weak", made(seed, 2, test_on, strength=0.5))
        states, others, weak = (load(folder, part) for part in ("train", "validation", "weak"))
        share = torch.tensor(frequencies(states))
        linear = {each: fitted(states, Plan(weighting=each).weights(share).tolist()) for each in WEIGHTINGS}
        figures = {f"linear {each}": mean(linear_iou(model, others)) for each, model in linear.items()}
        labels = torch.from_numpy(np.stack([labels for _, labels in others]))
        figures["background"] = mean(iou(counts(torch.zeros_like(labels), labels).tolist()))
        figures["weak linear"] = mean(linear_iou(linear["none"], weak))
        arguments = (folder, seed, 1 if quick else 0)
        trained = farandole.run(train_all, args=arguments, np=2, python_path=[str(ROOT)])[0]
    return Measured({**figures, **trained["scores"]}, {"classes": trained["classes"], "shown": trained["shown"]})


def train_all(folder: Path, seed: int, epochs: int) -> dict[str, Any]:
    """Train every plan on the ranks of this job; ``epochs`` instead of the plan's where it is not 0."""
    hvd.init()
    torch.set_num_threads(1)
    states, others, weak = (load(folder, part) for part in ("train", "validation", "weak"))
    found: dict[str, Any] = {"scores": {}, "classes": {}}
    for name, plan in PLANS.items():
        outcome = train(replace(plan, seed=seed, epochs=epochs or plan.epochs), states, others)
        found["scores"][name], found["classes"][name] = outcome.scores[-1], outcome.iou
        if name == "tiramisu none":
            found["scores"]["weak"] = mean(evaluated(outcome.model, weak))
            number = next((n for n in range(len(others)) if len({*others[n][1].flat}) == 3), 0)
            with torch.no_grad():
                said = outcome.model(torch.from_numpy(others[number][0])[None]).argmax(1)[0].tolist()
            found["shown"] = {"number": number, "said": ["".join(map(str, row)) for row in said]}
    return found


def findings(results: Results) -> Sequence[Finding]:
    """What the figures of all seeds show, good or bad."""
    every = [each.figures for each in results.values()]

    def least(one: str, other: str) -> float:
        return min(each[one] - each[other] for each in every)

    average = {figure.name: mean([each[figure.name] for each in every]) for figure in FIGURES}
    best = max(WORDS, key=lambda each: average[f"tiramisu {each}"])
    worst = min(each["tiramisu none"] for each in every)
    beats = {said: least(f"tiramisu {each}", f"linear {each}") for each, said in WORDS.items()}
    late, larc = average["deeplab lag"] - average["deeplab"], average["deeplab larc"] - average["deeplab"]
    root, weak = least("tiramisu sqrt", "tiramisu inverse"), least("weak", "weak linear")
    margins = ", ".join(f"{said} {value:+.3f}" for said, value in beats.items())
    return [
        Finding("mean IoU of Tiramisu is above .70", f"{worst:.3f} at least", worst > 0.70),
        Finding("it beats the linear model of the same weighting", f"at least {margins}", min(beats.values()) > 0),
        Finding("1/√f is above 1/f by .05", f"{root:.3f} at least", root >= 0.05),
        Finding(f"best here is {WORDS[best]}", f"{average[f'tiramisu {best}']:.3f} in the mean", True),
        Finding("lag 1 trains as lag 0 does", f"{late:+.3f} in the mean", abs(late) < 0.03),
        Finding("LARC trains as Adam does", f"{larc:+.3f} in the mean", abs(larc) < 0.05),
        Finding("with cyclones half as deep, never seen, it beats the linear model", f"by {weak:.3f}", weak > 0),
    ]


def mean(values: Sequence[float]) -> float:
    """Of some numbers."""
    return sum(values) / len(values)
