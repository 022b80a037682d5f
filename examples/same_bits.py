"""Train with virtual workers and print a digest of the parameters: the same for any number of workers.

python examples/same_bits.py
farandole run -np 2 python examples/same_bits.py
farandole run -np 3 python examples/same_bits.py
"""

import hashlib

import torch
from torch import nn

import farandole.torch as hvd

VIRTUAL_WORKERS, GLOBAL_BATCH, STEPS = 8, 64, 20

hvd.init()
torch.set_num_threads(1)  # how a kernel cuts its work between threads can show in the last bits
torch.manual_seed(1)

model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))
optimizer = hvd.DistributedOptimizer(
    torch.optim.AdamW(model.parameters(), lr=0.01),
    virtual_workers=hvd.VirtualWorkers(VIRTUAL_WORKERS, model, seed=1),
)
inputs = torch.randn(STEPS * GLOBAL_BATCH, 16)
targets = inputs[:, :4].sum(1, keepdim=True)

for step in range(STEPS):
    x, y = (data[step * GLOBAL_BATCH :][:GLOBAL_BATCH] for data in (inputs, targets))
    for shard in optimizer.shards(len(x)):
        nn.functional.mse_loss(model(x[shard.rows]), y[shard.rows]).backward()
    optimizer.step()

state = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
if hvd.rank() == 0:
    print(f"{hvd.size()} workers: {hashlib.sha256(state).hexdigest()[:16]}")
