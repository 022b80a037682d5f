"""One job of ``test_climate_training``: ``farandole run -np N python climate_on_ranks.py DATA OUT``.

Rank 0 leaves ``N-LAG.pt`` for each lag: weights, losses, and IoU on other states; all ranks leave a ledger.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import farandole.torch as hvd
from examples.climate.files import load
from examples.climate.train import Plan, train

PLANS = [Plan(weighting=0.5, lag=lag, epochs=2, seed=3) for lag in (0, 1)]


def main() -> None:
    """Train each plan."""
    data, out = map(Path, sys.argv[1:])
    hvd.init()
    for plan in PLANS:
        ledger = out / f"ledger-{hvd.size()}-{plan.lag}"
        ledger.mkdir(exist_ok=True)
        state = train(plan, load(data, "train"), load(data, "validation"), ledger=str(ledger))
        if hvd.rank() == 0:
            found = {"model": state.model.state_dict(), "losses": state.losses, "iou": state.ious[-1]}
            torch.save(found, out / f"{hvd.size()}-{plan.lag}.pt")


if __name__ == "__main__":
    main()
