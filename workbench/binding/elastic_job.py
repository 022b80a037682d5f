"""Elastic job of a binding: a worker is killed in the middle of a step and replaced, and the result stays the same.

    # worker.py FOLDER: farandole run -np 2 --min-np 1 --max-np 2 python worker.py FOLDER
    train(NumpyUnderTest(), sys.argv[1], size=2)

    # afterwards
    assert problems(folder, size=2) == []

Rank 1 ends by SIGKILL between two commits, while the others wait for its gradients. The training goes on until a later
generation of ``size`` workers has trained. Its batches do not depend on the workers, so the oracle is one process that
trains alone, without Farandole. A function that the framework compiles uses the present number of ranks wherever it is
called: by a worker that joined later and is still alone, in a reset callback, and in every generation.
"""

from __future__ import annotations

import json
import os
import signal
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from farandole.runtime.session.init import current
from workbench.binding.training import TRUE
from workbench.binding.under_test import BindingUnderTest, Trainer, Values

LENGTH, GLOBAL_BATCH = 60, 12
UNHURRIED_S = 0.05
"""Pause of a step while a newcomer is awaited, because it needs the processor to load a framework."""
STEPS, COMMIT_EVERY, KILLED_AT = 12, 4, 6
TOLERANCE = 1e-6
"""Tolerance of numbers of about 1. Keras computes each rank's loss, and so its gradients, in float32 for any model."""


def train(b: BindingUnderTest, folder: str, size: int) -> None:
    """Train as one worker; writes the result, beside the result of one process alone."""
    b.hvd.init()
    trainer, sampler = b.trainer("sgd"), b.elastic.ElasticSampler(range(LENGTH), seed=3)
    assert trainer is not None, "a binding without a training step has no elastic job"
    state = trainer.state(sampler=sampler, done=0, until=-1, seen=[0] * LENGTH, order=0, sums={})
    sizes, note = _noted_sizes(b, state)

    @b.elastic.run  # type: ignore[untyped-decorator] # it is whatever the binding has
    def until_a_newcomer_has_trained(state: Any) -> None:
        topology = current().topology
        note()
        if topology.generation > 1 and topology.size == size and state.until < 0:
            state.until = state.done + 2 * COMMIT_EVERY  # the newcomer trains and commits, too
        while state.done < max(STEPS, state.until) or state.until < 0:
            if (state.done, topology.rank, topology.generation) == (KILLED_AT, size - 1, 1):
                os.kill(os.getpid(), signal.SIGKILL)  # the others wait for its gradients in this step
            taken = _next(sampler, state.done)
            trainer.step(*_rows(taken[topology.rank :: topology.size]))
            sampler.record_batch(state.done, GLOBAL_BATCH // topology.size)
            state.seen = [count + (index in taken) for index, count in enumerate(state.seen)]
            state.order = zlib.crc32(bytes(taken), state.order)
            state.sums = _added(state.sums, trainer)
            state.done += 1
            if state.done % COMMIT_EVERY == 0:
                state.commit()
            # All ranks of a generation see the same size, so all of them sleep, and none waits for another meanwhile.
            if topology.size < size:
                time.sleep(UNHURRIED_S)

    until_a_newcomer_has_trained(state)
    said = {
        "generation": current().topology.generation, "sizes": sizes, "processed": sampler.processed_num,
        "epoch": sampler.epoch, "seen": state.seen, "done": state.done,
        **_result(trainer, state.order, state.sums),
    }  # fmt: skip
    b.hvd.shutdown()
    Path(folder, f"result-{os.getpid()}.json").write_text(json.dumps([said, _undisturbed(b, state.done)]))


def problems(folder: str | Path, size: int) -> list[str]:
    """All errors in the files that the workers of a job have written."""
    results = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("result-*.json"))]
    found = [] if len(results) == size else [f"{len(results)} workers have ended well, and not {size}"]
    for mine, expected in results:
        steps = mine["done"]
        epochs, rest = divmod(steps * GLOBAL_BATCH, LENGTH)
        counts = sorted([epochs] * (LENGTH - rest) + [epochs + 1] * rest)
        checks = {
            "one of the workers has not begun anew": mine["generation"] >= 2,
            "it has ended between two commits, or too early": steps >= STEPS and steps % COMMIT_EVERY == 0,
            "samples were lost, or counted twice": sorted(mine["seen"]) == counts,
            "the sampler is not where the steps are": mine["epoch"] * LENGTH + mine["processed"]
            == steps * GLOBAL_BATCH,
            "a compiled function has another number of ranks in it": all(one == other for one, other in mine["sizes"]),
            "samples came in another order": mine["order"] == expected["order"],
            "ranks have other weights": mine["weights"] == results[0][0]["weights"],
        }
        found += [f"{wrong}: {mine}" for wrong, is_well in checks.items() if not is_well]
        for kind in ("weights", "sums"):
            for name, values in expected[kind].items():
                one = mine[kind][name]
                if not np.allclose(one, values, TOLERANCE, TOLERANCE):
                    found.append(f"{kind} of {name} are {one} after {steps} steps, where one worker has {values}")
    return found


def _noted_sizes(b: BindingUnderTest, state: Any) -> tuple[list[tuple[float, int]], Callable[[], None]]:
    """Pairs of the number of ranks in a compiled function and the true number, one for each note."""
    sized, sizes = b.compiled(lambda x: x * b.hvd.size()), list[tuple[float, int]]()

    def note() -> None:
        sizes.append((float(b.values(sized(b.make([1.0])))[0]), b.size))

    note()
    state.register_reset_callbacks([note])
    return sizes, note


def _undisturbed(b: BindingUnderTest, steps: int) -> dict[str, Any]:
    """Train alone."""
    trainer, sampler = b.trainer("sgd", distributed=False), b.elastic.ElasticSampler(range(LENGTH), seed=3)
    assert trainer is not None
    order, sums = 0, dict[str, Any]()
    for step in range(steps):
        taken = _next(sampler, step)
        trainer.step(*_rows(taken))
        sampler.cursor.record(GLOBAL_BATCH)
        order, sums = zlib.crc32(bytes(taken), order), _added(sums, trainer)
    return _result(trainer, order, sums)


def _next(sampler: Any, step: int) -> list[int]:
    """The samples of one step of all ranks."""
    sampler.set_epoch(step * GLOBAL_BATCH // LENGTH)
    return list(sampler.remaining_indices[:GLOBAL_BATCH])


def _rows(indices: list[int]) -> tuple[Values, Values]:
    random = np.random.default_rng(1)
    x = random.normal(size=(LENGTH, 3))
    y = x @ TRUE + 0.1 * random.normal(size=(LENGTH, 1))
    return x[indices], y[indices]


def _added(sums: dict[str, Any], trainer: Trainer) -> dict[str, Any]:
    """The sums of all weights so far: the weights alone soon hide that a step was wrong."""
    return {name: (np.array(sums.get(name, 0.0)) + each).tolist() for name, each in trainer.weights().items()}


def _result(trainer: Trainer, order: int, sums: dict[str, Any]) -> dict[str, Any]:
    return {"weights": {n: w.tolist() for n, w in trainer.weights().items()}, "order": order, "sums": sums}
