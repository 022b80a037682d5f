"""The noise scale of real jobs: against the truth on a quadratic, and on digits, where it rises as the loss falls."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.launching import Launch

QUADRATIC = """
    import json
    import torch
    import farandole.torch as hvd

    hvd.init()
    torch.set_num_threads(1)
    found = {}
    for name, batches in {"equal": [6, 6, 6, 6], "unequal": [4, 7, 1, 12]}.items():
        mine, generator = batches[hvd.rank()], torch.Generator().manual_seed(hvd.rank())
        weight, spread = torch.nn.Parameter(torch.full((50,), 0.6)), torch.linspace(0.5, 2.0, 50)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.0))
        noise = hvd.NoiseScale(optimizer, every=1, horizon_samples=1e9)
        for _ in range(500):
            optimizer.zero_grad()
            noise.saw(mine)
            samples = torch.randn(mine, 50, generator=generator) * spread  # each sample's gradient is weight + it
            (0.5 * weight.square().sum() + (samples @ weight).mean()).backward()
            optimizer.step()
        e = noise.estimate()
        truth = float(spread.square().sum()), float(weight.detach().square().sum())
        found[name] = [e.trace / truth[0], e.norm2 / truth[1], e.b_simple * truth[1] / truth[0]]
    if hvd.rank() == 0:
        open("found.json", "w").write(json.dumps(found))
"""

DIGITS = """
    import json
    import torch
    from sklearn.datasets import load_digits
    import farandole.torch as hvd

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    noise = hvd.NoiseScale(optimizer, every=1, horizon_samples=len(x), dataset_size=len(x))
    losses, scales = [], []
    for epoch in range(10):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))[hvd.rank()::hvd.size()]
        for batch in order.split(16):
            optimizer.zero_grad()
            noise.saw(len(batch))
            loss = torch.nn.functional.cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
        losses.append(torch.nn.functional.cross_entropy(model(x), y).item())
        scales.append(noise.estimate().b_simple)
    advice = noise.advise(samples=10 * len(x), max_workers=2)
    if hvd.rank() == 0:
        open("found.json", "w").write(json.dumps({"losses": losses, "scales": scales, "advice": str(advice)}))
"""


def test_the_estimate_of_a_job_is_within_ten_percent_of_the_truth(launch: Launch, tmp_path: Path) -> None:
    launch(4, QUADRATIC).ok()
    for name, ratios in json.loads((tmp_path / "found.json").read_text()).items():
        assert ratios == pytest.approx([1, 1, 1], rel=0.1), name


def test_the_estimate_rises_as_the_loss_falls_on_digits(launch: Launch, tmp_path: Path) -> None:
    launch(2, DIGITS).ok()
    found = json.loads((tmp_path / "found.json").read_text())
    losses, scales = found["losses"], found["scales"]
    assert losses[-1] < 0.2 * losses[0]
    assert min(scales[-3:]) > 1.5 * scales[0] > 0
    assert found["advice"].startswith("critical batch now:")
