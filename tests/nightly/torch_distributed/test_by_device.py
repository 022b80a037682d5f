"""One group of several backends: tensors of a device go to the one that was named for it, here Gloo for the host's."""

from __future__ import annotations

from tests.support.frameworks import lean
from tests.support.launching import Launch

SCRIPT = """
import torch
import torch.distributed as dist

dist.init_process_group("cpu:gloo,cuda:farandole")
rank, size, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
assert group.others == {"cpu": "gloo"}, group.others
x = torch.full((3,), rank + 1.0)
dist.all_reduce(x)
assert x.tolist() == [3.0] * 3
assert group.others["cpu"]._get_backend(torch.device("cpu")).name() == "gloo"
parts = [torch.empty(2) for _ in range(size)]
dist.all_gather(parts, torch.full((2,), float(rank)))
assert [part[0].item() for part in parts] == [0.0, 1.0]
whole = torch.empty(4)
gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
gather(whole, torch.full((2,), float(rank)))
assert whole.tolist() == [0.0, 0.0, 1.0, 1.0]
work = dist.all_reduce(x, async_op=True)
work.wait()
assert x.tolist() == [6.0] * 3
dist.broadcast(x, 0)
dist.barrier()
dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
model(torch.ones(2, 3) * rank).sum().backward()
assert model.module.weight.grad.tolist() == [[1.0] * 3]
assert group._lane.count == 1, "only the barrier was ours"
found = [None] * size
dist.all_gather_object(found, rank)
assert found == [0, 1]
part = dist.new_group([0], backend="farandole")
if rank == 0:
    assert part.others == {}
dist.destroy_process_group()
print("well")
"""


def test_tensors_go_to_the_backend_of_their_device(launch: Launch) -> None:
    environment = {**lean("torch"), "OMP_NUM_THREADS": "1"}
    assert launch(2, SCRIPT, environment=environment).ok().lines().count("well") == 2
