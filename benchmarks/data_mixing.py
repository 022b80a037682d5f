"""How well orders of samples mix: the loss of a classifier of real digits, in files sorted by class, or packed."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.measure import Row, Sample, Table, Verdict
from farandole.data import arrays, tar
from farandole.data.planning.order import ExactOrder, WindowOrder
from farandole.data.tools.pack import pack

PIECES, WINDOW, EPOCHS, BATCH, RATE = 40, 8, 2, 32, 0.5
HELD_OUT = 400

Floats = npt.NDArray[np.float64]
Labelled = tuple[Floats, npt.NDArray[np.int64]]


def run(quick: bool) -> Table:
    """Loss in nats on digits that were held out, by how samples are shuffled."""
    table = Table(f"Loss after {EPOCHS} epochs on digits held out; windows of {WINDOW} of {PIECES} pieces", "nats")
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        table.title += ": skipped, pip install scikit-learn"
        return table
    found = load_digits()
    images, labels = found.data / 16, found.target.astype(np.int64)
    out = ExactOrder(len(labels), 7)[:HELD_OUT]
    test, by_class = (images[out], labels[out]), np.argsort(np.delete(labels, out), kind="stable")
    in_order = np.delete(images, out, 0)[by_class], np.delete(labels, out)[by_class]
    packed = _packed(in_order)
    losses: dict[str, list[float]] = {"full shuffle": [], "window, packed": [], "window, sorted": []}
    bounds = np.linspace(0, len(by_class), PIECES + 1).astype(int)
    for seed in range(3 if quick else 20):
        whole = [ExactOrder(len(by_class), seed, epoch)[:] for epoch in range(EPOCHS)]
        windows = [WindowOrder(bounds, WINDOW, seed, epoch)[:] for epoch in range(EPOCHS)]
        losses["full shuffle"].append(_loss(in_order, whole, test))
        losses["window, packed"].append(_loss(packed, windows, test))
        losses["window, sorted"].append(_loss(in_order, windows, test))
    apart = float(abs(np.mean(losses["window, packed"]) - np.mean(losses["full shuffle"])))
    noise = float(np.std(losses["full shuffle"]))
    samples = {name: Sample.of(values) for name, values in losses.items()}
    seeds = Verdict(apart / noise, "deviations of the seeds between full and packed", most=1.0)
    table.rows.append(Row("softmax regression", samples, (seeds,)))
    return table


def _packed(data: Labelled) -> Labelled:
    """The samples in the order in which ``farandole data pack --shuffle`` writes them."""
    with tempfile.TemporaryDirectory(prefix="bench-mixing-") as folder:
        np.savez(f"{folder}/digits.npz", image=data[0], label=data[1])
        pack(arrays(f"{folder}/digits.npz", keys=["image", "label"]), f"{folder}/packed", "tar", shuffle=True, seed=3)
        rows = [_values(sample) for sample in tar(Path(folder) / "packed")]
    return np.stack([image for image, _ in rows]), np.array([label for _, label in rows], np.int64)


def _values(sample: dict[str, Any]) -> tuple[Floats, int]:
    image, label = (
        np.load(io.BytesIO(value)) if isinstance(value, bytes | bytearray) else np.asarray(value)
        for name, value in sorted(sample.items())
        if not name.startswith("__")
    )
    return image, int(label)


def _loss(data: Labelled, orders: Sequence[npt.NDArray[np.int64]], test: Labelled) -> float:
    """Train a softmax regression by SGD in this order of samples; returns its loss on ``test``."""
    weights = np.zeros((data[0].shape[1] + 1, 10))
    for order in orders:
        for begin in range(0, len(order), BATCH):
            rows = order[begin : begin + BATCH]
            inputs, labels = _with_ones(data[0][rows]), data[1][rows]
            error = _probabilities(inputs @ weights) - np.eye(10)[labels]
            weights -= RATE * inputs.T @ error / len(rows)
    found = _probabilities(_with_ones(test[0]) @ weights)
    return float(-np.log(found[np.arange(len(test[1])), test[1]]).mean())


def _with_ones(inputs: Floats) -> Floats:
    return np.hstack([inputs, np.ones((len(inputs), 1))])


def _probabilities(logits: Floats) -> Floats:
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))
