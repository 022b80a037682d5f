"""Overlap of gradient reduction with the backward pass that computes the gradients.

choose_overlap("auto", nbytes, lane.crosses_hosts)      # "backward", and why
overlapped = OverlappedPass(lane, buckets, point, how, weight, waits)
overlapped.arrived(param)                               # its gradient is complete
overlapped.finish()                                     # raises what went wrong meanwhile
"""

# Two threads. The thread of the backward pass tells ``arrived`` what is complete, and has ``_begun``, ``_missing``,
# ``_complete`` and ``spoiled`` for itself. The background thread does the tasks it is given in their order, alone uses
# the lane, and alone touches ``_states`` until ``finish`` has joined it. A bucket goes from one to the other: the
# background thread takes its gradients and reduces it; the results are written to ``param.grad`` only after ``finish``,
# by the caller of that (those of a gradient that is reduced where it lies are there sooner).
#
# That ``param.grad`` is read without a lock is safe as autograd has completed a gradient before it tells of it. It may
# add to it again only in a nested pass, and a hook that is called after ours may change it. Then nobody knows which
# values the bucket has taken: that is ``spoiled``, and an error on every member. A change is one of the tensor or of
# its version, which the background thread must not move. Tensors in one buffer have one version: theirs says nothing.
#
# Buckets begin in one order on all members, though a later one may be complete sooner: a lane knows what a member
# sends by its order alone.

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
"""Fewer bytes cross between hosts in less time than it takes to give them to another thread."""


def choose_overlap(asked: str, nbytes: int, crosses_hosts: bool) -> tuple[Overlap, str]:
    """Choose when to reduce gradients, and say why: after the backward pass (``step``), or during it (``backward``).

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
    """Background thread of one backward pass; it runs the collectives that it is given, in order."""

    def __init__(self, label: str) -> None:
        self._tasks: _Tasks = queue.SimpleQueue()
        self._work = BackgroundTask(partial(_work, self._tasks), f"farandole-{label}")
        # After a backward pass that raises, ``finish`` comes with the next one, if there is one. If not, the thread
        # ends when this is collected; it runs what it has been given, as the other ranks do.
        weakref.finalize(self, self._tasks.put, None).atexit = False

    def run(self, task: Callable[[], object]) -> None:
        """Queue a task after those given before; nothing more is done once a task has raised."""
        self._tasks.put(task)

    def finish(self) -> None:
        """Wait for all tasks, and raise what the first failing one has raised."""
        self._tasks.put(None)
        self._work.result()


def _work(tasks: _Tasks) -> None:
    try:
        while (task := tasks.get()) is not None:
            task()
            del task  # it refers to gradients, and the next may be long in coming
    except BaseException:
        # The rest is taken and dropped, up to the ``None`` of ``finish``: the finalizer keeps the queue, and what
        # stayed in there, which refers to the pass, would never be collected.
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

    What is never complete (a parameter was not used) is reduced by ``finish``. Nothing is, if some rank ``waits``: it
    must see all gradients before it knows how to reduce the first.
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
        """A parameter whose gradient has become another one since it was complete, and how."""
        self._background = Background(lane.label)
        self._states: list[str] = []
        # A task as well: here, the backward pass would wait for the slowest rank before its first gradient is reduced.
        self._background.run(lambda: self._states.extend(lane.meet(point, WAIT if waits else BEGIN)))

    def arrived(self, param: Param) -> None:
        """The gradient of ``param`` is complete, unless this is said again.

        Reentrant checkpointing runs a pass within this one for each block, and a parameter of two blocks is in two.
        """
        index = self._bucket_of.get(id(param))
        if index is not None:
            if index < self._begun:  # no error here: the others must hear of it in a meeting, once the lane is free
                self.spoiled = param, ADDED_TO
            gradient = self._tensors.gradient(param)
            self._complete[id(param)] = param, gradient, 0 if gradient is None else self._tensors.version(gradient)
            self._missing[index].discard(id(param))
            while self._begun < len(self._buckets) and not self._missing[self._begun]:
                self._begin()

    def finish(self) -> bool:
        """Reduce the rest and wait for all; raises what went wrong meanwhile. False if some rank waits."""
        while self._begun < len(self._buckets):
            self._begin()
        self._background.finish()  # raises what a task has: ``_states`` may be empty then, which is not "nobody waits"
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
        i, bucket = self._begun, self._buckets[self._begun]  # now: ``_begun`` has moved on when the task runs
        self._begun += 1

        def reduce() -> None:
            if WAIT in self._states:  # of all members alike, and known, as the meeting was the first task
                return
            # A new thread has gradients enabled, whatever the thread of the backward pass has: the mode is per thread.
            begin_s = time.monotonic()
            with self._tensors.untracked():
                bucket.fill_alone()
                if self._weight != 1.0:
                    bucket.weigh(self._weight)
            if events.subscribers:
                self._lane.phase(f"bucket {i}", "copy", begin_s, bucket.nbytes)
            self._lane.allreduce(f"bucket {i}", bucket.array, self._how)

        self._background.run(reduce)
