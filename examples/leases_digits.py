"""Train on handwritten digits in one job of Slurm, and grow into others while the gradient noise scale rises.

    farandole submit --min-np 2 --max-np 8 --lease 1x2@1h --batch grow \
        --when 'val_acc>=0.95' --then 'np=2,nice=1000' python examples/leases_digits.py

Each worker keeps its batch, so more of them make the global batch larger: the noise scale says when that pays. A step
takes as long as --device-s says, as if an accelerator computed it: the network is too small to share work out. The
lines marked (1) to (3) are what leases need beside an elastic script. Every sample of every step is written down in
--ledger: whoever came, left or was lost, each is trained on once in each epoch.
"""

import argparse
import os
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import farandole.torch as hvd

BATCH, BASE, LEARNING_RATE, SEED, TEST = 8, 16, 0.08, 7, 360

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--device-s", type=float, default=0.05, help="seconds that a step takes at least")
parser.add_argument("--advise-s", type=float, default=60.0, help="seconds between two pieces of advice")
parser.add_argument("--ledger", type=Path, help="a folder: every worker writes down there what it has trained on")
options = parser.parse_args()

hvd.init()
torch.manual_seed(SEED)
torch.set_num_threads(1)

images, labels = load_digits(return_X_y=True)
images, labels = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
numbers = torch.arange(len(images))
train_set = TensorDataset(images[TEST:], labels[TEST:], numbers[TEST:])

sampler = hvd.elastic.ElasticSampler(train_set, seed=SEED)
loader = hvd.elastic.DataLoader(train_set, batch_size=BATCH, sampler=sampler)

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
noise = hvd.NoiseScale(optimizer, every=1, horizon_samples=2 * len(train_set))  # (1) measures while it trains
state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, noise=noise, epoch=0, steps=0)


def accuracy() -> float:
    """Share of the test digits that are read right."""
    with torch.no_grad():
        return (model(images[:TEST]).argmax(1) == labels[:TEST]).float().mean().item()


def write_down(step: int, own: torch.Tensor) -> None:
    """Write down what this worker has trained on in a step."""
    if options.ledger is not None:
        with open(options.ledger / f"ledger-{os.environ['FARANDOLE_WORKER_ID']}.txt", "a") as file:
            file.write(f"{step} {hvd.size()} {' '.join(map(str, own.tolist()))}\n")


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> None:
    """Train from where the state is."""
    print(f"rank {hvd.rank()} of {hvd.size()} goes on at epoch {state.epoch}, step {state.steps}", flush=True)
    told_s = time.monotonic()
    while state.epoch < options.epochs:
        sampler.set_epoch(state.epoch)
        for x, y, number in loader:
            began_s = time.monotonic()
            for group in optimizer.param_groups:
                group["lr"] = LEARNING_RATE * noise.gain(BASE, BATCH * hvd.size())
            optimizer.zero_grad()
            noise.saw(len(x))
            loss = cross_entropy(model(x), y)
            time.sleep(max(0.0, options.device_s - (time.monotonic() - began_s)))
            loss.backward()
            optimizer.step()
            state.steps += 1
            write_down(state.steps, number)
            state.commit()
            if time.monotonic() - told_s >= options.advise_s:
                done = (state.epoch + sampler.processed_num / len(train_set)) / options.epochs
                samples = options.epochs * len(train_set)
                advice = noise.advise(samples=samples, base_batch=BASE)  # (2) on how many workers to go on
                hvd.elastic.report(advice, remaining=1 - done, val_acc=accuracy(), epoch=state.epoch)  # (3)
                told_s = time.monotonic()
                if hvd.rank() == 0 and os.environ.get("CALIB"):
                    print(
                        "CALIB",
                        state.steps,
                        noise.estimate(),
                        accuracy(),
                        advice and (advice.workers, advice.reasons, advice.critical_batch),
                        str(advice)[:150] if not advice else "",
                        flush=True,
                    )
        state.epoch += 1


train(state)
if hvd.rank() == 0:
    print(f"{state.steps} steps, test accuracy {accuracy():.3f}", flush=True)
