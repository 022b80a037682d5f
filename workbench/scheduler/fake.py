"""Scheduler of a ``FakeCluster``, for tests of code that uses schedulers: no processes, and only the cluster's time.

>>> cluster = FakeCluster(nodes=2)
>>> scheduler = FakeScheduler(cluster, delay_s=0.1)
>>> scheduler.submit("#SBATCH --time=60", 3, "b1946ac9")
>>> scheduler.answers()
[]
>>> cluster.advance(0.1)
>>> scheduler.answers()
[Submitted(nonce='b1946ac9', array='1')]
>>> scheduler.close()
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, final

from farandole.control.wakeup import Wakeup
from farandole.launch.leases.scheduler import (
    Answer,
    CallDone,
    CallRefused,
    CallUnanswered,
    Looked,
    NodesLooked,
    Scheduler,
    Submitted,
)
from workbench.scheduler.cluster import FakeCluster, FakeRefusedError


class _Asked(NamedTuple):
    name: str
    subject: str
    act: Callable[[], Answer]


@final
class FakeScheduler(Scheduler):
    """Scheduler whose calls take ``delay_s`` of the cluster's time each, one after the other.

    A call is given up after ``patience_s`` if the cluster is away or hanging when the call begins.
    """

    holds = True

    def __init__(self, cluster: FakeCluster, *, delay_s: float = 0.0, patience_s: float = 60.0) -> None:
        self._cluster, self._delay_s, self._patience_s = cluster, delay_s, patience_s
        self._wakeup = Wakeup()
        self._waiting: deque[_Asked] = deque()
        self._due_s: float | None = None
        self._answers: list[Answer] = []

    def submit(self, script: str, count: int, nonce: str) -> None:
        """Begin to submit an array."""
        self._ask("submit", nonce, lambda: Submitted(nonce, self._cluster.submit(script, count, nonce)))

    def find(self, nonce: str) -> None:
        """Begin to look for an array."""
        self._ask("find", nonce, lambda: Submitted(nonce, self._cluster.find(nonce)))

    def look(self, array: str) -> None:
        """Begin a look."""
        self._ask("look", array, lambda: Looked(array, self._cluster.jobs(array)))

    def look_at_nodes(self, nodes: Sequence[str]) -> None:
        """Begin a look at nodes."""
        asked = tuple(nodes)
        self._ask("look_at_nodes", "", lambda: NodesLooked(asked, self._cluster.drained(asked)))

    def start(self, job: str) -> None:
        """Begin to release a job."""
        self._do("start", job, lambda: self._cluster.release(job))

    def cancel(self, job: str) -> None:
        """Begin to cancel a job."""
        self._do("cancel", job, lambda: self._cluster.cancel(job))

    def set_limit(self, job: str, minutes: int) -> None:
        """Begin to set a time limit."""
        self._do("set_limit", job, lambda: self._cluster.set_limit(job, minutes))

    def set_nice(self, job: str, nice: int) -> None:
        """Begin to lower a priority."""
        self._do("set_nice", job, lambda: self._cluster.set_nice(job, nice))

    def answers(self) -> list[Answer]:
        """New answers, in the order of their calls."""
        self._wakeup.clear()
        answers, self._answers = self._answers, []
        return answers

    @property
    def fds(self) -> tuple[int, ...]:
        """A descriptor that is readable when there are answers."""
        return (self._wakeup.fd,) if self._wakeup.fd >= 0 else ()

    @property
    def deadline_s(self) -> float | None:
        """Time of the cluster at which the call under way is answered or given up."""
        return self._cluster.now_s if self._answers else self._due_s

    def close(self) -> None:
        """Drop all calls."""
        self._waiting.clear()
        self._due_s = None
        self._wakeup.close()

    def _do(self, name: str, job: str, act: Callable[[], None]) -> None:
        def done() -> Answer:
            act()
            return CallDone(name, job)

        self._ask(name, job, done)

    def _ask(self, name: str, subject: str, act: Callable[[], Answer]) -> None:
        self._waiting.append(_Asked(name, subject, act))
        if self._due_s is None:
            self._begin()

    def _begin(self) -> None:
        """Start the waiting calls, until one takes time."""
        while self._waiting and self._due_s is None:
            asked = self._waiting.popleft()
            if self._cluster.is_away or self._cluster.is_hanging:
                if not self._cluster.is_away:
                    _answer(asked)  # without an answer
                self._wait(self._patience_s, partial(self._give_up, asked))
            elif self._delay_s:
                self._wait(self._delay_s, partial(_answer, asked))
            else:
                self._take(_answer(asked))

    def _give_up(self, asked: _Asked) -> Answer:
        return CallUnanswered(asked.name, asked.subject, f"it has not answered for {self._patience_s:g} s")

    def _wait(self, seconds: float, answer: Callable[[], Answer]) -> None:
        due_s = self._due_s = self._cluster.now_s + seconds

        def come() -> None:
            if self._due_s == due_s:  # not closed meanwhile
                self._due_s = None
                self._take(answer())
                self._begin()

        self._cluster.at(due_s, come)

    def _take(self, answer: Answer) -> None:
        self._answers.append(answer)
        self._wakeup.signal()


def _answer(asked: _Asked) -> Answer:
    try:
        return asked.act()
    except FakeRefusedError as error:
        return CallRefused(asked.name, asked.subject, str(error))
