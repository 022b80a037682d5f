"""Train a small convolutional network on handwritten digits, on as many workers as you like.

    farandole run -np 2 python examples/digits.py      # two workers on this machine (also: make demo)
    python examples/digits.py                          # the same training in one process, without a launcher

The data are the 1797 real digits of 8 x 8 pixels that scikit-learn ships; a fifth of them is kept for the test. The
lines marked (1) to (5) are what makes a training script distributed; everything else is ordinary PyTorch. The global
batch does not depend on the number of workers, so neither do the steps taken nor, but for rounding, the result.
"""

import os
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import farandole.torch as hvd

EPOCHS, GLOBAL_BATCH, LEARNING_RATE, SEED = 20, 64, 0.05, 7
OUT = Path("out")

hvd.init()  # (1) join the other workers
torch.manual_seed(SEED)
torch.set_num_threads(1)
is_first = hvd.rank() == 0

# -- data: every worker sees its own part of each batch ---------------------------------------------------------------

images, labels = load_digits(return_X_y=True)
images = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
train_x, test_x, train_y, test_y = train_test_split(
    images, torch.tensor(labels), test_size=0.2, random_state=SEED, stratify=labels
)
train = TensorDataset(train_x, train_y)
sampler = DistributedSampler(train, hvd.size(), hvd.rank(), seed=SEED)  # (2) share out the samples
loader = DataLoader(train, batch_size=max(1, GLOBAL_BATCH // hvd.size()), sampler=sampler)
mine = slice(hvd.rank(), None, hvd.size())

# -- model and optimizer ----------------------------------------------------------------------------------------------

model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(),
    nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(64 * 4 * 4, 128), nn.ReLU(), nn.Linear(128, 10),
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9, nesterov=True, weight_decay=1e-4)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())  # (3) average gradients
hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # (4) start from the same weights
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)


def train_epoch(epoch: int) -> float:
    """One pass over the training part; returns the mean loss over all workers."""
    model.train()
    sampler.set_epoch(epoch)
    total = torch.zeros(2)
    for x, y in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        total += torch.tensor([loss.item() * len(x), len(x)])
    schedule.step()
    total = hvd.allreduce(total, name="loss", op=hvd.Sum)  # (5) add up what every worker measured
    return float(total[0] / total[1])


@torch.no_grad()
def test_accuracy() -> float:
    """Share of the test digits that are read right; every worker reads its part."""
    model.eval()
    right = (model(test_x[mine]).argmax(1) == test_y[mine]).sum()
    return float(hvd.allreduce(right, name="right", op=hvd.Sum)) / len(test_y)


def save_curve(losses: list[float], accuracies: list[float], path: Path) -> None:
    """Draw loss and accuracy over epochs into a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    epochs = range(1, len(losses) + 1)
    figure, left = plt.subplots(figsize=(7, 4), layout="constrained")
    right = left.twinx()
    (a,) = left.semilogy(epochs, losses, "o-", color="tab:blue", label="training loss")
    (b,) = right.plot(epochs, [100 * v for v in accuracies], "s-", color="tab:orange", label="test accuracy")
    left.set(xlabel="epoch", ylabel="cross-entropy", title=f"Handwritten digits on {hvd.size()} worker(s)")
    left.set_xticks([1, *range(5, EPOCHS + 1, 5)])
    right.set(ylabel="% right", ylim=(100 * min(accuracies) - 2, 101))
    left.grid(alpha=0.3)
    left.legend(handles=[a, b], loc="center right")
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=120)


console = Console(quiet=not is_first, highlight=False, soft_wrap=True)  # only the first worker speaks
losses, accuracies = [], []
begin = time.perf_counter()
with Progress(console=console, disable=not console.is_terminal) as progress:
    bar = progress.add_task("training", total=EPOCHS)
    for epoch in range(EPOCHS):
        losses.append(train_epoch(epoch))
        accuracies.append(test_accuracy())
        done = epoch + 1
        progress.update(bar, completed=done, description=f"loss {losses[-1]:.4f} accuracy {accuracies[-1]:.3f}")
        if not console.is_terminal:  # a log gets lines
            line = f"{'━' * done}{'╌' * (EPOCHS - done)} {done:2}/{EPOCHS}"
            console.print(f"{line} loss {losses[-1]:.4f} accuracy {accuracies[-1]:.3f}")
seconds = time.perf_counter() - begin
about = hvd.statistics()

if is_first:
    save_curve(losses, accuracies, OUT / "digits.png")
console.print(f"test accuracy  {accuracies[-1]:.4f} on {len(test_y)} digits never trained on")
console.print(f"speed          {EPOCHS * len(train) / seconds:,.0f} samples/s on {hvd.size()} worker(s)")
console.print(f"engine         {about['engine']}, because {about['reason']}")
console.print(f"picture        {OUT / 'digits.png'}")
if timeline := os.environ.get("FARANDOLE_TIMELINE"):
    console.print(f"timeline       {timeline}: open it at https://ui.perfetto.dev or chrome://tracing")
