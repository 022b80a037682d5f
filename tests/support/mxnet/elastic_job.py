"""An elastic training with MXNet: ``python elastic_job.py FOLDER NP``.

Rank 1 is killed in the middle of a step between two commits, in its first generation; the training goes on until
another worker has come and trained. Rows are those of the step, whoever takes them, so the oracle is one process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore", category=DeprecationWarning)  # MXNet 1.9 asks NumPy for np.bool

import mxnet as mx  # noqa: E402
import numpy as np  # noqa: E402

import farandole.mxnet as hvd  # noqa: E402
from farandole.mxnet.elastic import MxnetState, run  # noqa: E402
from farandole.runtime.session.init import current  # noqa: E402

STEPS, COMMIT_EVERY, KILLED_AT, GLOBAL_BATCH = 12, 4, 6, 12


def made(trainer: Any) -> tuple[Any, Any]:
    """A network whose first layer learns its shape in the first pass, and its trainer."""
    mx.random.seed(5)
    net = mx.gluon.nn.Sequential()
    net.add(mx.gluon.nn.Dense(4, activation="tanh"), mx.gluon.nn.Dense(1))
    net.initialize(mx.init.Xavier())
    return net, trainer(net.collect_params(), "adam", {"learning_rate": 0.05})


def step(net: Any, trainer: Any, sums: Any, number: int, rank: int, size: int) -> None:
    """One, on this rank's rows; ``sums`` remember a step that was wrong, which training soon forgets."""
    x = mx.nd.array(np.random.default_rng(number).normal(size=(GLOBAL_BATCH, 3))[rank::size])
    with mx.autograd.record():
        loss = (net(x)[:, 0] - x[:, 0] * 2).square()
    loss.backward()
    trainer.step(len(x))
    sums += net[1].weight.data().astype("float64")[0]


def values(net: Any, sums: Any) -> list[Any]:
    """Values of the parameters, and of the sums."""
    return [array.asnumpy().tolist() for array in (sums, *(p.data() for p in net.collect_params().values()))]


def main(folder: str, np_wanted: int) -> None:
    """One worker."""
    hvd.init()
    net, trainer = made(hvd.DistributedTrainer)
    sums = mx.nd.zeros(4, dtype="float64")
    state: Any = MxnetState(net=net, trainer=trainer, sums=sums, step=0, until=-1)

    @run
    def train(state: Any) -> None:
        topology = current().topology
        if topology.generation > 1 and topology.size == np_wanted and state.until < 0:
            state.until = state.step + 2 * COMMIT_EVERY
        while state.step < max(STEPS, state.until) or state.until < 0:
            if (state.step, topology.rank, topology.generation) == (KILLED_AT, 1, 1):
                os.kill(os.getpid(), signal.SIGKILL)
            step(net, trainer, sums, state.step, topology.rank, topology.size)
            state.step += 1
            if state.step % COMMIT_EVERY == 0:
                state.commit()

    train(state)
    found = {"steps": state.step, "generation": current().topology.generation, "values": values(net, sums)}
    hvd.shutdown()
    alone, plain = made(lambda *options: mx.gluon.Trainer(*options, kvstore=None))
    sums = mx.nd.zeros(4, dtype="float64")
    for number in range(state.step):
        step(alone, plain, sums, number, 0, 1)
    Path(folder, f"result-{os.getpid()}.json").write_text(json.dumps({**found, "alone": values(alone, sums)}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
