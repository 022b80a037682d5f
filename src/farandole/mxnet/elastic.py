"""Elastic training with Gluon: workers join and leave while the training continues.

state = MxnetState(net=net, trainer=trainer, sampler=sampler, step=0)

@run
def train(state):
    while state.step < 1000:
        ...                         # forward, backward, trainer.step()
        state.step += 1
        state.commit()

train(state)
"""

from __future__ import annotations

import pickle
from typing import Any, ClassVar, final

import mxnet as mx
from mxnet.gluon import Block, ParameterDict, Trainer

from farandole.adapters.mxnet import adapter
from farandole.elastic.worker.epoch_sampler import EpochSampler as ElasticSampler
from farandole.elastic.worker.run import run
from farandole.elastic.worker.state import ObjectState, State
from farandole.elastic.worker.state_parts import (
    HandlerRegistry,
    OptimizerPart,
    RandomPart,
    ReplaceablePart,
    StatePart,
    random_parts,
)
from farandole.elastic.worker.step_vote import Voter
from farandole.errors import HorovodInternalError, HostsUpdatedInterrupt, UsageError
from farandole.largebatch.report import report
from farandole.mxnet.trainer import DistributedTrainer
from farandole.runtime.collectives.leaves import Leaves

__all__ = [
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "MxnetState",
    "ObjectState",
    "State",
    "report",
    "run",
]


@final
class NDArrayPart(ReplaceablePart):
    """An array, which keeps its identity."""

    def tree(self) -> Any:
        """See ``StatePart``."""
        return self.value

    def load(self, tree: Any) -> None:
        """See ``StatePart``."""
        _overwrite("an array", self.value, tree)


@final
class BlockPart(StatePart):
    """Parameters of a block or a ``ParameterDict``, by their order, because Gluon's names differ between workers."""

    def tree(self) -> Any:
        """See ``StatePart``; ``None`` for a parameter without a known shape."""
        return [None if param._deferred_init else param.list_data()[0] for param in self._params()]

    def load(self, tree: Any) -> None:
        """See ``StatePart``; raises ``UsageError`` if the job has another model."""
        params = self._params()
        if len(params) != len(tree):
            raise UsageError(f"the job trains {len(tree)} parameters, and this worker {len(params)}: {_SAME}")
        for param, values in zip(params, tree, strict=True):
            if values is not None and param._deferred_init:
                param.set_data(values)  # Gluon keeps the values until the first forward pass
            elif values is not None:
                for array in param.list_data():
                    _overwrite(param.name, array, values)

    def _params(self) -> list[Any]:
        held = self.value.collect_params() if isinstance(self.value, Block) else self.value
        return list(held.values())


@final
class TrainerPart(OptimizerPart):
    """A Gluon trainer: the states and counters of its optimizer."""

    @property
    def voter(self) -> Voter | None:
        """See ``OptimizerPart``: always ``None``, because MXNet changes parameters on its own threads, after a vote."""
        return None

    def begin_anew(self, name: str) -> None:
        """See ``StatePart``."""
        if isinstance(self.value, DistributedTrainer):
            self.value.rejoin(f"optimizer.{name}")

    def tree(self) -> Any:
        """See ``StatePart``; settings and counters are pickled, so they are compared as a whole."""
        return [self.value._updaters[0].states, pickle.dumps(self.value.optimizer.__getstate__())]

    def load(self, tree: Any) -> None:
        """See ``StatePart``."""
        [updater], (states, settings) = self.value._updaters, tree
        updater.states, updater.states_synced = _legacy(states), dict.fromkeys(states, True)
        self.value.optimizer.__dict__.update(pickle.loads(settings))  # noqa: S301 (from a member of the job)


def _legacy(states: Any) -> Any:
    """``states`` as ``mx.nd`` arrays, because MXNet 1.9 optimizers keep these even for ``mx.np`` parameters."""
    if isinstance(states, dict):
        return {key: _legacy(each) for key, each in states.items()}
    if isinstance(states, list | tuple):
        return type(states)(map(_legacy, states))
    return states.as_nd_ndarray() if isinstance(states, mx.np.ndarray) else states


def _overwrite(name: str, array: Any, values: Any) -> None:
    if (array.shape, array.dtype) != (values.shape, values.dtype):
        raise UsageError(
            f"{name} is of {values.dtype} with shape {values.shape} in the state of the job, and of {array.dtype} with "
            f"shape {array.shape} on this worker: {_SAME}"
        )
    adapter.assign(array, values)


_SAME = "every worker must run the same script"

registry = HandlerRegistry(
    [(mx.nd.NDArray, NDArrayPart), (Block, BlockPart), (ParameterDict, BlockPart), (Trainer, TrainerPart)]
)
"""Classes of values with their handlers; put your own first: ``registry.replace([..., *registry.table])``."""


class MxnetState(ObjectState):
    """Training state of Gluon; its values are attributes.

    >>> state = MxnetState(net=net, trainer=trainer, sampler=ElasticSampler(rows), epoch=0)

    Blocks, trainers and arrays are saved, restored and received in place. Samplers, and all objects with ``state_dict``
    and ``load_state_dict``, are saved by these, other values by pickle. The global random generators of Python and
    NumPy are always included; MXNet's cannot be read. ``commit`` copies everything, and after a fault the state goes
    back to the last commit.
    """

    _leaves: ClassVar[Leaves[Any]] = Leaves(adapter)
    _registry: ClassVar[HandlerRegistry] = registry

    def _generators(self) -> dict[str, RandomPart]:
        return random_parts()
