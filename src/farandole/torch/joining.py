"""Leaving a round of collectives early: ``join``, for ranks that have fewer batches than others."""

from __future__ import annotations

import gc
import threading
from typing import final

from farandole.runtime.collectives.objects import allgather_object
from farandole.runtime.session.session import current
from farandole.torch.reducer import GradientReducer, living_reducers


def join(device: int = -1) -> int:  # noqa: ARG001 (Horovod's GPU)
    """Take part in the other ranks' collectives without contributing, until all have called this.

    >>> for batch in my_batches:            # not equally many on every rank
    ...     train(batch)
    >>> last = hvd.join()

    Returns the rank that came last. The others' allreduces get zeros from this rank (an Average is still over all
    ranks), their gathers nothing. Distributed optimizers are served too: the gradients of ranks that still train are
    averaged over all ranks. ``device`` is accepted for compatibility.
    """
    session = current("join()")
    gc.collect()  # or optimizers out of anybody's reach would be waited for, which on other ranks are gone
    serving = [_Serving(reducer) for reducer in living_reducers()]
    last = session.join()
    if session.topology.size > 1:
        labels = allgather_object([each.label for each in serving], name="join.optimizers")
        everywhere = set(labels[0]).intersection(*labels)
        for each in serving:
            if each.label in everywhere:
                each.finish()
            else:
                each.forsake()
    return last


@final
class _Serving:
    """Takes part in the reductions of one optimizer, on a thread of its own."""

    def __init__(self, reducer: GradientReducer) -> None:
        self.label = reducer.label
        self._reducer = reducer
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name=f"farandole-join-{reducer.label}", daemon=True)
        self._thread.start()

    def forsake(self) -> None:
        """Other ranks do not have this optimizer any more: nobody will come."""
        self._reducer.forsake(self._thread.join)

    def finish(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _serve(self) -> None:
        try:
            self._reducer.serve()
        except BaseException as error:
            self._error = error
