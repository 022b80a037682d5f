"""What ``--reproduce`` measures: a cut, a linear model and the network on the same events, and where that holds.

measured = measure(seed=0, quick=False)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score, roc_curve
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import farandole
from examples.common.reproduce import ROOT, Figure, Finding, Measured, Results
from examples.jets.collisions import Array
from examples.jets.images import CHECKS, Plan, columns, generator, make

EPOCHS = 4
LEAST_ENERGY = (1, 3, 10, 30, 100, 300)
"""GeV: the linear model has the numbers of towers with more."""
FIGURES = [
    Figure("cut", "accuracy of the best cut on H_T", "baseline", 0.01),
    Figure("linear", "accuracy of a linear model of tower counts", "baseline", 0.01),
    *(Figure(f"epoch{n}", f"accuracy of the network in validation, epoch {n}") for n in range(1, EPOCHS + 1)),
    Figure("network", "accuracy of the network in test", "own", 0.01),
    Figure("mass1200", "the same, gluinos of 1.2 TeV"),
    Figure("mass1600", "the same, gluinos of 1.6 TeV"),
    Figure("matched_cut", "H_T distributed alike: accuracy of the cut", "baseline", 0.03),
    Figure("matched_linear", "H_T distributed alike: of the linear model", "baseline", 0.03),
    Figure("matched", "H_T distributed alike: of the network", "own", 0.03),
]


def measure(seed: int, quick: bool) -> Measured:
    """Make the events, cut, fit and train; compare on events that none of the three has seen."""
    plan = Plan(900, 100, seed) if quick else Plan(seed=seed)
    folder = ROOT / "out" / plan.name
    farandole.run(_make, (folder, plan), np=2, python_path=[str(ROOT)])
    hist, y, ht = columns(folder, "train")
    cut = best_cut(ht, y)
    linear = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(counts(hist), y)
    env = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
    said, validated = farandole.run(_train, (folder, seed), np=2, env=env, python_path=[str(ROOT)])[0]
    figures = {f"epoch{n}": value for n, value in enumerate(validated, 1)}
    drawn: dict[str, Any] = {"generator": generator(), "mean": [aligned(hist[y == kind]) for kind in (1, 0)]}
    for name in ("test", *CHECKS):
        hist, y, ht = columns(folder, name)
        scores = {"cut": ht - cut, "linear": linear.decision_function(counts(hist)), "network": said[name]}
        kept = matched(ht, y, seed) if name == "flat" else slice(None)
        right = {which: float(np.mean(((score > 0) == y)[kept])) for which, score in scores.items()}
        if name == "test":
            figures |= right
            drawn["roc"] = {which: curve(y, score) for which, score in scores.items()}
        elif name == "flat":
            figures |= {"matched_cut": right["cut"], "matched_linear": right["linear"], "matched": right["network"]}
        else:
            figures[name] = right["network"]
    return Measured(figures, drawn)


def _make(folder: Path, plan: Plan) -> None:
    """A share of the files, on each rank."""
    import farandole.numpy as hvd

    hvd.init()
    make(folder, plan, hvd.rank(), hvd.size())


def _train(folder: Path, seed: int) -> tuple[dict[str, Array], list[float]]:
    """What the network says of each set, and its accuracy in validation after each epoch."""
    import farandole.keras as hvd
    from examples.jets.training import Hyper, logits, train

    hvd.init()
    validated: list[float] = []
    model = train(folder, Hyper(), EPOCHS, seed, lambda *said: validated.append(said[2]))
    return {name: logits(model, folder, name) for name in ("test", *CHECKS)}, validated


def counts(hist: Array) -> Array:
    """Numbers of towers above each energy, events x 6."""
    return np.stack([(hist > energy).sum((1, 2)) for energy in LEAST_ENERGY], 1)


def best_cut(ht: Array, y: Array) -> float:
    """The H_T above which events are best taken for gluinos."""
    order = np.argsort(ht)
    right = np.cumsum(1 - y[order]) - np.cumsum(y[order])  # of background below the cut, less signal lost
    return float(ht[order][np.argmax(right)])


def matched(ht: Array, y: Array, seed: int) -> Array:
    """Rows of as many gluinos as jets in each 100 GeV of H_T."""
    rng, bins, rows = np.random.default_rng(seed), ht // 100, []
    for each in np.unique(bins):
        kinds = [np.flatnonzero((bins == each) & (y == kind)) for kind in (0, 1)]
        rows += [rng.permutation(kind)[: min(map(len, kinds))] for kind in kinds]
    return np.concatenate(rows)


def aligned(hist: Array) -> list[list[float]]:
    """Mean image, 32 x 32, of events that are turned to have their highest tower at φ = 0."""
    turned = [np.roll(image, 32 - int(image.max(0).argmax()), 1) for image in hist]
    found: list[list[float]] = np.mean(turned, 0).reshape(32, 2, 32, 2).sum((1, 3)).round(2).tolist()
    return found


def curve(y: Array, score: Array) -> dict[str, Any]:
    """Area under the ROC curve, and 51 points of it in steps of signal kept."""
    background, signal, _ = roc_curve(y, score)
    at = np.linspace(0.5, 1, 51)
    kept = np.interp(at, signal, background).round(4)
    return {"area": float(roc_auc_score(y, score)), "signal": at.round(2).tolist(), "background": kept.tolist()}


def findings(results: Results) -> list[Finding]:
    """What the figures show."""
    figures = [each.figures for each in results.values()]
    mean = {name: float(np.mean([each[name] for each in figures])) for name in figures[0]}
    least = min(each["matched"] for each in figures)
    made = {each.drawn["generator"] for each in results.values()}
    said = f"{mean['network']:.3f} against {mean['cut']:.3f} and {mean['linear']:.3f}"
    first, last = mean["epoch1"], mean[f"epoch{EPOCHS}"]
    return [
        Finding("the events are those of Pythia 8", f"made by {', '.join(sorted(made))}", made == {"Pythia 8"}),
        Finding("the network beats both baselines", said, mean["network"] > max(mean["cut"], mean["linear"])),
        Finding("it gains from epoch to epoch, as in the talk", f"{first:.3f} to {last:.3f}", first < last),
        Finding("> .80 where H_T is distributed alike: it sees more", f"{least:.3f}", least > 0.8),
    ]
