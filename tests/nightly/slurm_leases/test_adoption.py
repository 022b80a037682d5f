"""A lead that loses power while its leases go on: the job that Slurm queues again adopts their workers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests.support.slurm.lease_run import POLICY, Run, lent, node_of
from workbench.cluster import SlurmCluster

PROCESSES = re.compile(r"worker (\d+) trains: generation (\d+), rank \d+ of (\d+), step (\d+), process (\d+)")


def test_a_lead_that_is_queued_again_goes_on_with_the_workers_of_its_leases(
    make_slurm: Callable[..., SlurmCluster], tmp_path: Path
) -> None:
    tmp_path.chmod(0o700)
    run = Run(make_slurm(4), tmp_path)
    (run.folder / "policy.toml").write_text(f"{POLICY}lead-patience-s = 120\n")
    lent(run, 3)
    before = {worker: (step, pid) for worker, _, _, step, pid in said(run)[-3:]}
    node = node_of(run, lead_job(run))
    run.slurm.cluster.kill(node)
    try:
        run.slurm.run(["scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=power"])
        run.until(lambda: any(worker >= 1000 for worker, *_ in said(run)), "for a worker of the next lead")
    finally:
        run.slurm.boot(node)
    after = said(run)[-3:]
    kept = {worker: (step, pid) for worker, _, _, step, pid in after if worker in before}
    assert len(kept) == 2
    assert all(kept[worker][1] == before[worker][1] for worker in kept), "the processes are the same"
    assert all(kept[worker][0] >= before[worker][0] for worker in kept)
    assert {size for *_, size, _, _ in after} == {3}
    run.end()


def lead_job(run: Run) -> str:
    jobs = run.slurm.run(["squeue", "--noheader", "--format=%i %j"]).stdout.splitlines()
    return next(line.split()[0] for line in jobs if "lead" in line)


def said(run: Run) -> list[tuple[int, ...]]:
    """Worker, generation, size, step and process of each that has begun to train."""
    return [tuple(map(int, found.groups())) for found in PROCESSES.finditer(run.said)]
