"""Train a network to tell gluino pairs from QCD jets, on as many workers as you like.

    farandole run -np 2 python -m examples.jets.train
    farandole run -np 2 --min-np 1 --max-np 4 python -m examples.jets.train --checkpoints runs/jets     # elastic
    farandole run -np 2 python -m examples.jets.train --events 96000                                    # 64,000 train
    farandole run -np 8 -H a:4,b:4 python -m examples.jets.train --data /lustre/atlas-rpv-images --stage --limit 20GB

Without --data events are made, by Pythia 8 where that is installed. At the end stands whether training has waited for
its input, and why.
"""

from __future__ import annotations

import farandole.keras as hvd
from examples.common.training import EpochBar, made_once, options
from examples.jets.images import Plan, generator, make
from examples.jets.training import Hyper, arrays, logits, train


def main() -> None:
    """Parse, train, and say how it went; rank 0 speaks."""
    parser = options(__doc__, epochs=4)
    parser.add_argument("--events", type=int, help="number to make (default: 9000, of which 6000 to train)")
    asked = parser.parse_args()
    hvd.init()
    plan = Plan(asked.events or (900 if asked.quick else 9000), 0, asked.seed)
    folder = made_once(asked.data, plan.name, hvd, lambda folder: make(folder, plan))
    with EpochBar(asked.epochs, shown=hvd.rank() == 0) as bar:

        def after_epoch(epoch: int, loss: float, accuracy: float) -> None:
            bar.update(epoch, f"loss {loss:.3f}, validation accuracy {accuracy:.4f}")

        kept = {name: getattr(asked, name) for name in ("stage", "limit", "checkpoints", "ledger")}
        model = train(folder, Hyper(), asked.epochs, asked.seed, after_epoch, **kept)
        right = (logits(model, folder, "test") > 0) == arrays(folder, "test")[1]
        report = hvd.data.report()  # on all ranks, which make it together
        bar.print(f"accuracy {right.mean():.4f} on {len(right)} test events of {asked.data or generator()}")
        bar.print(report)
    hvd.shutdown()


if __name__ == "__main__":
    main()
