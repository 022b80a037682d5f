"""A script as people wrote them for Elastic Horovod: the structure of its ImageNet example, on points in a plane."""

import argparse
import os
import signal

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from horovod.torch.elastic.sampler import ElasticSampler
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description="Elastic Horovod on points")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--batches-per-commit", type=int, default=4)
parser.add_argument("--batches-per-host-check", type=int, default=1)
parser.add_argument("--base-lr", type=float, default=0.05)
parser.add_argument("--die-at", type=int, default=-1)
args = parser.parse_args()

hvd.init()
torch.manual_seed(42)


def points(count):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 2, generator=generator)
    return TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())


train_dataset = points(240)
train_sampler = ElasticSampler(train_dataset)
train_loader = DataLoader(train_dataset, batch_size=args.batch_size, sampler=train_sampler)

model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = optim.SGD(model.parameters(), lr=args.base_lr * hvd.size(), momentum=0.9)
optimizer = hvd.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters(), compression=hvd.Compression.none
)


def train_epoch(state):
    model.train()
    batch_offset = state.batch
    for idx, (data, target) in enumerate(train_loader):
        state.batch = batch_offset + idx
        if args.batches_per_commit > 0 and state.batch % args.batches_per_commit == 0:
            state.commit()
        elif args.batches_per_host_check > 0 and state.batch % args.batches_per_host_check == 0:
            state.check_host_updates()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), target)
        loss.backward()
        if state.epoch == 1 and state.batch == args.die_at and hvd.rank() == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        state.train_sampler.record_batch(idx, args.batch_size)


def validate():
    model.eval()
    with torch.no_grad():
        right = (model(train_dataset.tensors[0]).argmax(1) == train_dataset.tensors[1]).float().mean()
    return hvd.allreduce(right, name="accuracy").item()


def end_epoch(state):
    state.epoch += 1
    state.batch = 0
    state.train_sampler.set_epoch(state.epoch)
    state.commit()


@hvd.elastic.run
def full_train(state):
    while state.epoch < args.epochs:
        train_epoch(state)
        accuracy = validate()
        if hvd.rank() == 0:
            print(f"epoch {state.epoch}: {state.train_sampler.processed_num} samples, accuracy {accuracy:.2f}")
        end_epoch(state)


state = hvd.elastic.TorchState(
    model=model, optimizer=optimizer, train_sampler=train_sampler, epoch=0, batch=0
)  # fmt: skip


def on_state_reset():
    for param_group in optimizer.param_groups:
        param_group["lr"] = args.base_lr * hvd.size()


state.register_reset_callbacks([on_state_reset])
full_train(state)
print(f"rank {hvd.rank()} of {hvd.size()}: lr {optimizer.param_groups[0]['lr']:.2f}")
