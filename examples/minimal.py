"""The smallest distributed training: fit y = 3x + 1 on as many workers as you like.

farandole run -np 2 python examples/minimal.py
"""

import torch

import farandole.torch as hvd

hvd.init()
torch.manual_seed(hvd.rank())  # every worker makes its own data
x = torch.rand(256, 1)
y = 3 * x + 1

model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)

for _ in range(200):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()

if hvd.rank() == 0:
    print(f"{hvd.size()} worker(s) found y = {model.weight.item():.2f} x + {model.bias.item():.2f}")
