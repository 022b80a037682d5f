"""A training of an elastic job with NumPy, for tests: ``python elastic_training.py FOLDER NP``.

Rank 1 is killed in the middle of a step between two commits, in its first generation; the training goes on until
another worker has come and trained. All that is drawn is the same on all ranks, so the oracle, ``undisturbed``, is one
process that knows nothing of this.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from farandole.adapters.numpy import verbs
from farandole.collective import ReduceOp, Reduction
from farandole.numpy.elastic import ElasticSampler, NumpyState, run
from farandole.runtime.session.init import current, init, shutdown
from farandole.runtime.session.process_sets import global_process_set

STEPS, COMMIT_EVERY, KILLED_AT, GLOBAL_BATCH, LENGTH = 12, 4, 6, 12, 10**9

Values: TypeAlias = npt.NDArray[np.float64]


@final
class Model:
    """Linear regression by SGD with momentum, whose velocities are made in the first step."""

    def __init__(self) -> None:
        np.random.seed(5)
        self.weights = {"w": np.zeros((3, 1)), "b": np.zeros(1)}
        self.layers = [self.weights["w"].T[:, ::2]]  # a view: who refers to weights must see what comes from elsewhere
        self.velocity: dict[str, Values] = {}
        self.random = np.random.Generator(np.random.MT19937(3))
        self.sums = np.zeros((4, 3)).T  # its elements lie in another order

    def step(self, rank: int, size: int, reduce: Callable[[Values], Any]) -> None:
        """One, on this rank's rows."""
        x = self.random.normal(size=(GLOBAL_BATCH, 3))
        y = x @ np.array([[1.0], [2.0], [3.0]]) + np.random.normal()
        mine = slice(rank, None, size)
        error = x[mine] @ self.weights["w"] + self.weights["b"] - y[mine]
        for name, gradient in (("w", x[mine].T @ error), ("b", error.sum(0))):
            reduce(gradient)
            velocity = self.velocity.setdefault(name, np.zeros_like(gradient))
            velocity *= 0.9
            velocity += gradient / GLOBAL_BATCH
            self.weights[name] -= 0.05 * velocity
        self.sums += self.weights["w"]  # training itself soon forgets that a step was wrong

    def result(self) -> dict[str, Any]:
        """What it has."""
        names = sorted(self.velocity)
        tensors = [*(self.weights[n] for n in names), *(self.velocity[n] for n in names), *self.layers, self.sums]
        return {"values": [each.tolist() for each in tensors], "draw": [self.random.random(), np.random.random()]}


def undisturbed(steps: int) -> dict[str, Any]:
    """Train alone."""
    model = Model()
    for _ in range(steps):
        model.step(0, 1, lambda _: None)
    return model.result()


def main(folder: str, np_wanted: int) -> None:
    """One worker."""
    init()
    model = Model()
    sampler = ElasticSampler(range(LENGTH), shuffle=False)
    state: Any = NumpyState(
        weights=model.weights,
        velocity=model.velocity,
        sums=model.sums,
        random=model.random,
        sampler=sampler,
        step=0,
        until=-1,
    )

    @run
    def train(state: Any) -> None:
        topology = current().topology
        if topology.generation > 1 and topology.size == np_wanted and state.until < 0:
            state.until = state.step + 2 * COMMIT_EVERY
        while state.step < max(STEPS, state.until) or state.until < 0:

            def reduce(gradient: Values) -> None:
                if (state.step, topology.rank, topology.generation) == (KILLED_AT, 1, 1):
                    os.kill(os.getpid(), signal.SIGKILL)
                verbs.allreduce([gradient], None, Reduction(ReduceOp.SUM), global_process_set, in_place=True).run()

            model.step(topology.rank, topology.size, reduce)
            sampler.record_batch(state.step, GLOBAL_BATCH // topology.size)
            state.step += 1
            if state.step % COMMIT_EVERY == 0:
                state.commit()

    train(state)
    generation = current().topology.generation
    shutdown()
    said = {"steps": state.step, "generation": generation, "processed": sampler.processed_num, **model.result()}
    Path(folder, f"result-{os.getpid()}.json").write_text(json.dumps([said, undisturbed(state.step)]))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
