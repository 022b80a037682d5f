"""Overlap of gradient reduction with the backward pass: the choice, and the thread that reduces meanwhile.

choose_overlap("auto", nbytes, lane.crosses_hosts)      # "backward", and why
background = Background("optimizer.0")
background.run(lambda: lane.allreduce(...))
background.finish()                             # raises what the first failing task raised

Threads. Autograd's thread gives tasks, the background thread runs them one after the other: the planned lane beneath
takes one thread at a time, and its members expect one order. ``_error`` has no lock: the background thread writes it,
and the other one reads it after joining that.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Literal, TypeAlias, final

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


@final
class Background:
    """Background thread of one backward pass; it runs the collectives that it is given, in order."""

    def __init__(self, label: str) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        # A daemon: after a backward pass that raises, ``finish`` comes with the next one, if there is one. The
        # interpreter's end would wait for any other thread.
        self._thread = threading.Thread(target=self._work, name=f"farandole-{label}", daemon=True)
        self._thread.start()

    def run(self, task: Callable[[], object]) -> None:
        """Queue a task after those given before; nothing more is done once a task has raised."""
        self._tasks.put(task)

    def finish(self) -> None:
        """Wait for all tasks, and raise what the first failing one has raised."""
        self._tasks.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            if self._error is None:  # the rest is taken and dropped, up to the ``None`` of ``finish``
                try:
                    task()
                except BaseException as error:  # whatever it is, it is for the thread that calls ``finish``
                    self._error = error
