"""Choose the settings of the batch table, on patches that the table does not show.

    python -m examples.bigearthnet.tune                     # some ten minutes of a core; goes on where it was stopped
    python -m examples.bigearthnet.tune --quick --out out   # tiny, to see that everything works

Every optimizer has as many trials as the others. A trial is one training of the experiment's length, with a seed that
the table does not have; its score is F1 on validation patches, and the best is taken. SGD's base rate is tried at the
base batch, as what becomes of it with a larger one is linear scaling's business; LARS and LAMB are tuned at 32 x B0,
where they are to help. SGD is tried there too, with the same rates, to tell what tuning it again would bring; that
decides nothing.

All trials are in results/tuning.json, of which the batch table takes the best (``tuned``) and its page shows all.
Remove the file to begin anew.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import final

import msgspec
import torch

import farandole.torch as hvd
from examples.bigearthnet.data import VALIDATION_SEED, Data, synthetic
from examples.bigearthnet.experiment import FULL, QUICK, RESULTS, Experiment, Row, rewrite_pages
from examples.bigearthnet.grouped import grouped, in_one_pass
from examples.bigearthnet.training import seeded_model, train

SEED = 1000
RATIOS = (1, 16, 32, 64)
FILE = "tuning.json"
BASE_RATES = (0.2, 0.4, 0.8)
CHOSEN: Mapping[str, Sequence[Row]] = {
    "sgd": [Row("sgd", 1, rate) for rate in BASE_RATES],
    "lars": [Row("lars", 32, 0.1, {"trust_coefficient": trust}) for trust in (0.01, 0.02, 0.04)],
    "lamb": [Row("lamb", 32, rate) for rate in (0.005, 0.01, 0.02)],
}
"""What is tried to choose from, by optimizer."""
BESIDE = [Row("sgd", 32, rate) for rate in BASE_RATES]
"""What is tried to know."""
EVERY = [*chain.from_iterable(CHOSEN.values()), *BESIDE]


@final
@dataclass(frozen=True)
class Trial:
    """One training, and F1 on validation patches at its end."""

    row: Row
    f1: float
    loss: float


@final
@dataclass(frozen=True)
class Tuning:
    """All trials, and what they had in common."""

    experiment: Experiment
    seed: int
    trials: list[Trial]


def main() -> None:
    """Try what was not tried yet, one after the other, and write after each."""
    options = arguments()
    hvd.init()
    torch.set_num_threads(1)
    sizes = QUICK if options.quick else FULL
    data = synthetic(sizes.train_size, sizes.test_size, spectral_gap=sizes.spectral_gap, test_seed=VALIDATION_SEED)
    tuning = begun(options.out, replace(sizes, seeds=()))
    for row in EVERY:
        if all(row != each.row for each in tuning.trials):
            tried = trial(sizes, row, data)
            print(f"{describe(row)}: F1 {tried.f1:.3f}", flush=True)
            tuning.trials.append(tried)
            tuning.trials.sort(key=lambda each: EVERY.index(each.row))
            write(tuning, options.out)
    for row in best(tuning).values():
        print(f"best: {describe(row)}")
    if options.out == RESULTS:
        rewrite_pages()


def begun(folder: Path, sizes: Experiment) -> Tuning:
    """What was tried at these sizes before."""
    nothing = Tuning(sizes, SEED, [])
    known = read(folder) if (folder / FILE).exists() else nothing
    return known if replace(known, trials=[]) == nothing else nothing


def trial(experiment: Experiment, row: Row, data: Data) -> Trial:
    """Train one row, all its workers in one pass."""
    plan = experiment.plan(row, SEED)
    outcome = train(grouped(seeded_model(plan, data), plan.worker_batch), in_one_pass(plan), data)
    return Trial(row, outcome.f1, outcome.losses[-1])


def best(tuning: Tuning) -> dict[str, Row]:
    """By optimizer, the row with the highest score."""
    return {
        optimizer: max((each for each in tuning.trials if each.row in grid), key=lambda each: each.f1).row
        for optimizer, grid in CHOSEN.items()
    }


def tuned(experiment: Experiment) -> Experiment:
    """With the rows of the table: SGD's base rate at all batches, and the others where they were tuned."""
    chosen = best(read())
    sgd = [replace(chosen["sgd"], ratio=ratio) for ratio in RATIOS]
    return replace(experiment, rows=(*sgd, chosen["lars"], chosen["lamb"]))


def write(tuning: Tuning, folder: Path) -> None:
    """For ``read``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_bytes(msgspec.json.format(msgspec.json.encode(tuning), indent=1) + b"\n")


def read(folder: Path = RESULTS) -> Tuning:
    """What was tried last."""
    return msgspec.json.decode((folder / FILE).read_bytes(), type=Tuning)


def describe(row: Row) -> str:
    """``LARS at 32 x B0, base rate 0.1, trust_coefficient 0.02``."""
    settings = "".join(f", {name} {value:g}" for name, value in row.settings.items())
    return f"{row.optimizer.upper()} at {row.ratio} x B0, base rate {row.base_lr:g}{settings}"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.bigearthnet.tune", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes: what comes out means nothing")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of tuning.json (default: %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
