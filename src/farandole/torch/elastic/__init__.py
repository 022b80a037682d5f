"""Elastic training with PyTorch: workers join and leave while the training continues.

state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)

@hvd.elastic.run
def train(state):
    for state.epoch in range(state.epoch, 90):
        state.sampler.set_epoch(state.epoch)
        for x, y in loader:
            ...
            optimizer.step()
            state.commit()

train(state)
"""

from __future__ import annotations

from farandole.elastic.worker.run import run
from farandole.elastic.worker.state import ObjectState, State
from farandole.errors import HorovodInternalError, HostsUpdatedInterrupt
from farandole.largebatch.report import report
from farandole.torch.elastic import sampler, state
from farandole.torch.elastic.loader import DataLoader
from farandole.torch.elastic.sampler import ElasticSampler
from farandole.torch.elastic.state import TorchState

__all__ = [
    "DataLoader",
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "TorchState",
    "report",
    "run",
    "sampler",
    "state",
]
