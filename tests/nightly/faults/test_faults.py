"""Real jobs, real faults at the phases of a step; what each has cost is read from the ledger. `make faults` plays all.

The table is in ``cases``, ``cases_inside``, ``cases_hosts`` and ``cases_slurm`` of ``workbench.survival``: here
are those rows that are quick.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.frameworks import skip_without
from workbench.cluster import Cluster, SlurmCluster
from workbench.survival.cases import LAST, ONE_HOST
from workbench.survival.cases_counted import COUNTED
from workbench.survival.cases_hosts import TWO_HOSTS
from workbench.survival.cases_inside import INSIDE
from workbench.survival.cases_inside import PLAN as IN_CHUNKS
from workbench.survival.cases_slurm import SALLOC, SLURM
from workbench.survival.records import KERAS_BACKENDS, TrainingPlan
from workbench.survival.table import PLAN, CaseResult, run

MakeCluster = Callable[..., Cluster]
MakeSlurm = Callable[..., SlurmCluster]
STEP_S = 0.02
"""Who trains mostly waits, and leaves the processors to the workers that start."""
UNHURRIED = replace(PLAN, step_s=STEP_S)
KERAS = [TrainingPlan("keras", backend, step_s=STEP_S) for backend in KERAS_BACKENDS]
COUNTED_PLANS = [TrainingPlan("jax", step_s=STEP_S), *KERAS]


def wrong(results: list[CaseResult]) -> list[str]:
    """What was, in words."""
    return [f"{each.case.fault} in {each.case.phase}: {each.wrong}" for each in results if each.wrong]


def test_on_one_host(tmp_path: Path) -> None:
    quick = [case for case in (*ONE_HOST, *INSIDE) if case.quick]
    results = run(tmp_path, {"localhost": 4}, quick, LAST, plan=replace(IN_CHUNKS, step_s=STEP_S))
    assert not wrong(results)
    assert len(results) == len(quick) + len(LAST)


def test_on_two_hosts(make_cluster: MakeCluster, tmp_path: Path) -> None:
    quick = [case for case in TWO_HOSTS if case.quick]
    results = run(tmp_path, {"node1": 2, "node2": 2}, quick, cluster=make_cluster(2), plan=UNHURRIED)
    assert not wrong(results)
    assert len(results) == len(quick)


def test_in_slurm(make_slurm: MakeSlurm, tmp_path: Path) -> None:
    quick = [case for case in SLURM if case.quick]
    hosts = {"node1": 2, "node2": 2}
    results = run(tmp_path, hosts, quick, cluster=make_slurm(2).cluster, inside=SALLOC, plan=UNHURRIED)
    assert not wrong(results)
    assert len(results) == len(quick)


@pytest.mark.parametrize("plan", COUNTED_PLANS, ids=lambda plan: f"{plan.framework}-{plan.backend}")
def test_a_training_that_counts_in_its_weights_applies_each_sample_once(plan: TrainingPlan, tmp_path: Path) -> None:
    """Killed before a reduction, between it and the step, and at a commit; and told to end."""
    skip_without(plan.framework)
    skip_without(plan.backend)
    quick = [case for case in COUNTED if case.quick]
    results = run(tmp_path, {"localhost": 4}, quick, plan=plan)
    assert not wrong(results)
    assert len(results) == len(quick)
    assert all(each.first_step_s for each in results), "a recovery was not told of"
