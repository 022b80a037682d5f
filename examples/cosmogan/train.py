"""Train two networks against each other until one of them makes maps of the universe.

    farandole run -np 2 python -m examples.cosmogan.train
    farandole run -np 2 --min-np 1 --max-np 4 python -m examples.cosmogan.train --checkpoints runs/cosmogan   # elastic
    farandole run -np 8 -H a:4,b:4 python -m examples.cosmogan.train --data /lustre/maps --stage --limit 20GB

Without --data maps are made in out/ first. --data names a folder with train.npy and test.npy: maps x rows x columns,
densities of mean 1.
"""

from __future__ import annotations

import torch

import farandole.torch as hvd
from examples.common.training import EpochBar, made_once, options, staged
from examples.cosmogan.maps import QUICK, Sizes, in_memory, maps, write
from examples.cosmogan.measures import compared
from examples.cosmogan.training import Plan, generated, train


def main() -> None:
    """Parse, train, and say how it went; rank 0 speaks."""
    parser = options(__doc__, epochs=Plan().epochs)
    parser.add_argument("--global-batch", type=int, default=Plan().global_batch, help="multiple of 8 times workers")
    asked = parser.parse_args()
    hvd.init()
    torch.set_num_threads(1)
    sizes, plan = QUICK if asked.quick else Sizes(), Plan(asked.epochs, asked.global_batch, seed=asked.seed)
    name = f"cosmogan-{sizes.train}-{asked.seed}"
    folder = made_once(asked.data, name, hvd, lambda made: write(made, sizes, asked.seed))
    source = staged(maps(folder / "train.npy"), asked.stage, asked.limit)
    unseen = maps(folder / "test.npy")
    with EpochBar(plan.epochs, shown=hvd.rank() == 0) as bar:

        def told(epoch: int, loss_d: float, loss_g: float) -> None:
            bar.update(epoch, f"discriminator {loss_d:.3f} generator {loss_g:.3f}")

        generator = train(plan, source, told, checkpoints=asked.checkpoints, ledger=asked.ledger)
        if hvd.rank() == 0:
            real = in_memory(unseen)
            found = compared(generated(generator, len(real), asked.seed), real)
            bar.print(f"off by {found['error']:.3f} in log P, {found['ks']:.4f} in pixels (Kolmogorov-Smirnov)")
        bar.print(hvd.data.report())  # of all ranks, which make it together
    hvd.shutdown()


if __name__ == "__main__":
    main()
