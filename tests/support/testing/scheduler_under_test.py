"""The fake scheduler, and wrong ones made of it, for the contract of schedulers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farandole.launch.leases.scheduler import Answer, Scheduler
from workbench.scheduler.cluster import FakeCluster
from workbench.scheduler.fake import FakeScheduler
from workbench.scheduler.under_test import SchedulerUnderTest

Wrap = Callable[[FakeScheduler, FakeCluster], Scheduler]


class FakeUnderTest(SchedulerUnderTest):
    """A fake cluster; ``wrap`` makes what is tested of each of its schedulers."""

    def __init__(self, wrap: Wrap = lambda scheduler, _: scheduler, delay_s: float = 0.02) -> None:
        self._wrap, self._delay_s = wrap, delay_s
        self.cluster = FakeCluster(self.nodes)

    def scheduler(self, patience_s: float) -> Scheduler:
        fake = FakeScheduler(self.cluster, delay_s=self._delay_s, patience_s=patience_s)
        return self._wrap(fake, self.cluster)

    def script(self, minutes: int) -> str:
        return f"#!/bin/sh\n#SBATCH --time={minutes}\n"

    def impossible_script(self) -> str:
        return "#!/bin/sh\n#SBATCH --partition=nowhere\n"

    def clear(self) -> None:
        self.cluster = FakeCluster(self.nodes)

    def bar(self, job: str) -> None:
        self.cluster.bar(job)

    def drain(self, node: str, reason: str) -> None:
        self.cluster.drain(node, reason)

    def undrain(self, node: str) -> None:
        self.cluster.undrain(node)

    def close_queue(self) -> None:
        self.cluster.refusals["submit"] = "Required partition not available (inactive or drain)"

    def open_queue(self) -> None:
        del self.cluster.refusals["submit"]

    def go_away(self) -> None:
        self.cluster.is_away = True

    def hang(self) -> None:
        self.cluster.is_hanging = True

    def come_back(self) -> None:
        self.cluster.is_away = self.cluster.is_hanging = False

    def now(self) -> float:
        return self.cluster.now_s

    def wait(self, scheduler: Scheduler) -> None:
        assert scheduler.deadline_s is not None
        self.cluster.advance(max(0.0, scheduler.deadline_s - self.cluster.now_s))

    def pause(self) -> None:
        self.cluster.advance(0.25)


class Wrapped(Scheduler):
    """A scheduler that does as another one; ``calls`` come before its methods, and may leave the call to it."""

    holds = True

    def __init__(
        self,
        inner: FakeScheduler,
        calls: Mapping[str, Callable[..., object]],
        change: Callable[[list[Answer]], list[Answer]] = lambda answers: answers,
    ) -> None:
        self.inner, self._calls, self._change = inner, calls, change

    def _call(self, name: str, *arguments: Any) -> None:
        self._calls.get(name, getattr(self.inner, name))(*arguments)

    def submit(self, script: str, count: int, nonce: str) -> None:
        self._call("submit", script, count, nonce)

    def find(self, nonce: str) -> None:
        self._call("find", nonce)

    def look(self, array: str) -> None:
        self._call("look", array)

    def look_at_nodes(self, nodes: Sequence[str]) -> None:
        self._call("look_at_nodes", nodes)

    def start(self, job: str) -> None:
        self._call("start", job)

    def cancel(self, job: str) -> None:
        self._call("cancel", job)

    def set_limit(self, job: str, minutes: int) -> None:
        self._call("set_limit", job, minutes)

    def set_nice(self, job: str, nice: int) -> None:
        self._call("set_nice", job, nice)

    def answers(self) -> list[Answer]:
        return self._change(self.inner.answers())

    @property
    def fds(self) -> tuple[int, ...]:
        return self.inner.fds

    @property
    def deadline_s(self) -> float | None:
        return self.inner.deadline_s

    def close(self) -> None:
        self._call("close")
