"""Train on a 2 x 2 mesh: layers are split over two ranks (DTensor), and data over the other two (FSDP2).

farandole run -np 4 python examples/torch_distributed/tensor_parallel.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from training import Digits, begin, report, step


def main() -> None:
    """Columns of the first layer and rows of the second lie on ranks of one row of the mesh."""
    begin(__doc__)
    ranks = dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("data", "tensor"))
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10), torch.nn.LogSoftmax(1)
    )
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    data = Digits(mesh.get_local_rank("data"), ranks // 2)
    report([step(model, optimizer, *data.batch(i)) for i in range(20)])


if __name__ == "__main__":
    main()
