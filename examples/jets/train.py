"""Train a network to tell gluino pairs from QCD jets, on as many workers as you like.

    farandole run -np 2 python -m examples.jets.train
    farandole run -np 2 --min-np 1 --max-np 4 python -m examples.jets.train --checkpoints runs/jets     # elastic
    farandole run -np 2 python -m examples.jets.train --events 96000 --model models/jets                # 64,000 train
    farandole run -np 8 -H a:4,b:4 python -m examples.jets.train --data /lustre/atlas-rpv-images --stage --limit 20GB

Without --data events are made, by Pythia 8 where that is installed. At the end stands whether training has waited for
its input, and why; --model leaves the network with a fact sheet, for ``farandole models``.
"""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np

import farandole.keras as hvd
from examples.common.training import EpochBar, options
from examples.jets.collisions import Array
from examples.jets.images import Plan, generator, images, make
from examples.jets.training import Hyper, arrays, logits, train
from farandole import models


def main() -> None:
    """Parse, train, and say how it went; rank 0 speaks."""
    parser = options(__doc__, epochs=4)
    parser.add_argument("--events", type=int, help="number to make (default: 9000, of which 6000 to train)")
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="publish the network there: farandole models show")
    asked = parser.parse_args()
    if asked.model and asked.model.exists():
        parser.error(f"--model {asked.model}: there is something already, and a model is written once")
    hvd.init()
    plan = Plan(asked.events or (900 if asked.quick else 9000), 0, asked.seed)
    folder = asked.data or Path("out") / plan.name
    if asked.data is None:
        make(folder, plan, hvd.rank(), hvd.size())  # each rank a share of the files
        hvd.barrier()
    with EpochBar(asked.epochs, shown=hvd.rank() == 0) as bar:

        def after_epoch(epoch: int, loss: float, accuracy: float) -> None:
            bar.update(epoch, f"loss {loss:.3f}, validation accuracy {accuracy:.4f}")

        kept = {name: getattr(asked, name) for name in ("stage", "limit", "checkpoints", "ledger")}
        model = train(folder, Hyper(), asked.epochs, asked.seed, after_epoch, **kept)
        right = (logits(model, folder, "test") > 0) == arrays(folder, "test")[1]
        report = hvd.data.report()  # on all ranks, which make it together
        bar.print(f"accuracy {right.mean():.4f} on {len(right)} test events of {asked.data or generator()}")
        bar.print(report)
    if asked.model:
        publish(asked.model, model, images(folder, "train"), right, asked.seed)
    hvd.shutdown()


def publish(folder: Path, model: keras.Model, source: hvd.data.Source, right: Array, seed: int) -> None:
    """Leave the model with its facts; the interval is that of so many events, not of other seeds."""
    if hvd.rank() == 0:
        half = 1.96 * float(np.std(right)) / len(right) ** 0.5
        models.save(
            folder,
            model,
            data=source,
            figures={"accuracy": (float(np.mean(right)), half)},
            seeds={"seed": seed},
            intro="Tells pairs of gluinos from jets of QCD, by an image of what the calorimeter has seen.",
            task="image-classification",
            methods=["convolutional network"],
        )


if __name__ == "__main__":
    main()
