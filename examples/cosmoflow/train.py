r"""Train a 3-D network to read three parameters of the universe from a volume of it.

    farandole run -np 2 python -m examples.cosmoflow.train
    farandole run -np 2 python -m examples.cosmoflow.train --size 32 --epochs 20 --checkpoints runs/cosmoflow
    farandole run -np 64 -H a:8,b:8,... python -m examples.cosmoflow.train \
        --data /lustre/cosmoUniverse_2019_05_4parE_tf --redshifts 4 --model benchmark --stage --limit 500GB

Without --data volumes are made in out/ first. --data names a folder with a folder train, and validation or test, of
files of the benchmark. Workers may come and go: farandole run -np 2 --min-np 1 --max-np 4 ...
"""

from __future__ import annotations

import keras
import numpy as np

import farandole.keras as hvd
from examples.common.training import EpochBar, made_once, options, staged
from examples.common.volumes import Box
from examples.cosmoflow.data import QUICK, Sizes, in_memory, volumes, write
from examples.cosmoflow.model import MODELS
from examples.cosmoflow.training import Plan, predicted, train


def main() -> None:
    """Parse, train, and say how it went; rank 0 speaks."""
    parser = options(__doc__, epochs=Plan().epochs)
    parser.add_argument("--model", choices=tuple(MODELS), default="statistics")
    parser.add_argument("--size", type=int, default=16, help="cells along each side of volumes that are made")
    parser.add_argument("--volumes", type=int, default=3000, help="number of those to train on")
    parser.add_argument("--redshifts", type=int, default=2, help="of each volume; the benchmark's have 4")
    parser.add_argument("--global-batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=3e-3)
    asked = parser.parse_args()
    hvd.init()
    box, sizes = Box(cells=asked.size), QUICK if asked.quick else Sizes(train=asked.volumes)
    plan = Plan(
        epochs=asked.epochs, global_batch=asked.global_batch, rate=asked.rate, seed=asked.seed, model=asked.model
    )
    name = f"cosmoflow-{asked.size}-{sizes.train}-{asked.seed}"
    folder = made_once(asked.data, name, hvd, lambda made: write(made, sizes, box, asked.seed))
    source = staged(volumes(folder / "train", asked.redshifts), asked.stage, asked.limit)
    with EpochBar(plan.epochs, shown=hvd.rank() == 0) as bar:

        def told(epoch: int, loss: float) -> None:
            bar.update(epoch, f"mean absolute error {loss:.4f}")

        model = train(plan, source, told, checkpoints=asked.checkpoints, ledger=asked.ledger)
        held = next((folder / part for part in ("test", "validation") if (folder / part).is_dir()), None)
        if held is not None:
            unseen = volumes(held, asked.redshifts)  # rank 0 lists the files for all
            bar.print(score(model, unseen) if hvd.rank() == 0 else "")
        bar.print(hvd.data.report())  # of all ranks, which make it together
    hvd.shutdown()


def score(model: keras.Model, unseen: hvd.data.Source) -> str:
    """Line with the errors of a model on volumes that it has not seen."""
    x, y = in_memory(unseen)
    error = np.abs(predicted(model, x) - y).mean(axis=0)
    return f"test error {error[:3].mean():.4f}: Ω_m {error[0]:.4f}  σ_8 {error[1]:.4f}  n_s {error[2]:.4f}"


if __name__ == "__main__":
    main()
