"""``jax.distributed.initialize()`` without arguments, in workers that have the variables of a Slurm job."""

from __future__ import annotations

from tests.support.frameworks import lean, skip_without
from tests.support.launch.running import StartJob

SCRIPT = """
import farandole.jax, jax
jax.distributed.initialize()
print("process", jax.process_index(), "of", jax.process_count(), flush=True)
jax.distributed.shutdown()
"""
OF_SLURM = {
    "SLURM_JOB_ID": "5",
    "SLURM_PROCID": "0",
    "SLURM_NTASKS": "1",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NODELIST": "elsewhere",
    "SLURM_STEP_NUM_TASKS": "1",
}


def test_workers_are_found_before_slurms_task(job: StartJob) -> None:
    skip_without("jax")
    running = job("-np", "2", python=SCRIPT, environment={**OF_SLURM, **lean("jax"), "JAX_PLATFORMS": "cpu"})
    assert running.end() == 0, running.stderr
    assert [f"process {i} of 2" in running.stdout for i in range(2)] == [True, True]
