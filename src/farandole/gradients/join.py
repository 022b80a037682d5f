"""Ranks with fewer batches than others: ``join`` takes part in collectives until all ranks have joined."""

# Threads. The calling thread waits in the negotiated lane until all ranks have joined. Meanwhile one thread per
# optimizer takes part in the reductions of the ranks that still train. One thread for all would not do: each optimizer
# has its lane, and the order in which other ranks use the lanes is unknown. A serving thread owns its reducer until the
# thread is joined; ``served`` is set only after that.
#
# A serving thread ends when all members of its process set serve: never, if some rank has dropped the optimizer. So all
# ranks exchange in ``_end`` what they serve, and end such a thread by ``forsake``: in its lane or in a pairing.

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from typing import Any, final

from farandole.errors import UsageError
from farandole.gradients.background import BackgroundTask
from farandole.gradients.step_reducer import GradientReducer, living_reducers
from farandole.runtime.collectives.objects import allgather_object
from farandole.runtime.collectives.pairing import Unpaired, pairing
from farandole.runtime.session.init import Session, current, settle
from farandole.runtime.session.process_sets import ProcessSet

_joins = [0]


def joins() -> int:
    """Number of joins of this process. All ranks join together, so counters that restart at a join agree."""
    return _joins[0]


def join(device: int = -1) -> int:  # noqa: ARG001 (Horovod's GPU)
    """Take part in the other ranks' collectives without contributing, until all have called this.

    >>> for batch in my_batches:            # not equally many on every rank
    ...     train(batch)
    >>> last = hvd.join()

    Returns the rank that joined last. This rank contributes zeros to the others' allreduces (an Average is still over
    all ranks), and nothing to their gathers. The same holds for distributed optimizers: the gradients of ranks that
    still train are averaged over all ranks. ``device`` is accepted for compatibility.
    """
    session = current("join()")
    _require_apart()
    settle()  # before any thread serves: compiled programs that still run may contain steps of this rank
    if not all(reducer.is_forsakable(session) for reducer in living_reducers()):
        # The collector frees an unreachable optimizer at another time on each rank. Only here is that worth its 0.2 s.
        gc.collect()  # before any thread holds a reducer
    serving = [_Serving(reducer) for reducer in living_reducers()]
    last = session.join()
    _joins[0] += 1  # before ``_end``, which needs a label that no earlier join has used
    _end(serving, session)  # also with one rank: a serving thread drops lagged runs, and the script may train on
    if session.topology.size > 1:
        served = {each.label: each.served for each in serving}
        told = allgather_object((served, session.gate.steps), name="join.served")
        last = _latest(last, [theirs for theirs, _ in told])
        session.gate.steps = max(steps for _, steps in told)
    return last


def _require_apart() -> None:
    """Raise ``UsageError`` if an optimizer's steps need this rank. Unreachable optimizers are collected first."""
    if any(each.steps_together for each in living_reducers()):
        gc.collect()
    if label := next((each.label for each in living_reducers() if each.steps_together), ""):
        raise UsageError(
            f"join() with an optimizer of shard_state=True ({label}): the steps of the others need the part of the "
            "state that this rank keeps. Give all ranks equally many batches, or leave shard_state out"
        )


def _latest(last: int, served: Sequence[Mapping[str, int]]) -> int:
    """Rank that missed no step. In most cases this is ``last``, the controller's answer.

    A rank serves the others' optimizers before its join reaches the controller. The join may arrive after the join of a
    rank that trained on meanwhile. A rank that served a reduction has missed that step.
    """
    for _ in served:
        own = served[last]
        ahead = [
            sum(own[label] - theirs[label] for label in own.keys() & theirs.keys() if theirs[label] < own[label])
            for theirs in served
        ]
        if not any(ahead):
            break
        last = ahead.index(max(ahead))
    return last


def _end(serving: list[_Serving], session: Session) -> None:
    """Finish the reducers that all members of their process set served, and abort the others."""
    sets = session.sets
    mine = [(each.process_set.process_set_id, each.label) for each in serving]
    every = allgather_object(mine, name="join.optimizers")
    partial = {
        (number, label)
        for number, label in set().union(*every)
        if number in sets and not all((number, label) in every[rank] for rank in sets[number].ranks)
    }
    forsaken = [each for each, told in zip(serving, mine, strict=True) if told in partial]
    for each in forsaken:  # before the rounds below, which release the threads that wait in a pairing
        each.forsake()
    for number in sorted({number for number, _ in partial}):  # a thread that waits in a pairing needs a round of all
        if sets[number].included():
            pairing(session, sets[number]).pair(session, Unpaired(f"join {joins()}", ()))
    for each in serving:  # last: only the rounds above release a thread in a pairing
        each.finish(forsaken=each in forsaken)


@final
class _Serving:
    """Thread that takes part in the reductions of one optimizer."""

    def __init__(self, reducer: GradientReducer[Any]) -> None:
        self._reducer = reducer
        self.served = 0
        """Number of reductions of other ranks that the thread took part in; set by ``finish``."""
        self._task = BackgroundTask(reducer.serve, f"farandole-join-{reducer.label}")

    @property
    def process_set(self) -> ProcessSet:
        return self._reducer.process_set

    @property
    def label(self) -> str:
        """Label of the optimizer, the same on all ranks after pairing."""
        return self._reducer.label

    def forsake(self) -> None:
        """Abort serving, because other ranks do not have this optimizer any more."""
        self._reducer.forsake(self._task.wait)

    def finish(self, forsaken: bool) -> None:
        if forsaken:  # the thread ends by an abort
            self._task.wait()
        else:
            self.served = self._task.result()
