"""States and the loop of elastic jobs, in Horovod's signatures; ``horovod.torch.elastic`` is what scripts need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from farandole.elastic.worker import state
from farandole.elastic.worker.run import run
from farandole.elastic.worker.state import State

__all__ = ["ObjectState", "State", "run_fn"]


class ObjectState(state.ObjectState):
    """As in Horovod; how objects are broadcast, and who a process is, the runtime knows by itself."""

    def __init__(self, bcast_object: object = None, get_rank: object = None, **values: Any) -> None:
        super().__init__(**values)


def run_fn(func: Callable[..., Any], reset: object = None) -> Callable[..., Any]:  # noqa: ARG001 (done by the runtime)
    """What ``elastic.run`` is made of."""
    return run(func)
