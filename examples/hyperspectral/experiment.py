"""What the table and the picture are made of: pixels at random against regions, and a network taken elsewhere.

One job of two processes trains everything of a seed: on five scenes, with both ways to choose pixels and with classes
that mean nothing, and on five more scenes a network that knows another one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.decomposition import PCA
from sklearn.neighbors import KNeighborsClassifier

import farandole
from examples.common.reproduce import ROOT, Figure, Finding, Measured, Results
from examples.hyperspectral import transfer
from examples.hyperspectral.data import SPLITS, Patches, by_region, few, permuted, read, write
from examples.hyperspectral.model import NETWORKS, Network, accuracy, predicted
from examples.hyperspectral.scene import Scene, make
from farandole import keras as hvd

SCENES, LABELS, APART = 5, 20, 100
"""Scenes of a seed, labels of each class on a new scene, and by how much the scenes of two seeds are numbered apart."""
FIGURES = (
    Figure("random 5-NN", "accuracy on random pixels, 5-NN", "baseline"),
    Figure("region 5-NN", "accuracy on other regions, 5-NN", "baseline"),
    Figure("prior", "accuracy on other regions of naming the commonest class", "baseline"),
    Figure("permuted", "accuracy on other regions, classes of parcels exchanged", "oracle", 0.05),
    Figure("random", "accuracy on random pixels, 3-D CNN"),
    Figure("region", "accuracy on other regions, 3-D CNN", tolerance=0.05),
    Figure("gap", "what random pixels promise too much", tolerance=0.05),
    Figure("untouched", "new scene, no labels: the network as it is", "baseline", 0.05),
    Figure("nothing", f"new scene, {LABELS} labels a class: from nothing", "baseline", 0.05),
    Figure("frozen", f"new scene, {LABELS} labels a class: body frozen", tolerance=0.05),
    Figure("thawed", f"new scene, {LABELS} labels a class: then thawed", tolerance=0.05),
)


def measure(seed: int, quick: bool) -> Measured:
    """Train and compare; see ``Application``."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1 if quick else SCENES):
            for name, further in (("here", 0), ("there", 50)):
                write(make(APART * seed + number + further), Path(folder) / f"{name}-{number}.mat")
        rows, maps = farandole.run(run_all, args=(folder, seed, quick), np=2, python_path=[str(ROOT)])[0]
    means = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    return Measured(means, {"scenes": rows, "maps": maps})


def run_all(folder: str, seed: int, quick: bool) -> tuple[list[dict[str, float]], dict[str, list[str]]]:
    """Figures of each scene, and what is predicted of the first one. Called on every rank."""
    hvd.init()
    rows, maps = [], dict[str, list[str]]()
    network = replace(NETWORKS["small"], epochs=1) if quick else NETWORKS["small"]
    for number in range(1 if quick else SCENES):
        scene, there = (read(Path(folder) / f"{name}-{number}.mat") for name in ("here", "there"))
        rng = np.random.default_rng((seed, number, 3))
        row, models = _chosen(scene, rng, seed, network)
        rows.append(row | _taken_to(there, rng, models["random"], seed))
        maps = maps or _maps(scene, models)
    return rows, maps


def _chosen(
    scene: Scene, rng: np.random.Generator, seed: int, network: Network
) -> tuple[dict[str, float], dict[str, Any]]:
    """Accuracies by how pixels were chosen, and the networks."""
    truths = {"random": scene, "region": scene, "permuted": permuted(scene, rng)}
    splits = {name: SPLITS["random" if name == "random" else "region"](truths[name], rng) for name in truths}
    count = min(len(seen) for seen, _ in splits.values()) // network.batch * network.batch
    row, models = dict[str, float](), dict[str, Any]()
    for name, (seen, unseen) in splits.items():
        train, test = Patches(truths[name], seen[:count]), Patches(truths[name], unseen)
        models[name] = network.trained(train, seed)
        row[name], row[f"{name} 5-NN"] = accuracy(models[name], test), nearest(train, test)
        row["prior"] = float(np.bincount(test.answers).max() / len(test))  # of the last one
    return row | {"gap": row["random"] - row["region"]}, models


def _taken_to(there: Scene, rng: np.random.Generator, donor: Any, seed: int) -> dict[str, float]:
    """Accuracies on regions of another scene, of which a few pixels in other regions have labels."""
    seen, unseen = by_region(there, rng)
    train, test = Patches(there, few(there, seen, LABELS)), Patches(there, unseen)
    network = replace(NETWORKS["small"], epochs=transfer.EPOCHS, batch=transfer.BATCH)
    found = {"untouched": accuracy(donor, test), "nothing": accuracy(network.trained(train, seed), test)}
    model = transfer.frozen(donor, train, seed)
    found["frozen"] = accuracy(model, test)
    found["thawed"] = accuracy(transfer.thawed(model, train, seed), test)
    return found


def nearest(train: Patches, test: Patches) -> float:
    """Accuracy of the five nearest neighbours among 3 x 3 patches, of which 20 principal components are kept."""
    seen, unseen = (each.all()[:, 1:4, 1:4].reshape(len(each), -1) for each in (train, test))
    components = PCA(20, random_state=0).fit(seen)
    judge = KNeighborsClassifier(5).fit(components.transform(seen), train.answers)
    return float(judge.score(components.transform(unseen), test.answers))


def _maps(scene: Scene, models: dict[str, Any]) -> dict[str, list[str]]:
    """Predictions of every pixel, a digit each."""
    whole = Patches(scene, np.arange(scene.labels.size))
    lines = {name: predicted(models[name], whole).reshape(scene.labels.shape) for name in SPLITS}
    return {name: ["".join(map(str, line)) for line in found] for name, found in lines.items()}


def findings(results: Results) -> Sequence[Finding]:
    """What the numbers show."""
    rows: list[dict[str, Any]] = [row for each in results.values() for row in each.drawn["scenes"]]
    gaps, gains = ([row[a] - row[b] for row in rows] for a, b in (("random", "region"), ("thawed", "nothing")))
    over = np.mean([row["permuted"] - row["prior"] for row in rows])
    beats = np.mean([row["region"] - row["region 5-NN"] for row in rows])
    told = f"by {np.mean(gaps):.3f} in the mean of {len(rows)} scenes, by {min(gaps):.3f} at least"
    claim = f"with {LABELS} labels a class a network from elsewhere beats one from nothing"
    gained = f"by {np.mean(gains):.3f} in the mean, in {sum(gain > 0 for gain in gains)} of {len(gains)} scenes"
    promise = "random pixels promise more than other regions keep"
    return [
        Finding(promise, told, bool(np.mean(gaps) >= 0.15 and min(gaps) > 0)),
        Finding("where classes mean nothing, none is found", f"{over:+.3f} against the prior", bool(over <= 0)),
        Finding("on other regions the network beats 5-NN", f"by {beats:.3f} in the mean", bool(beats > 0)),
        Finding(claim, gained, bool(np.mean(gains) >= 0.03)),
    ]
