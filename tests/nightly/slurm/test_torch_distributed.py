"""``torch.distributed`` where ``srun`` starts the ranks on two nodes: there is no RANK, and no MASTER_ADDR."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from workbench.cluster import SlurmCluster

SCRIPT = """
import sys, torch
import torch.distributed as dist
dist.init_process_group(sys.argv[1], init_method="farandole://")
total = torch.full((4,), 1.0 + dist.get_rank())
dist.all_reduce(total)
assert total.tolist() == [6.0] * 4 and dist.get_world_size() == 3
dist.destroy_process_group()
print("well", flush=True)
"""


@pytest.mark.parametrize("backend", ["farandole", "gloo"])
def test_ranks_of_srun_meet(slurm: SlurmCluster, tmp_path: Path, backend: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = ["srun", "-N2", "-n3", "--ntasks-per-node=2", sys.executable, "script.py", backend]
    environment = {"GLOO_SOCKET_IFNAME": "eth0"}
    done = slurm.run(command, cwd=tmp_path, env=environment, timeout_s=120, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["well"] * 3), done.stdout + done.stderr
