"""States and the loop of elastic jobs, with Horovod's signatures; most scripts use ``horovod.torch.elastic``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from farandole.elastic.worker import state
from farandole.elastic.worker.run import run
from farandole.elastic.worker.state import State

__all__ = ["ObjectState", "State", "run_fn"]


class HorovodObjectState(state.ObjectState):
    """State of plain values; ``bcast_object`` and ``get_rank`` have no effect, because the runtime has its own."""

    def __init__(self, bcast_object: object = None, get_rank: object = None, **values: Any) -> None:
        super().__init__(**values)


ObjectState = HorovodObjectState


def run_fn(func: Callable[..., Any], reset: object = None) -> Callable[..., Any]:  # noqa: ARG001 (done by the runtime)
    """Make ``elastic.run`` of a function; ``reset`` has no effect, because the runtime resets by itself."""
    return run(func)
