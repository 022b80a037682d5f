"""A rank that is killed in the middle of a collective of ``torch.distributed``: the others are told who, at once."""

from __future__ import annotations

import re

import pytest

from tests.support.frameworks import lean
from tests.support.launch.running import StartJob

VERBS = {
    "all_reduce": "dist.all_reduce(x)",
    "all_reduce_async": "dist.all_reduce(x, async_op=True).wait()",
    "all_gather": "dist.all_gather([torch.empty(4) for _ in range(3)], x)",
    "reduce_scatter": "dist.reduce_scatter(x, [x, x, x])",
    "broadcast": "dist.broadcast(x, 1)",
    "all_to_all": "dist.all_to_all_single(torch.empty(3), torch.ones(3))",
    "gather": "dist.gather(x, [torch.empty(4) for _ in range(3)] if rank == 0 else None, dst=0)",
    "barrier": "dist.barrier()",
    "recv": "dist.recv(x, 1)",
    "backward": "model(torch.ones(2, 4)).sum().backward()",
}
SCRIPT = """
import os, signal, time, torch
import torch.distributed as dist
dist.init_process_group("farandole")
rank, x = dist.get_rank(), torch.ones(4)
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher sends it at once
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
dist.barrier()
if rank == 1:
    time.sleep(0.2)  # let the others wait in their collective
    os.kill(os.getpid(), signal.SIGKILL)
try:
    {call}
    dist.barrier()
except Exception as error:
    print(f"rank {{rank}}: {{type(error).__name__}}: {{error}}", flush=True)
    time.sleep(1.0)  # not the first to leave
"""


@pytest.mark.parametrize("verb", VERBS)
def test_every_other_rank_learns_who_was_killed(job: StartJob, verb: str) -> None:
    environment = {**lean("torch"), "OMP_NUM_THREADS": "1"}
    running = job("-np", "3", "--grace-seconds", "20", python=SCRIPT.format(call=VERBS[verb]), environment=environment)
    assert running.end() != 0
    told = dict(re.findall(r"rank ([02]): \w+: (.*)", running.stdout))
    assert sorted(told) == ["0", "2"], running.stdout + running.stderr
    assert all("rank 1 on" in text and "SIGKILL" in text for text in told.values()), told
