"""What the table and the figure are made of: made maps beside real ones that no network has seen."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import farandole
from examples.common.reproduce import ROOT, Figure, Finding, Measured, Results
from examples.common.volumes import Array
from examples.cosmogan.maps import QUICK, Sizes, density, in_memory, maps, write
from examples.cosmogan.measures import compared, likeness, log_spectra
from examples.cosmogan.training import Plan, generated, train

COPIES = 48
"""Maps of each kind that are compared with all training maps."""
EDGES = np.linspace(-1.0, 1.0, 61)

FIGURES = (
    Figure("untrained error", "untrained: mean |difference of log P|", "baseline", 1.0),
    Figure("untrained ks", "untrained: largest difference of pixel distributions", "baseline", 0.1),
    Figure("real error", "training maps against the others: mean |difference of log P|", "oracle", 0.02),
    Figure("real ks", "the same: largest difference of pixel distributions", "oracle", 0.004),
    Figure("real likeness", "highest correlation of an unseen real map with a training map", "oracle", 0.05),
    Figure("error", "made: mean |difference of log P|", "own", 0.08),
    Figure("inside", "scales at which that is within σ of a map", "own", 0.1),
    Figure("density error", "the same of densities: mean |difference of log P|", "own", 0.1),
    Figure("density inside", "and scales within σ", "own", 0.1),
    Figure("ks", "largest difference of pixel distributions", "own", 0.01),
    Figure("spread", "spread of log P, in units of the real one", "own", 0.15),
    Figure("density spread", "the same of densities", "own", 0.2),
    Figure("likeness", "highest correlation with a training map", "own", 0.05),
)


def on_ranks(file: str, plan: Plan, count: int) -> tuple[Array, Array] | None:
    """Train, and make maps, before the first step and after the last; None on ranks above 0."""
    import torch

    import farandole.torch as hvd
    from examples.cosmogan.model import untrained

    hvd.init()
    torch.set_num_threads(1)

    def told(epoch: int, loss_d: float, loss_g: float) -> None:
        if hvd.rank() == 0:
            print(f"epoch {epoch}: discriminator {loss_d:.3f} generator {loss_g:.3f}", flush=True)

    generator = train(plan, maps(Path(file)), told)
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
        arguments = (str(inputs / "train.npy"), plan, len(real))
        environment = {"OMP_NUM_THREADS": "1"}
        first, made = farandole.run(on_ranks, args=arguments, np=2, env=environment, python_path=[str(ROOT)])[0]
    before, known, found = compared(first, real), compared(train_maps, real), compared(made, real)
    dense = compared(density(made), density(real))
    figures = {
        "untrained error": before.error,
        "untrained ks": before.ks,
        "real error": known.error,
        "real ks": known.ks,
    }
    figures |= {"error": found.error, "inside": found.inside, "ks": found.ks, "spread": found.spread}
    figures |= {"density error": dense.error, "density inside": dense.inside, "density spread": dense.spread}
    figures["likeness"] = float(likeness(made[:COPIES], train_maps).max())
    figures["real likeness"] = float(likeness(real[:COPIES], train_maps).max())
    return Measured(figures, drawn(made, real))


def drawn(made: Array, real: Array) -> dict[str, object]:
    """What the figure shows: some maps, spectra and histograms."""
    found: dict[str, object] = {}
    for name, some in (("made", made), ("real", real)):
        spectra = log_spectra(some)
        histogram = np.histogram(some, EDGES)[0] / some.size
        found[name] = {
            "maps": np.round(some[:: len(some) // 6][:6].astype(float), 2).tolist(),
            "spectrum": np.round(spectra.mean(axis=0), 4).tolist(),
            "sigma": np.round(spectra.std(axis=0), 4).tolist(),
            "histogram": np.round(histogram, 6).tolist(),
        }
    return found


def findings(results: Results) -> Sequence[Finding]:
    """What the issue asks for, of every seed."""
    every = [each.figures for each in results.values()]

    def said(*names: str) -> str:
        return "; ".join(" and ".join(f"{figures[name]:.3f}" for name in names) for figures in every)

    def always(name: str, low: float, high: float) -> bool:
        return all(low <= figures[name] <= high for figures in every)

    return [
        Finding("the spectrum is within σ of a map at 80 % of the scales", said("inside"), always("inside", 0.8, 1)),
        Finding("that of densities, too", said("density inside"), always("density inside", 0.8, 1)),
        Finding("pixel distributions differ by at most .02", said("ks"), always("ks", 0, 0.02)),
        Finding("spectra vary .8 to 1.25 times as much as real ones", said("spread"), always("spread", 0.8, 1.25)),
        Finding("those of densities, too", said("density spread"), always("density spread", 0.8, 1.25)),
        Finding(
            "no made map is more like a training map than unseen real ones are, by .05",
            said("likeness", "real likeness"),
            all(figures["likeness"] <= figures["real likeness"] + 0.05 for figures in every),
        ),
    ]
