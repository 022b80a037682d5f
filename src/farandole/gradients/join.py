"""Leaving a round of collectives early: ``join``, for ranks that have fewer batches than others."""

# Threads. While the calling thread waits in the negotiated lane until all ranks have joined, a thread for each
# optimizer serves what ranks that still train reduce. One thread for all would not do: lanes are apart, and nobody
# knows in which order the others will come to them. A serving thread has its reducer for itself until it is joined;
# ``served`` is set only after that.
#
# It ends when all members of its process set serve. If some rank does not have the optimizer any more, that never is:
# then all ranks, having told each other in ``_end`` what they serve, end it by ``forsake``: in its lane, or a pairing.

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
    """Number of joins of this process, each with all other ranks; what ranks count since the last, they count alike."""
    return _joins[0]


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
    _require_apart()
    settle()  # before any thread serves: programs that are under way have steps of this rank's own
    if not all(_is_forsakable(reducer, session) for reducer in living_reducers()):
        gc.collect()  # before any thread holds a reducer
    serving = [_Serving(reducer) for reducer in living_reducers()]
    last = session.join()
    _joins[0] += 1  # before ``_end``, for which it makes a label that no earlier join has used
    _end(serving, session)  # alone, too: a thread that serves drops what lags behind, which the script may go on with
    if session.topology.size > 1:
        served = {each.label: each.served for each in serving}
        told = allgather_object((served, session.steps), name="join.served")
        last = _latest(last, [theirs for theirs, _ in told])
        session.catch_up(max(steps for _, steps in told))
    return last


def _require_apart() -> None:
    """Raise ``UsageError`` where an optimizer's steps need this rank; one out of anybody's reach is collected first."""
    if any(each.steps_together for each in living_reducers()):
        gc.collect()
    if label := next((each.label for each in living_reducers() if each.steps_together), ""):
        raise UsageError(
            f"join() with an optimizer of shard_state=True ({label}): the steps of the others need the part of the "
            "state that this rank keeps. Give all ranks equally many batches, or leave shard_state out"
        )


def _latest(last: int, served: Sequence[Mapping[str, int]]) -> int:
    """The rank that has missed no step, which the controller takes for the ``last`` in most cases.

    A rank serves the others' optimizers as soon as it is about to join, and its word may reach the controller after
    that of a rank that has trained on meanwhile. Who has served a reduction has missed that step.
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
    """Finish what all members of its process set have served, and give up the rest."""
    sets = session.process_sets()
    mine = [(each.process_set.process_set_id, each.label) for each in serving]
    every = allgather_object(mine, name="join.optimizers")
    partial = {
        (number, label)
        for number, label in set().union(*every)
        if number in sets and not all((number, label) in every[rank] for rank in sets[number].ranks)
    }
    forsaken = [each for each, told in zip(serving, mine, strict=True) if told in partial]
    for each in forsaken:  # before the rounds that follow, in which threads in a pairing learn of it
        each.forsake()
    for number in sorted({number for number, _ in partial}):  # who waits there for a partner is in a round with all
        if sets[number].included():
            pairing(session, sets[number]).pair(session, Unpaired(f"join {joins()}", ()))
    for each in serving:  # last: a thread in a pairing comes out of it only by the rounds above
        each.finish(forsaken=each in forsaken)


def _is_forsakable(reducer: GradientReducer[Any], session: Session) -> bool:
    """True if it costs nothing should other ranks have lost this optimizer: its lane is there, and can be aborted.

    One out of anybody's reach is gone on this rank when its garbage collector runs, and on another perhaps before. The
    first use of a lane waits for all ranks, and cannot be taken back; only then is a collection worth its 0.2 s.
    """
    lanes = reducer._held.lanes.values()
    return any(lane.session is session for lane in lanes) or not reducer._is_needed(session)


@final
class _Serving:
    """Takes part in the reductions of one optimizer, on a thread of its own."""

    def __init__(self, reducer: GradientReducer[Any]) -> None:
        self._reducer = reducer
        self.served = 0
        """Number of the other ranks' reductions that it took part in, after ``finish``."""
        self._task = BackgroundTask(reducer.serve, f"farandole-join-{reducer.label}")

    @property
    def process_set(self) -> ProcessSet:
        return self._reducer.process_set

    @property
    def label(self) -> str:
        """Label of the optimizer, the same on all ranks that it has been paired with."""
        return self._reducer.label

    def forsake(self) -> None:
        """Other ranks do not have this optimizer any more: nobody will come."""
        self._reducer.forsake(self._task.wait)

    def finish(self, forsaken: bool) -> None:
        if forsaken:  # it ends by an abort
            self._task.wait()
        else:
            self.served = self._task.result()
