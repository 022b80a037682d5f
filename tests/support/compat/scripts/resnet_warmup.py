"""A script as people wrote them for Horovod: large-batch training with warm-up, checkpoints and local accumulation."""

import argparse
import math
import os

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from horovod.torch.mpi_ops import Average
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser(description="a small residual network")
parser.add_argument("--checkpoint-format", default="checkpoint-{epoch}.pt")
parser.add_argument("--batches-per-allreduce", type=int, default=2)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--base-lr", type=float, default=0.0125)
parser.add_argument("--warmup-epochs", type=float, default=1)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--wd", type=float, default=0.00005)
parser.add_argument("--batch-size", type=int, default=16)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.bn1, self.bn2 = nn.BatchNorm2d(width), hvd.SyncBatchNorm(width)

    def forward(self, x):
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class Metric:
    """The average of a value over all batches of all workers."""

    def __init__(self, name):
        self.name = name
        self.sum = torch.tensor(0.0)
        self.n = torch.tensor(0.0)

    def update(self, val):
        self.sum += hvd.allreduce(val.detach().cpu(), name=self.name)
        self.n += 1

    @property
    def avg(self):
        return self.sum / self.n


def adjust_learning_rate(epoch, batch_idx):
    # Goyal et al., https://arxiv.org/abs/1706.02677: from the rate of one worker up to the rate of all, gradually
    if epoch < args.warmup_epochs:
        epoch += float(batch_idx + 1) / len(train_loader)
        lr_adj = 1.0 / hvd.size() * (epoch * (hvd.size() - 1) / args.warmup_epochs + 1)
    else:
        lr_adj = 1.0
    for param_group in optimizer.param_groups:
        param_group["lr"] = args.base_lr * hvd.size() * args.batches_per_allreduce * lr_adj


def train(epoch):
    model.train()
    train_sampler.set_epoch(epoch)
    train_loss, train_accuracy = Metric("train_loss"), Metric("train_accuracy")
    for batch_idx, (data, target) in enumerate(train_loader):
        adjust_learning_rate(epoch, batch_idx)
        optimizer.zero_grad()
        for i in range(0, len(data), args.batch_size):
            output = model(data[i : i + args.batch_size])
            target_batch = target[i : i + args.batch_size]
            train_accuracy.update((output.max(1)[1] == target_batch).float().mean())
            loss = F.cross_entropy(output, target_batch)
            train_loss.update(loss)
            loss.div_(math.ceil(float(len(data)) / args.batch_size))
            loss.backward()
        optimizer.step()
    if hvd.rank() == 0:
        print(f"epoch {epoch + 1}: loss {train_loss.avg.item():.4f}, accuracy {100 * train_accuracy.avg.item():.2f}%")


def save_checkpoint(epoch):
    if hvd.rank() == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, args.checkpoint_format.format(epoch=epoch + 1))


if __name__ == "__main__":
    args = parser.parse_args()
    allreduce_batch_size = args.batch_size * args.batches_per_allreduce
    hvd.init()
    torch.manual_seed(7 + hvd.rank())  # different on purpose: the broadcast makes the models equal
    torch.set_num_threads(1)

    # If a checkpoint exists, go on from there; rank 0 looks, since the others may not see its file system.
    resume_from_epoch = 0
    for try_epoch in range(args.epochs, 0, -1):
        if os.path.exists(args.checkpoint_format.format(epoch=try_epoch)):
            resume_from_epoch = try_epoch
            break
    resume_from_epoch = hvd.broadcast(torch.tensor(resume_from_epoch), root_rank=0, name="resume_from_epoch").item()

    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 4, (512,), generator=generator)
    pictures = torch.randn(512, 3, 8, 8, generator=generator) + labels.view(-1, 1, 1, 1) * 0.7
    train_dataset = TensorDataset(pictures, labels)
    train_sampler = DistributedSampler(train_dataset, num_replicas=hvd.size(), rank=hvd.rank())
    train_loader = DataLoader(train_dataset, batch_size=allreduce_batch_size, sampler=train_sampler)

    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), Block(8), Block(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    )
    lr = args.base_lr * args.batches_per_allreduce * hvd.size()
    optimizer = optim.SGD(model.parameters(), lr=lr, momentum=args.momentum, weight_decay=args.wd)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.none,
        backward_passes_per_step=args.batches_per_allreduce,
        op=Average,
    )
    if resume_from_epoch > 0 and hvd.rank() == 0:
        checkpoint = torch.load(args.checkpoint_format.format(epoch=resume_from_epoch))
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        print(f"resumed after epoch {resume_from_epoch}")
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    for epoch in range(resume_from_epoch, args.epochs):
        train(epoch)
        save_checkpoint(epoch)

    checksums = hvd.allgather(torch.stack([p.detach().double().sum() for p in model.parameters()]).view(1, -1))
    if hvd.rank() == 0:
        print(f"models are equal: {bool((checksums == checksums[0]).all())}")
