"""What the table and the picture are made of: the network and ridge, on the same files, by two processes.

python -m examples.cosmoflow --reproduce
python -m examples.cosmoflow.experiment --volumes 750 1500 3000 6000        # the curve of error against volumes
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np

import farandole
from examples.common.reproduce import ROOT, Figure, Finding, Measured, Results
from examples.common.volumes import RANGES, Array, Box
from examples.cosmoflow.baselines import ridge, summaries
from examples.cosmoflow.data import QUICK, Sizes, in_memory, volumes, write
from examples.cosmoflow.picture import draw_curve
from examples.cosmoflow.training import Plan, predicted, train

NAMES = {"omega_m": "Ω_m", "sigma_8": "σ_8", "n_s": "n_s"}
COVERED = 0.9
FIGURES = (
    *(Figure(f"mean {name}", f"{said}: error of always the middle", "baseline") for name, said in NAMES.items()),
    *(Figure(f"ridge {name}", f"{said}: error of ridge", "baseline", 0.006) for name, said in NAMES.items()),
    Figure("ridge", "mean error of ridge", "baseline", 0.004),
    Figure("shuffled", "mean error of ridge on shuffled labels", "oracle", 0.02),
    *(Figure(f"network {name}", f"{said}: error of the network", "own", 0.01) for name, said in NAMES.items()),
    Figure("network", "mean error of the network", "own", 0.006),
    Figure("covered", "test volumes inside of error bars for 90 %", "own", 0.03),
)


@final
@dataclass(frozen=True)
class Errors:
    """Errors on the test volumes, by label: of the network, of ridge, and of always the middle; and what is drawn."""

    network: Array
    ridge: Array
    middle: Array
    shuffled: float
    drawn: Mapping[str, Any]
    covered: float


def on_ranks(folder: str, plan: Plan) -> Array | None:
    """Train, and predict the volumes for validation and test; None on ranks above 0."""
    import farandole.keras as hvd

    hvd.init()
    parts = {part: volumes(Path(folder) / part) for part in ("train", "validation", "test")}

    def told(epoch: int, loss: float) -> None:
        if hvd.rank() == 0:
            print(f"epoch {epoch}: mean absolute error {loss:.4f}", flush=True)

    model = train(plan, parts["train"], told)
    if hvd.rank() > 0:
        return None
    return np.concatenate([predicted(model, in_memory(parts[part])[0]) for part in ("validation", "test")])


def compare(sizes: Sizes, box: Box, plan: Plan) -> Errors:
    """Train on two processes, fit ridge to the same volumes, and compare on volumes that neither has seen."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "volumes", sizes, box, plan.seed)
        inputs = str(Path(folder) / "volumes")
        environment = {"TF_NUM_INTRAOP_THREADS": "1", "OMP_NUM_THREADS": "1"}
        said = farandole.run(on_ranks, args=(inputs, plan), np=2, env=environment, python_path=[str(ROOT)])[0]
        x, y = zip(*(in_memory(volumes(Path(inputs) / part)) for part in ("train", "test")), strict=True)
        validated = in_memory(volumes(Path(inputs) / "validation"))[1]
    known, asked = summaries(x[0]), summaries(x[1])
    labels, truth = y[0][:, :3], y[1][:, :3]
    shuffled = ridge(known, np.random.default_rng(plan.seed).permutation(labels), asked)
    inside = np.abs(said[: len(validated), :3] - validated[:, :3])
    bars, half = np.quantile(inside, COVERED, axis=0), np.quantile(inside, 0.68, axis=0)
    found = said[len(validated) :, :3]
    drawn = {"truth": truth[:200].tolist(), "network": found[:200].tolist(), "half": half.tolist()}
    covered = float((np.abs(found - truth) <= bars).mean())
    differences = found - truth, ridge(known, labels, asked) - truth, truth
    network, by_ridge, middle = (np.abs(each).mean(axis=0) for each in differences)
    return Errors(network, by_ridge, middle, float(np.abs(shuffled - truth).mean()), drawn, covered)


def figures(errors: Errors) -> dict[str, float]:
    """Errors by name."""
    found = {"shuffled": errors.shuffled, "covered": errors.covered}
    for who, each in (("mean", errors.middle), ("ridge", errors.ridge), ("network", errors.network)):
        found |= {f"{who} {name}": float(each[i]) for i, name in enumerate(RANGES)}
        found[who] = float(each.mean())
    return found


def measure(seed: int, quick: bool) -> Measured:
    """Train and compare; see ``Application``."""
    plan = Plan(seed=seed, epochs=2 if quick else Plan().epochs)
    errors = compare(QUICK if quick else Sizes(), Box(), plan)
    return Measured(figures(errors), errors.drawn)


def findings(results: Results) -> Sequence[Finding]:
    """What the issue asks for, of the mean over the seeds."""

    def mean(name: str) -> float:
        return float(np.mean([each.figures[name] for each in results.values()]))

    def beside(name: str) -> str:
        return f"{mean(f'network{name}'):.4f} against {mean(f'ridge{name}'):.4f}"

    share = mean("network omega_m") / mean("ridge omega_m")
    return [
        Finding("the mean error is not above that of ridge", beside(""), mean("network") <= mean("ridge")),
        Finding("that of Ω_m is at most .9 of it", beside(" omega_m"), share <= 0.9),
        Finding("that of σ_8 is below it", beside(" sigma_8"), mean("network sigma_8") < mean("ridge sigma_8")),
        Finding("that of n_s is below it", beside(" n_s"), mean("network n_s") < mean("ridge n_s")),
        Finding("shuffled labels tell nothing", f"{mean('shuffled'):.3f}", mean("shuffled") > 0.47),
        Finding("error bars for 90 % cover 85 to 95 %", f"{mean('covered'):.3f}", 0.85 <= mean("covered") <= 0.95),
    ]


def main() -> None:
    """Make the curve of error against the number of volumes: a table, ``curve.json`` and ``curve.png``."""
    parser = argparse.ArgumentParser(description="Errors of the network and of ridge against the number of volumes.")
    parser.add_argument("--size", type=int, default=16, help="cells along each side")
    parser.add_argument("--volumes", type=int, nargs="+", default=[750, 1500, 3000])
    parser.add_argument("--epochs", type=int, default=Plan().epochs, help="of 3,000 volumes: all get as many steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/cosmoflow"), help="folder (default: %(default)s)")
    asked = parser.parse_args()
    points: dict[int, dict[str, float]] = {}
    for count in asked.volumes:
        plan = Plan(epochs=round(asked.epochs * Sizes().train / count), seed=asked.seed)
        points[count] = figures(compare(replace(Sizes(), train=count), Box(cells=asked.size), plan))
        for who in ("ridge", "network"):
            said = "  ".join(f"{NAMES[name]} {points[count][f'{who} {name}']:.4f}" for name in RANGES)
            print(f"{count} volumes of {asked.size}³, {who:7}: {said}  mean {points[count][who]:.4f}", flush=True)
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "curve.json").write_text(
        json.dumps({"size": asked.size, "seed": asked.seed, "volumes": points}) + "\n"
    )
    draw_curve(points, asked.out / "curve.png")


if __name__ == "__main__":
    main()
