"""Statistics, PCA and k-means on a split array by HeAT, then training on the same ranks' shards: nothing is gathered.

    mpirun -n 2 python examples/heat_pipeline.py                        # all of it in one job of MPI
    mpirun -n 2 python examples/heat_pipeline.py --shards shards        # what HeAT does alone, written to a folder
    farandole run -np 2 python examples/heat_pipeline.py --from shards  # and the training, with the launcher

HeAT's ranks are those of MPI, and Farandole finds the same ones. Under ``farandole run`` each process is a world of its
own to MPI, so there the shards come from a folder. Needs ``pip install heat`` and an MPI (``pip install mpich``).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

import farandole.torch as hvd

SAMPLES, FEATURES, COMPONENTS, CLUSTERS = 4000, 20, 6, 4


def prepared() -> dict[str, np.ndarray[Any, Any]]:
    """This rank's rows: standardized, projected on the largest components, and each with the cluster it is in."""
    import heat as ht

    ht.random.seed(7)
    centers = 3.0 * ht.random.randn(CLUSTERS, FEATURES)
    data = ht.random.randn(SAMPLES, FEATURES, split=0)
    rows = ht.arange(SAMPLES, split=0)
    for k in range(CLUSTERS):
        data += ht.where(rows % CLUSTERS == k, 1.0, 0.0).expand_dims(1) * centers[k : k + 1]
    data = (data - data.mean(0)) / data.std(0)
    projected = ht.decomposition.PCA(n_components=COMPONENTS).fit_transform(data)
    clusters = ht.cluster.KMeans(n_clusters=CLUSTERS, init="kmeans++", max_iter=30, random_state=1)
    clusters.fit(projected)
    labels = clusters.predict(projected)
    return {"inputs": projected.larray.numpy(), "labels": labels.larray.numpy().reshape(-1).astype(np.int64)}


def train(inputs: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """Learn the cluster of a row; returns the mean loss and accuracy of all ranks."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(COMPONENTS, 32), torch.nn.ReLU(), torch.nn.Linear(32, CLUSTERS))
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=1e-2)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    loss = torch.zeros(())
    for epoch in range(5):
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(epoch))
        for rows in order.split(100):
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs[rows]), labels[rows])
            loss.backward()
            optimizer.step()
    right = (model(inputs).argmax(1) == labels).float().mean()
    return hvd.allreduce(loss.detach(), name="loss").item(), hvd.allreduce(right, name="right").item()


def main() -> None:
    """Prepare, train, or both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shards", type=Path, help="write what HeAT has made to this folder, and do not train")
    parser.add_argument("--from", type=Path, dest="source", help="train on what was written to this folder")
    chosen = parser.parse_args()
    hvd.init()
    shard = prepared() if chosen.source is None else dict(np.load(chosen.source / f"{hvd.rank()}.npz"))
    if chosen.shards is not None:
        chosen.shards.mkdir(parents=True, exist_ok=True)
        np.savez(chosen.shards / f"{hvd.rank()}.npz", **shard)
        return
    loss, right = train(torch.from_numpy(shard["inputs"]), torch.from_numpy(shard["labels"]))
    if hvd.rank() == 0:
        print(f"{hvd.size()} ranks: loss {loss:.4f}, {right:.1%} of all rows in the right cluster", flush=True)


if __name__ == "__main__":
    main()
