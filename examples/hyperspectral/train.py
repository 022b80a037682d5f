r"""Train a 3-D CNN on the pixels of a hyperspectral scene, on as many workers as you like, which may come and go.

    farandole run -np 2 python -m examples.hyperspectral.train
    farandole run -np 2 python -m examples.hyperspectral.train --split random --network lange --epochs 20
    farandole run -np 2 --min-np 1 --max-np 4 python -m examples.hyperspectral.train --stage \
        --data /lustre/aviris --scene Indian_pines_corrected.mat --cube indian_pines_corrected --labels indian_pines_gt

Without --data a scene is made, as GeoTIFF in out/. At the end stands the accuracy on pixels that were not trained on.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from examples.common.training import EpochBar, made_once, options
from examples.hyperspectral.data import SPLITS, Patches, read, write
from examples.hyperspectral.model import NETWORKS, accuracy
from examples.hyperspectral.scene import make
from farandole import keras as hvd


def main() -> None:
    """Parse, train, and say how it went; rank 0 speaks."""
    parser = options(__doc__, epochs=0)
    parser.add_argument("--scene", default="scene.tif", help="file in --data: .tif (the default), .mat or .npy")
    parser.add_argument("--cube", default="cube", help="its name in a .mat")
    parser.add_argument("--labels", default="labels", help="their name in a .mat")
    parser.add_argument("--split", choices=tuple(SPLITS), default="region", help="how pixels are chosen")
    parser.add_argument("--network", choices=tuple(NETWORKS), default="small")
    asked = parser.parse_args()
    hvd.init()
    name = f"hyperspectral-{asked.seed}"
    folder = made_once(asked.data, name, hvd, lambda folder: write(make(asked.seed), folder / "scene.tif"))
    scene = read(folder / asked.scene, asked.cube, asked.labels, asked.stage, asked.limit)
    network = NETWORKS[asked.network]
    network = replace(network, epochs=asked.epochs or (2 if asked.quick else network.epochs))
    seen, unseen = SPLITS[asked.split](scene, np.random.default_rng(asked.seed))
    count = 4 * network.batch if asked.quick else len(seen) // network.batch * network.batch
    train, test = Patches(scene, seen[:count], network.patch), Patches(scene, unseen, network.patch)
    with EpochBar(network.epochs, shown=hvd.rank() == 0) as bar:
        bar.print(f"{len(train)} pixels of {train.classes} classes, {len(test)} to test on, {hvd.size()} workers")
        how = {"after_epoch": bar.loss, "checkpoints": asked.checkpoints, "ledger": asked.ledger}
        model = network.trained(train, asked.seed, **how)
        bar.print(f"accuracy {accuracy(model, test):.3f}, pixels chosen by {asked.split}")
        bar.print(hvd.data.report())


if __name__ == "__main__":
    main()
