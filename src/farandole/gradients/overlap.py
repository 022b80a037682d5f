"""Overlap of gradient reduction with the backward pass that computes the gradients.

choose_overlap("auto", nbytes, lane.crosses_hosts)      # "backward", and why
overlapped = OverlappedPass(lane, buckets, point, how, weight, waits)
overlapped.arrived(param)                               # its gradient is complete
overlapped.finish()                                     # raises what went wrong meanwhile
"""

# Two threads. The thread of the backward pass calls ``arrived`` for each complete gradient, and owns ``_begun``,
# ``_missing``, ``_complete`` and ``spoiled``. The background thread runs its tasks in order, alone uses the lane, and
# alone touches ``_states`` until ``finish`` has joined it. A bucket passes from one thread to the other: the background
# thread copies its gradients and reduces it; the caller of ``finish`` then writes the results to ``param.grad`` (a lone
# gradient is reduced in place, so its result is there sooner).
#
# Reading ``param.grad`` without a lock is safe, because autograd calls the hook only after it completed the gradient.
# Autograd adds to it again only in a nested pass, and a hook that runs after ours may change it. Then the values in the
# bucket are unknown: ``spoiled`` is set, and every member raises. A new tensor or a new version reveals the change, so
# the background thread must not advance the version. Tensors in one buffer share a version, which is ignored.
#
# Buckets begin in one order on all members, even if a later bucket is complete sooner: a lane matches collectives by
# their order alone.

from __future__ import annotations

import queue
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, Literal, TypeAlias, final

from farandole import events
from farandole.collective import Reduction
from farandole.gradients.background import BackgroundTask
from farandole.gradients.parameters import GradientBucket
from farandole.gradients.tensors import Param, T, Tensors
from farandole.runtime.collectives.planned import PlannedLane

Overlap: TypeAlias = Literal["step", "backward"]

OVERLAP_BYTES = 2**20
"""Below this size, the transfer between hosts takes less time than a hand-over to another thread."""


def choose_overlap(asked: str, nbytes: int, crosses_hosts: bool) -> tuple[Overlap, str]:
    """Choose when to reduce gradients, with the reason: after the backward pass (``step``) or during it (``backward``).

    >>> choose_overlap("auto", nbytes=40 * 2**20, crosses_hosts=True)
    ('backward', 'the network works while the cores compute')
    """
    if asked == "backward":
        return "backward", "it was asked for"
    if asked == "step":
        return "step", "it was asked for"
    if not crosses_hosts:
        return "step", "within a host, reducing takes the cores that the backward pass needs"
    if nbytes < OVERLAP_BYTES:
        return "step", f"{nbytes} bytes cross sooner than another thread takes them over"
    return "backward", "the network works while the cores compute"


_Tasks: TypeAlias = "queue.SimpleQueue[Callable[[], object] | None]"


@final
class Background:
    """Background thread of one backward pass; runs the queued collectives in order."""

    def __init__(self, label: str) -> None:
        self._tasks: _Tasks = queue.SimpleQueue()
        self._work = BackgroundTask(partial(_work, self._tasks), f"farandole-{label}")
        # After a backward pass that raises, the next pass calls ``finish``. If there is no next pass, the thread ends
        # when this object is collected; until then it runs all queued tasks, because the other ranks run theirs.
        weakref.finalize(self, self._tasks.put, None).atexit = False

    def submit(self, task: Callable[[], object]) -> None:
        """Queue a task. After a task has raised, the thread runs no further task."""
        self._tasks.put(task)

    def finish(self) -> None:
        """Wait for all tasks, and raise the error of the first that failed."""
        self._tasks.put(None)
        self._work.result()


def _work(tasks: _Tasks) -> None:
    try:
        while (task := tasks.get()) is not None:
            task()
            del task  # the task refers to gradients, and the next task may be queued much later
    except BaseException:
        # Drop the remaining tasks, up to the ``None`` of ``finish``: the finalizer keeps the queue alive, and queued
        # tasks refer to the pass, which would then never be collected.
        while tasks.get() is not None:
            pass
        raise


