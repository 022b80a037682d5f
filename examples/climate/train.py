r"""Train a network that marks tropical cyclones and atmospheric rivers in states of the atmosphere.

    farandole run -np 2 python -m examples.climate.train
    farandole run -np 2 python -m examples.climate.train --model deeplab --weighting sqrt --lag 1 --larc
    farandole run -np 2 python -m examples.climate.train --form netcdf --checkpoints runs/climate
    farandole run -np 64 -H a:8,b:8,... python -m examples.climate.train --data /lustre/deepcam --stage --limit 500GB

Without --data states are made in out/ first. --data names a folder as DeepCAM's, with train/, validation/ and stats.h5.
Workers may come and go: farandole run -np 2 --min-np 1 --max-np 4 ...
"""

from __future__ import annotations

import torch

import farandole.torch as hvd
from examples.climate.files import load, write
from examples.climate.labels import CLASSES
from examples.climate.training import MODELS, WEIGHTINGS, Plan, train
from examples.common.training import EpochBar, made_once, options


def main() -> None:
    """Parse, train, and say how it went; rank 0 speaks."""
    parser = options(__doc__, epochs=10)
    parser.add_argument("--model", choices=tuple(MODELS), default="tiramisu")
    parser.add_argument("--weighting", choices=tuple(WEIGHTINGS), default="none", help="of classes, by frequency")
    parser.add_argument("--lag", type=int, default=0, help="by how many steps gradients are late")
    parser.add_argument("--larc", action="store_true", help="layer-wise rates, in place of Adam")
    parser.add_argument("--global-batch", type=int, default=4)
    parser.add_argument("--form", choices=("hdf5", "netcdf"), default="hdf5", help="of states that are made")
    asked = parser.parse_args()
    hvd.init()
    torch.set_num_threads(1)
    plan = Plan(asked.model, asked.weighting, asked.lag, asked.larc, asked.epochs, asked.global_batch, asked.seed)
    train_on, test_on = (24, 8) if asked.quick else (200, 40)
    folder = made_once(
        asked.data,
        f"climate-{asked.form}-{train_on}-{asked.seed}",
        hvd,
        lambda made: write(made, train=train_on, validation=test_on, seed=asked.seed, form=asked.form),
    )
    states, others = (load(folder, part, asked.stage, asked.limit) for part in ("train", "validation"))
    with EpochBar(plan.epochs, shown=hvd.rank() == 0) as bar:

        def after_epoch(epoch: int, loss: float, score: float) -> None:
            bar.update(epoch, f"loss {loss:.4f} mean IoU {score:.3f}")

        outcome = train(plan, states, others, after_epoch, checkpoints=asked.checkpoints, ledger=asked.ledger)
        each = ", ".join(f"{name} {value:.3f}" for name, value in zip(CLASSES, outcome.iou, strict=True))
        bar.print(f"mean IoU {outcome.scores[-1]:.4f} on other states: {each}")
        bar.print(hvd.data.report())  # of all ranks, which make it together
    hvd.shutdown()


if __name__ == "__main__":
    main()
