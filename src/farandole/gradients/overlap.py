"""Whether gradients are reduced while the backward pass runs, and the thread that does it then.

choose_overlap("auto", nbytes, lane.crosses_hosts)      # "backward", and why
background = Background("optimizer.0")
background.run(lambda: lane.allreduce(...))
background.finish()                             # raises what the first failing task raised
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
    """When to reduce gradients, and why: when the backward pass has ended (``step``), or while it runs (``backward``).

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
    """Runs the collectives of one backward pass in order, on a thread that lives as long as the pass."""

    def __init__(self, label: str) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name=f"farandole-{label}", daemon=True)
        self._thread.start()

    def run(self, task: Callable[[], object]) -> None:
        """Do this after what was given before; nothing more is done once a task has raised."""
        self._tasks.put(task)

    def finish(self) -> None:
        """Wait for all of it."""
        self._tasks.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            if self._error is None:
                try:
                    task()
                except BaseException as error:
                    self._error = error
