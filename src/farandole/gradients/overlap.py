"""Overlap of gradient reduction with the backward pass: the choice, and the thread that reduces meanwhile.

choose_overlap("auto", nbytes, lane.crosses_hosts)      # "backward", and why
background = Background("optimizer.0")
background.run(lambda: lane.allreduce(...))
background.finish()                             # raises what the first failing task raised

Threads. Autograd's thread gives tasks, the background thread runs them one after the other: the planned lane beneath
takes one thread at a time, and its members expect one order.
"""

from __future__ import annotations

import queue
import weakref
from collections.abc import Callable
from functools import partial
from typing import Literal, TypeAlias, final

from farandole.gradients.background import BackgroundTask

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
