"""What ``batch_table.py`` runs: the same training with larger and larger batches, by several optimizers and seeds.

    results = farandole.run(run_all, args=(tuned(FULL), made_by), np=2)[0]

One job does it all. Its processes play as many workers as a row needs, and split what they play evenly.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

import msgspec
import torch

import farandole.torch as hvd
from examples.bigearthnet.data import Data, synthetic
from examples.bigearthnet.training import Outcome, Plan, seeded_model, train

RESULTS = Path(__file__).resolve().parent / "results"
"""What the page in docs/ shows."""


@final
@dataclass(frozen=True)
class Row:
    """A row of the table: who takes steps of ``ratio`` x the base batch, from which base rate."""

    optimizer: str
    ratio: int
    base_lr: float
    settings: Mapping[str, float] = field(default_factory=dict)


@final
@dataclass(frozen=True)
class Experiment:
    """The size of everything, and the rows, which ``tune.tuned`` fills in."""

    train_size: int
    test_size: int
    spectral_gap: float
    base_workers: int
    worker_batch: int
    epochs: int
    warmup_epochs: float
    seeds: tuple[int, ...]
    rows: tuple[Row, ...] = ()

    @property
    def base_batch(self) -> int:
        """Samples of a step in the first row."""
        return self.base_workers * self.worker_batch

    def plan(self, row: Row, seed: int) -> Plan:
        """How to train one row."""
        return Plan(
            optimizer=row.optimizer,
            workers=self.base_workers * row.ratio,
            worker_batch=self.worker_batch,
            base_lr=row.base_lr,
            base_batch=self.base_batch,
            epochs=self.epochs,
            warmup_epochs=None if row.optimizer == "lamb" else self.warmup_epochs,  # LEGW: longer with the batch
            settings=row.settings,
            seed=seed,
        )


@final
@dataclass(frozen=True)
class Result:
    """One training."""

    row: Row
    seed: int
    batch: int
    workers: int
    outcome: Outcome


@final
@dataclass(frozen=True)
class Report:
    """Everything that was measured."""

    made_by: dict[str, str]
    experiment: Experiment
    results: list[Result]
    constant_f1: float
    """Of who always names the same labels, the best such set."""
    seconds: float
    cpu_seconds: float
    """Of all processes."""


def rewrite_pages() -> None:
    """Let the pages in docs/ show what lies in ``RESULTS``."""
    from docs import generate  # of this repository; who copied the example has none

    generate.main()


def read(file: Path) -> Report:
    """What an earlier run has written."""
    return msgspec.json.decode(file.read_bytes(), type=Report)


def save(report: Report, file: Path) -> None:
    """For ``read``."""
    file.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")


def same_but_for_seeds(one: Experiment, other: Experiment) -> bool:
    """Whether their results belong into one table."""
    return replace(one, seeds=()) == replace(other, seeds=())


def merged(reports: Sequence[Report]) -> Report:
    """Several runs of the same experiment with different seeds as one. Raises ``ValueError`` if they do not fit."""
    first = reports[0]
    seeds = tuple(seed for report in reports for seed in report.experiment.seeds)
    if len(set(seeds)) < len(seeds) or not all(same_but_for_seeds(r.experiment, first.experiment) for r in reports):
        raise ValueError("the results are of different experiments, or of the same seed twice: give one run per seed")
    return replace(
        first,
        made_by={**first.made_by, "command": "; ".join(report.made_by["command"] for report in reports)},
        experiment=replace(first.experiment, seeds=seeds),
        results=[result for report in reports for result in report.results],
        seconds=sum(report.seconds for report in reports),
        cpu_seconds=sum(report.cpu_seconds for report in reports),
    )


FULL = Experiment(
    train_size=4096,
    test_size=2048,
    spectral_gap=0.6,
    base_workers=2,
    worker_batch=8,
    epochs=40,
    warmup_epochs=5.0,
    seeds=(0, 1, 2),
)
QUICK = Experiment(
    train_size=512,
    test_size=128,
    spectral_gap=1.0,
    base_workers=2,
    worker_batch=4,
    epochs=2,
    warmup_epochs=1.0,
    seeds=(0,),
)


def run_all(experiment: Experiment, made_by: dict[str, str]) -> Report:
    """Every row with every seed, one after the other. Called on every rank of a job; rank 0 prints a line for each."""
    hvd.init()
    torch.set_num_threads(1)
    begin = time.perf_counter()
    data = synthetic(experiment.train_size, experiment.test_size, spectral_gap=experiment.spectral_gap)
    todo = [(row, seed) for seed in experiment.seeds for row in experiment.rows]
    results: list[Result] = []
    for row, seed in todo:
        plan = experiment.plan(row, seed)
        outcome = train(seeded_model(plan, data), plan, data)
        results.append(Result(row, seed, plan.global_batch, plan.workers, outcome))
        if hvd.rank() == 0:
            where = f"{len(results):2}/{len(todo)} {row.optimizer:4} {row.ratio:2} x B0, seed {seed}"
            print(f"{where}: F1 {outcome.f1:.3f}, {outcome.steps} steps in {outcome.seconds:.0f} s", flush=True)
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu = hvd.allreduce(torch.tensor(used.ru_utime + used.ru_stime), name="cpu", op=hvd.Sum)
    made_by = {**made_by, "torch": str(torch.__version__)}
    return Report(made_by, experiment, results, constant_f1(data), time.perf_counter() - begin, float(cpu))


def constant_f1(data: Data) -> float:
    """Micro-F1 on the test data of naming the most frequent labels for every patch, as many of them as serve best."""
    train, test = (torch.stack([items[i][1] for i in range(len(items))]) for items in (data.train, data.test))
    order = train.mean(dim=0).argsort(descending=True)
    right = test.sum(dim=0)[order].cumsum(dim=0)
    named = torch.arange(1, len(order) + 1) * len(test)
    return float((2 * right / (named + test.sum())).max())
