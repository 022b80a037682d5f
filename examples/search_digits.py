"""Search for the learning rate, width and batch of a network that reads handwritten digits.

    cd examples
    farandole search search_digits.py search_digits.toml --trials 27 --pool 4 --workers 1,4 --epochs 27
    python search_digits.py                                 # the same from Python

Each trial trains on one worker at first; the best go on, and get the workers of those that pause.
"""

from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import farandole
import farandole.torch as hvd

SPACE = Path(__file__).with_name("search_digits.toml")
TEST = 360


def train(trial: "farandole.search.Trial") -> None:
    """Train one trial, on whatever workers it has."""
    hvd.init()
    torch.manual_seed(trial.seed)
    torch.set_num_threads(1)

    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    train_set = TensorDataset(images[TEST:], labels[TEST:])
    sampler = hvd.elastic.ElasticSampler(train_set, seed=trial.seed)
    loader = hvd.elastic.DataLoader(train_set, global_batch_size=trial.parameters["batch"], sampler=sampler)

    width = trial.parameters["width"]
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=trial.parameters["lr"], momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)
    trial.resume(state)  # written at each rung, and read when the trial goes on

    @hvd.elastic.run
    def epochs(state: hvd.elastic.TorchState) -> None:
        while state.epoch < trial.epochs:
            sampler.set_epoch(state.epoch)
            for x, y in loader:
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                optimizer.step()
                state.commit()  # workers may come and go here
            state.epoch += 1
            with torch.no_grad():
                loss = cross_entropy(model(images[:TEST]), labels[:TEST]).item()
            trial.report(loss, state.epoch)  # leaves here, on all ranks, if the trial is to pause

    epochs(state)


if __name__ == "__main__":
    result = farandole.search(train, SPACE, trials=27, workers=(1, 4), pool=4, epochs=27)
    print(f"{result.epochs} epochs; the best: {result.best}")
