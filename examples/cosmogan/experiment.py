"""What the table and the figure are made of: made maps beside real ones that no network has seen."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

import farandole
import farandole.torch as hvd
from examples.common.reproduce import ROOT, Figure, Finding, Measured, Results
from examples.common.volumes import Array
from examples.cosmogan.maps import QUICK, Sizes, in_memory, maps, write
from examples.cosmogan.measures import chance, compared, likeness, log_spectra
from examples.cosmogan.model import untrained
from examples.cosmogan.training import Plan, generated, train

COPIES = 125
"""Made maps that are looked for among the training maps."""
EDGES = np.linspace(-1.0, 1.0, 61)

FIGURES = (
    Figure("untrained error", "untrained: mean |difference of log P|", "baseline", 1.0),
    Figure("untrained ks", "untrained: largest difference of pixel distributions", "baseline", 0.1),
    Figure("real error", "training maps against the others: mean |difference of log P|", "oracle", 0.02),
    Figure("real ks", "the same: largest difference of pixel distributions", "oracle", 0.004),
    Figure("chance", "correlation with an unseen map that no made one passes, by chance, at 99 %", "oracle", 0.05),
    Figure("error", "made: mean |difference of log P|", "own", 0.08),
    Figure("inside", "scales at which that is within σ of a map", "own", 0.1),
    Figure("ks", "largest difference of pixel distributions", "own", 0.01),
    Figure("spread", "spread of log P, in units of the real one", "own", 0.15),
    Figure("likeness", "highest correlation with a training map", "own", 0.05),
)


def on_ranks(file: Path, plan: Plan, count: int) -> tuple[Array, Array] | None:
    """Train, and make maps, before the first step and after the last; None on ranks above 0."""
    hvd.init()
    torch.set_num_threads(1)

    def told(epoch: int, loss_d: float, loss_g: float) -> None:
        if hvd.rank() == 0:
            print(f"epoch {epoch}: discriminator {loss_d:.3f} generator {loss_g:.3f}", flush=True)

    generator = train(plan, maps(file), told)
    if hvd.rank() > 0:
        return None
    first = untrained(plan.seed, torch.nn.BatchNorm2d, plan.width)[0]
    return generated(first, count, plan.seed), generated(generator, count, plan.seed)


def measure(seed: int, quick: bool) -> Measured:
    """Train on two processes, and compare; see ``Application``."""
    plan = Plan(seed=seed, epochs=2 if quick else Plan().epochs)
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder) / "maps"
        write(inputs, QUICK if quick else Sizes(), seed)
        train_maps, real = (in_memory(maps(inputs / f"{part}.npy")) for part in ("train", "test"))
        arguments, lean = (inputs / "train.npy", plan, len(real)), {"OMP_NUM_THREADS": "1"}
        first, made = farandole.run(on_ranks, args=arguments, np=2, env=lean, python_path=[str(ROOT)])[0]
    figures = {f"untrained {name}": value for name, value in compared(first, real).items()}
    figures |= {f"real {name}": value for name, value in compared(train_maps, real).items()}
    figures |= compared(made, real)
    figures["chance"] = chance(likeness(made[:COPIES], real), 0.99)
    figures["likeness"] = float(likeness(made[:COPIES], train_maps).max())
    return Measured({each.name: figures[each.name] for each in FIGURES}, drawn(made, real))


def drawn(made: Array, real: Array) -> dict[str, object]:
    """What the figure shows: some maps, spectra and histograms."""
    found: dict[str, object] = {}
    for name, some in (("made", made), ("real", real)):
        spectra = log_spectra(some)
        found[name] = {
            "maps": np.round(some[:: len(some) // 6][:6].astype(float), 2).tolist(),
            "spectrum": np.round(spectra.mean(axis=0), 4).tolist(),
            "sigma": np.round(spectra.std(axis=0), 4).tolist(),
            "histogram": np.round(np.histogram(some, EDGES)[0] / some.size, 6).tolist(),
        }
    return found


def findings(results: Results) -> Sequence[Finding]:
    """What the issue asks for, of every seed."""
    every = [each.figures for each in results.values()]

    def said(*names: str) -> str:
        return "; ".join(" and ".join(f"{figures[name]:.3f}" for name in names) for figures in every)

    def always(name: str, low: float, high: float) -> bool:
        return all(low <= figures[name] <= high for figures in every)

    copied = any(figures["likeness"] > figures["chance"] for figures in every)
    return [
        Finding("the spectrum is within σ of a map at 80 % of the scales", said("inside"), always("inside", 0.8, 1)),
        Finding("pixel distributions differ by at most .02", said("ks"), always("ks", 0, 0.02)),
        Finding("spectra vary .8 to 1.25 times as much as real ones", said("spread"), always("spread", 0.8, 1.25)),
        Finding("no made map is nearer to a training map than by chance", said("likeness", "chance"), not copied),
    ]
