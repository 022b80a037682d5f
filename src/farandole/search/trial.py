"""Trial as the function of a search sees it, on each of its workers.

def train(trial):
    hvd.init()
    torch.manual_seed(trial.seed)
    model = Model(trial.parameters["width"])
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=trial.parameters["lr"]))
    state = hvd.elastic.TorchState(model, optimizer, epoch=0)
    trial.resume(state)

    @hvd.elastic.run
    def epochs(state):
        while state.epoch < trial.epochs:
            ...                                         # one epoch, with state.commit() after each step
            state.epoch += 1
            trial.report(loss, state.epoch)

    epochs(state)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, final

from farandole.control.search_messages import TrialOrder, TrialReport, TrialVerdict
from farandole.elastic.worker.state import ObjectState, State
from farandole.errors import UsageError
from farandole.events import logger
from farandole.gradients.noise import GradientNoise
from farandole.largebatch.noise import NoEstimate
from farandole.runtime.collectives.objects import broadcast_object
from farandole.runtime.session.init import current, is_initialized
from farandole.search.rung_checkpoint import key_of, read_checkpoint, write_checkpoint
from farandole.search.space import Value
from farandole.search.trial_metrics import number_of, numbers_of, plain_name, refusing_collisions

T = TypeVar("T")

Ask: TypeAlias = Callable[[TrialReport], TrialVerdict]
"""Function that sends a report of rank 0 to the search and returns its answer."""


class TrialEnded(BaseException):
    """End of a trial by the search: raised in the function of the trial, on all its workers after the same epoch.

    Not an ``Exception``, so that no ``except Exception`` of a function can swallow it; functions need not handle it.
    """


@final
class Trial:
    """One trial: its ``number``, ``parameters`` and ``seed``, and ``epochs``, the most that it may train.

    A trial that restarts, after a pause or a fault, has the same first three. ``workers``: maximum number of workers.
    """

    def __init__(self, order: TrialOrder, ask: Ask) -> None:
        self.number, self.epochs, self.seed = order.number, order.epochs, order.seed
        self.workers = order.most
        self.parameters: Mapping[str, Value] = dict(order.parameters)
        self._order, self._ask = order, ask
        self._state: ObjectState | None = None
        self._reported = 0

    @property
    def _key(self) -> bytes:
        return key_of(self._order.parameters, self._order.seed)

    @property
    def folder(self) -> Path:
        """Folder of this trial alone, for other files of the script; created when this property is first read."""
        path = Path(self._order.folder)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def resume(self, state: State) -> None:
        """Register ``state`` with the search: it is written at each rung, and read here if the trial goes on.

        >>> state = hvd.elastic.TorchState(model, optimizer, epoch=0)
        >>> trial.resume(state)

        Call it after ``init()`` and before the function decorated with ``elastic.run``. Without this call, a
        trial that goes on begins anew, with the same parameters and seed.
        """
        if not isinstance(state, ObjectState):
            raise UsageError(f"trial.resume() takes an elastic state, as of hvd.elastic, found {type(state).__name__}")
        self._state = state
        if current("trial.resume()").provisional:  # the other ranks have the state, and are further
            return
        found = read_checkpoint(Path(self._order.folder), self._key)
        if found is not None:
            self._reported, content = found
            state.load_state_dict(content)

    @refusing_collisions
    def report(self, /, value: float, epoch: int, noise: GradientNoise | None = None, **metrics: Any) -> None:
        """Report the value after ``epoch`` epochs; the trial then goes on, or leaves if the search says so. Collective.

        >>> trial.report(hvd.allreduce(loss).item(), state.epoch, accuracy=hits / len(x))

        The search decides by ``value``; ``metrics`` are other numbers by name, for users. Arguments of rank 0 count.
        The decision is the same on all ranks, after this epoch: if the trial goes on, workers join or leave here if a
        change is due (``state.commit()``). With ``noise``, an ``hvd.NoiseScale(optimizer)``, the trial gets no more
        workers than its noise scale is worth: pass it if the batch grows with the number of workers.
        """
        numbers = numbers_of(metrics, self.parameters)
        value, measured, epoch, shared = number_of("value", value), _measured(noise), int(epoch), is_initialized()
        if not shared and self._order.most > 1:
            raise UsageError("trial.report() before init(): a trial of several workers calls hvd.init() first")
        if epoch < 1:
            raise UsageError(f"trial.report(epoch={epoch}): the number of epochs that are done, from 1 on")
        rank, size = (current().topology.rank, current().topology.size) if shared else (0, 1)
        # Rank 0 decides, because other ranks may have joined after the last report, and do not know its epoch.
        is_kept = self._agree(any(self._reported < level <= epoch for level in self._order.levels), size)
        if is_kept:
            self._keep(epoch, value, numbers)
        verdict: TrialVerdict | None = None
        if rank == 0:
            verdict = self._ask(TrialReport(self._order.worker_id, epoch, value, *measured, numbers))
        verdict = self._agree(verdict, size)
        assert verdict is not None
        self._reported = epoch
        if not verdict.goes_on:
            if verdict.keeps and not is_kept:
                self._keep(epoch, value, numbers)
            raise TrialEnded(verdict.reason)
        if self._state is not None:
            self._state.commit()

    def named(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Numbers with any names, such as logs of a framework, under names that ``report`` accepts.

        >>> trial.report(loss, epoch, **trial.named({"top-5 error": 0.1}))
        """
        found: dict[str, Any] = {}
        for name, value in metrics.items():
            found[plain_name(name, (*self.parameters, *found))] = value
        return found

    @staticmethod
    def _agree(mine: T, size: int) -> T:
        """Value of rank 0, on all ranks."""
        agreed: T = broadcast_object(mine, 0, "search.report") if size > 1 else mine
        return agreed

    def _keep(self, epoch: int, value: float, metrics: dict[str, float]) -> None:
        """Write the state at a rung, before the search gets the report that the trial has reached it."""
        if self._state is not None:
            content = self._state.state_dict()  # collective
            if current().topology.rank == 0:
                try:
                    write_checkpoint(self.folder, self._key, epoch, value, content, metrics)
                except OSError as error:  # no reason to fail: it only costs epochs if the trial begins again
                    logger.warning("trial %d has no checkpoint of epoch %d: %s", self.number, epoch, error)

    def __repr__(self) -> str:
        """Text for users."""
        told = ", ".join(f"{name}={value}" for name, value in self.parameters.items())
        return f"Trial {self.number} ({told}) in process {os.getpid()}"


def _measured(noise: GradientNoise | None) -> tuple[float, float]:
    """Upper bound of the noise scale, and number of samples of a worker in a step; zeros if they are not known."""
    if noise is None:
        return 0.0, 0.0
    if not hasattr(noise, "estimate"):
        raise UsageError(
            f"trial.report(noise=...) takes an hvd.NoiseScale(optimizer), found {type(noise).__name__}; for a metric "
            "of that name type noise_now=..."
        )
    found, timings = noise.estimate(), noise.timings()
    if isinstance(found, NoEstimate) or not timings:
        return 0.0, 0.0
    return found.high, timings[-1].batch * timings[-1].passes
