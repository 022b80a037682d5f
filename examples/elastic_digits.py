"""Train on handwritten digits while workers come and go: kill one, and watch the training go on.

    farandole run -np 3 --min-np 1 --max-np 3 python examples/elastic_digits.py                   # kill -9 any of them
    farandole run -np 3 --min-np 1 --max-np 3 python examples/elastic_digits.py --kill-after 40   # one kills itself

The lines marked (1) to (4) make a distributed script elastic. What is printed in the end, the number of samples that
were trained on and the test accuracy, does not depend on who came, who left, and when.
"""

import argparse
import os
import signal

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import farandole.torch as hvd

EPOCHS, GLOBAL_BATCH, LEARNING_RATE, SEED, TEST = 10, 64, 0.05, 7, 360

parser = argparse.ArgumentParser()
parser.add_argument("--kill-after", type=int, default=-1, help="the last worker kills itself after that many steps")
options = parser.parse_args()

hvd.init()
torch.manual_seed(SEED)
torch.set_num_threads(1)

images, labels = load_digits(return_X_y=True)
images, labels = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
train_set = TensorDataset(images[TEST:], labels[TEST:])

sampler = hvd.elastic.ElasticSampler(train_set, seed=SEED)  # (1) shares the samples out, each of them once
loader = hvd.elastic.DataLoader(train_set, global_batch_size=GLOBAL_BATCH, sampler=sampler)

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)

state = hvd.elastic.TorchState(  # (2) what must not be lost, and what new workers get
    model, optimizer, sampler=sampler, schedule=schedule, epoch=0, steps=0, samples=0
)


@hvd.elastic.run  # (3) called again when workers have come or gone
def train(state: hvd.elastic.TorchState) -> None:
    """Train from where the state is."""
    print(f"rank {hvd.rank()} of {hvd.size()} goes on at epoch {state.epoch}, step {state.steps}", flush=True)
    while state.epoch < EPOCHS:
        sampler.set_epoch(state.epoch)
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
            state.steps, state.samples = state.steps + 1, state.epoch * len(train_set) + sampler.processed_num
            state.commit()  # (4) workers may come and go here
            if state.steps == options.kill_after and hvd.rank() == hvd.size() - 1 > 0:
                os.kill(os.getpid(), signal.SIGKILL)
        schedule.step()
        state.epoch += 1


train(state)
if hvd.rank() == 0:
    with torch.no_grad():
        accuracy = (model(images[:TEST]).argmax(1) == labels[:TEST]).float().mean().item()
    print(f"{state.steps} steps, {state.samples} samples, test accuracy {accuracy:.3f}")
