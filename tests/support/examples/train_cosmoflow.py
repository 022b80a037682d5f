"""Train the network of ``examples/cosmoflow`` on the ranks that there are: ``train_cosmoflow.py DATA RESULT``.

Rank 0 writes what came of it. Nothing is dropped out, which each rank would draw for itself.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import farandole.keras as hvd
from examples.cosmoflow.data import volumes
from examples.cosmoflow.training import Plan, train

PLAN = Plan(epochs=2, global_batch=24, dropout=0.0, seed=3)


def main(folder: str, result: str) -> None:
    """Train, and write it down."""
    hvd.init()
    losses: list[float] = []
    model = train(PLAN, volumes(Path(folder) / "train"), lambda _, loss: losses.append(loss))
    if hvd.rank() == 0:
        found: dict[str, Any] = {f"{i:02} {v.path.split('/')[-1]}": v.numpy() for i, v in enumerate(model.variables)}
        np.savez(result, losses=losses, **found)
    hvd.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