BEGIN, WAIT = "begin", "wait"

ADDED_TO = (
    "added to afterwards, as reentrant checkpointing of two blocks that share a parameter does: call "
    "checkpoint(..., use_reentrant=False)"
)
CHANGED = (
    "changed before that pass was over, as a hook of the parameter can: register it before DistributedOptimizer() is "
    "called, change gradients after backward()"
)


@final
class OverlappedPass(Generic[T]):
    """One backward pass. Buckets are reduced in their order, each as soon as it and all before it are complete.

    Buckets that stay incomplete (a parameter was not used) are reduced by ``finish``. If some rank ``waits``, nothing
    is reduced during the pass: that rank needs all gradients before it knows how to reduce the first.
    """

    def __init__(
        self,
        lane: PlannedLane,
        buckets: Sequence[GradientBucket[T]],
        point: str,
        how: Reduction,
        weight: float,
        waits: bool,
        tensors: Tensors[T],
    ) -> None:
        self._lane, self._buckets, self._how, self._weight = lane, buckets, how, weight
        self._tensors = tensors
        self._begun = 0
        self._missing = [{id(param) for param in bucket.params} for bucket in buckets]
        self._bucket_of = {id(param): i for i, bucket in enumerate(buckets) for param in bucket.params}
        self._complete: dict[int, tuple[Param, T | None, int]] = {}  # with the gradient and its version, by ``id``
        self.spoiled: tuple[Param, str] | None = None
        """Parameter whose gradient changed after it was complete, with the kind of change."""
        self._background = Background(lane.label)
        self._states: list[str] = []
        # The meeting is a task, too: on this thread, the backward pass would wait here for the slowest rank.
        self._background.submit(lambda: self._states.extend(lane.meet(point, WAIT if waits else BEGIN)))

    def arrived(self, param: Param) -> None:
        """Mark the gradient of ``param`` as complete; a later call for ``param`` replaces an earlier one.

        Reentrant checkpointing runs a nested pass for each block, so a parameter of two blocks completes twice.
        """
        index = self._bucket_of.get(id(param))
        if index is not None:
            if index < self._begun:  # no error here: a meeting must report it to the others, once the lane is free
                self.spoiled = param, ADDED_TO
            gradient = self._tensors.gradient(param)
            self._complete[id(param)] = param, gradient, 0 if gradient is None else self._tensors.version(gradient)
            self._missing[index].discard(id(param))
            while self._begun < len(self._buckets) and not self._missing[self._begun]:
                self._begin()

    def finish(self) -> bool:
        """Reduce the rest, wait for all tasks, and raise the first error. False if some rank ``waits``."""
        while self._begun < len(self._buckets):
            self._begin()
        self._background.finish()  # raises a task's error: after one, ``_states`` may be empty and must not be read
        complete, self._complete = self._complete, {}
        changed = next(filter(self._is_changed, complete.values()), None)
        if self.spoiled is None and changed is not None:
            self.spoiled = changed[0], CHANGED
        return WAIT not in self._states

    def _is_changed(self, known: tuple[Param, T | None, int]) -> bool:
        param, then, version = known
        now = self._tensors.gradient(param)
        if now is None or now is not then:
            return now is not then
        return self._tensors.version(now) != version and not self._tensors.is_part(now)

    def _begin(self) -> None:
        i, bucket = self._begun, self._buckets[self._begun]  # read now: ``_begun`` is higher when the task runs
        self._begun += 1

        def reduce() -> None:
            if WAIT in self._states:  # the same on all members, and known here: the meeting was the first task
                return
            # The autograd mode is per thread, and a new thread starts with gradients enabled.
            begin_s = time.monotonic()
            with self._tensors.untracked():
                bucket.fill_alone()
                if self._weight != 1.0:
                    bucket.weigh(self._weight)
            if events.subscribers:
                self._lane.phase(f"bucket {i}", "copy", begin_s, bucket.nbytes)
            self._lane.allreduce(f"bucket {i}", bucket.array, self._how)

        self._background.submit(reduce)
