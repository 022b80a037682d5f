r"""Train a forecast of Lorenz-96 or of the sea's temperature, on as many workers as you like, which may come and go.

    farandole run -np 2 python -m examples.timeseries.train
    farandole run -np 2 python -m examples.timeseries.train --task buoy
    farandole run -np 2 --min-np 1 --max-np 4 python -m examples.timeseries.train --data /lustre/mine --stage

Without --data the series are made, as Zarr stores in out/. A folder of your own has train.zarr and test.zarr, each with
an array x of members x steps x sites. At the end stands the error at each horizon beside that of persistence.
"""

from __future__ import annotations

from dataclasses import replace

import farandole.jax as hvd
from examples.common.training import EpochBar, made_once, options
from examples.timeseries.baselines import errors, persistence
from examples.timeseries.data import loaded
from examples.timeseries.experiment import PLANS, TASKS, make
from examples.timeseries.training import forecasts, train


def main() -> None:
    """Parse, train, and say how it went; rank 0 speaks."""
    parser = options(__doc__, epochs=0)
    parser.add_argument("--task", choices=tuple(TASKS), default="lorenz96")
    asked = parser.parse_args()
    hvd.init()
    name = f"{asked.task}-{asked.seed}" + ("-quick" if asked.quick else "")
    folder = made_once(asked.data, name, hvd, lambda folder: make(asked.task, folder, asked.seed, asked.quick))
    windows, test = loaded(folder, TASKS[asked.task], asked.stage, asked.limit)
    plan = PLANS[asked.task]
    plan = replace(plan, epochs=asked.epochs or (2 if asked.quick else plan.epochs), seed=asked.seed)
    with EpochBar(plan.epochs, shown=hvd.rank() == 0) as bar:
        bar.print(f"{len(windows)} windows to train on, {len(test)} to test on, {hvd.size()} workers")
        params = train(windows, plan, bar.loss, checkpoints=asked.checkpoints, ledger=asked.ledger)
        lags, targets = test.all()
        ours, dull = errors(forecasts(params, lags), targets), errors(persistence(lags, test.task), targets)
        for horizon, one, other in zip(test.task.horizons, ours, dull, strict=True):
            bar.print(f"RMSE {one:.4f} after {horizon:2} steps; persistence {other:.4f}")
        bar.print(hvd.data.report())


if __name__ == "__main__":
    main()
