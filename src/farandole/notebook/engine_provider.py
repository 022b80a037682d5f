"""Provider whose processes are the engines of a notebook: ``farandole.search(train, space, pool=ranks)``.

Each engine runs one task until the search is over: the loop of a warm worker, which joins trial after trial. The
session of its cells is set aside meanwhile, as in any task, and variables of cells stay. An engine belongs to the user
who started it. So an engine is interrupted where other processes are killed, and killed only if it does not react; a
dead engine is not started again, and its slot is taken away. If a cell runs, the task waits behind it; it is cancelled
when the search ends, because an interrupt would hit the cell.
"""

# Threads. The search's thread calls everything; the client's own thread only wakes it up when a task is done.

from __future__ import annotations

import contextlib
import math
import select
import signal
import socket
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from ipyparallel.error import NoEnginesRegistered

from farandole.cluster.contact import Contact
from farandole.control.agent_messages import Started, WorkerSpec
from farandole.control.exits import WorkerExited
from farandole.control.search_messages import PoolHello
from farandole.control.wakeup import Wakeup
from farandole.errors import UsageError
from farandole.events import logger
from farandole.launch.providers.provider import END_S, LEAVE_S, HostOffered, Provider, ProviderEvent, own_path
from farandole.notebook.outcome import DIED, read
from farandole.runtime.coordination.downlink import Send
from farandole.search.engine_worker import BEGUN, serve_in_engine

if TYPE_CHECKING:
    from farandole.notebook.guard import EngineReport

COME_S = 10.0
"""Time for an engine to begin its task; after that a warning names the engine as busy."""

NO_ENGINE = (LookupError, NoEnginesRegistered)
"""Errors of IPython Parallel if an engine has died, possible in every call."""


@final
@dataclass
class _EngineTask:
    """Task of an engine; a warning names the engine at ``late_s`` if the task has not begun by then."""

    engine: int
    result: Any
    late_s: float
    has_connected: bool = False
    is_cancelled: bool = False

    @property
    def is_serving(self) -> bool:
        """True if it runs; a task that has not begun may wait behind something else, which must not be interrupted.

        Of two signs of that either may be the first: what the task publishes may arrive after its worker has connected.
        """
        has_begun = self.has_connected or self.result.metadata["data"].get(BEGUN)
        return bool(has_begun) and not self.result.done()


@final
class EngineProvider(Provider):
    """Engines of ``client``, of IPython Parallel, a process each; ``engines`` by their numbers in the client."""

    heed_s = 10.0
    remedy = "start engines in the place of those that have died (ranks.replace()); then the same call goes on"

    def __init__(self, client: Any, engines: Mapping[int, EngineReport]) -> None:
        super().__init__()
        self._client, self._engines = client, dict(engines)
        self.slots = Counter(it.host for it in engines.values())
        self.reaches_out = set(self.slots) != {socket.gethostname()}
        if self.reaches_out and not self._client.curve_serverkey:
            raise UsageError(
                "pool=ranks: some engines are on other hosts, and the secret of the search would travel to them "
                "readable: let IPython Parallel encrypt its connections (c.IPController.enable_curve = True in "
                "ipcontroller_config.py)"
            )
        self._contact = b""
        self._tasks: dict[int, _EngineTask] = {}
        self._wakeup: Wakeup | None = None

    def open(self, contact: Contact, send: Send) -> None:
        """See ``Provider``."""
        self._contact, self._wakeup = contact.encode(), Wakeup()
        self._news += [HostOffered(host, slots) for host, slots in self.slots.items()]

    def start(self, host: str, workers: Sequence[WorkerSpec]) -> None:
        """See ``Provider``. An engine that is alive and free gets a task, whatever the command."""
        busy = {task.engine for task in self._tasks.values()}
        free = [engine for engine, it in self._engines.items() if it.host == host and engine not in busy]
        for worker, engine in zip(workers, free, strict=False):
            self._start(worker.worker_id, engine)
        for worker in workers[len(free) :]:
            self._news.append(WorkerExited(worker.worker_id, 1, host=host, error=f"found no free engine on {host}"))

    def kill(self, host: str, worker_id: int, number: int = signal.SIGKILL) -> None:
        """See ``Provider``. A task that waits behind something else is cancelled."""
        task = self._tasks.get(worker_id)
        if task is None:
            return
        if not task.is_serving:
            self._cancel(task)
        else:
            if number == signal.SIGKILL:
                logger.warning("engine %d is killed: it has not heeded an interrupt for %g s", task.engine, self.heed_s)
            self._signal(number, [task.engine])

    @property
    def fds(self) -> Collection[int]:
        """See ``Provider``."""
        return () if self._wakeup is None else (self._wakeup.fd,)

    @property
    def deadline_s(self) -> float:
        """See ``Provider``."""
        return min([super().deadline_s, *(task.late_s for task in self._tasks.values())])

    def events(
        self, now: float, ready: Collection[int] = (), mail: Sequence[tuple[bytes, Any]] = ()
    ) -> list[ProviderEvent]:
        """See ``Provider``."""
        for _, message in mail:
            if isinstance(message, PoolHello) and message.worker_id in self._tasks:
                self._tasks[message.worker_id].has_connected = True
        if self._wakeup is not None:
            self._wakeup.clear()  # before the tasks are checked: a task that ends later signals again
        for worker_id in [worker_id for worker_id, task in self._tasks.items() if task.result.done()]:
            self._on_ended(worker_id, self._tasks.pop(worker_id))
        self._warn_of_late(now)
        return self._told()

    def explain(self, exited: WorkerExited) -> str:
        """See ``Provider``."""
        return f", {exited.error}"

    def close(self) -> None:
        """See ``Provider``. Engines that ignore an interrupt go on, with a warning: their variables may be of value."""
        if self._wakeup is None:
            return
        for task in self._tasks.values():
            if not task.is_serving:
                self._cancel(task)
        begun_s, is_told = time.monotonic(), False
        while self._serving and time.monotonic() < begun_s + END_S:
            if not is_told and time.monotonic() >= begun_s + LEAVE_S:
                is_told = True
                self._signal(signal.SIGINT, self._serving)
            select.select([self._wakeup.fd], [], [], LEAVE_S)
            self._wakeup.clear()
        if left := self._serving:
            logger.warning(
                "engines %s still run a trial of the search that has ended: interrupt them by "
                "rc.send_signal('SIGINT', targets=%s)",
                left,
                left,
            )
        self._wakeup.close()
        self._wakeup = None

    # -- inside -------------------------------------------------------------------------------------------------------

    @property
    def _serving(self) -> list[int]:
        """Engines that run their tasks."""
        return [task.engine for task in self._tasks.values() if task.is_serving]

    def _start(self, worker_id: int, engine: int) -> None:
        try:
            result = self._client[engine].apply_async(serve_in_engine, self._contact, own_path(), worker_id)
        except NO_ENGINE:
            self._on_died(worker_id, engine)
            return
        self._tasks[worker_id] = _EngineTask(engine, result, time.monotonic() + COME_S)
        self._news.append(Started(worker_id, self._engines[engine].pid))
        assert self._wakeup is not None
        wakeup = self._wakeup
        result.add_done_callback(lambda _: wakeup.signal())

    def _on_ended(self, worker_id: int, task: _EngineTask) -> None:
        """Handle the end of a task, which the death of its engine may have caused."""
        outcome, engine = read(task.result), task.engine
        if outcome.kind == DIED or engine not in self._client.ids:
            self._on_died(worker_id, engine)
            return
        words = f"has left engine {engine}: {outcome.summary or 'it ended'}"
        error = f"in engine {engine}, by {outcome.summary or 'itself'}"
        it = self._engines[engine]
        self._news.append(WorkerExited(worker_id, 1, words, it.host, it.pid, error=error))

    def _on_died(self, worker_id: int, engine: int) -> None:
        """Take the slot of an engine away, before the exit is told: the process must not be replaced."""
        it = self._engines.pop(engine)
        logger.warning("the search goes on without engine %d, which has died", engine)
        left = sum(other.host == it.host for other in self._engines.values())
        words = f"is lost with its engine {engine}, which has died"
        self._news += [HostOffered(it.host, left), WorkerExited(worker_id, -signal.SIGKILL, words, it.host, it.pid)]

    def _warn_of_late(self, now: float) -> None:
        late = [task for task in self._tasks.values() if task.late_s <= now]
        for task in late:
            task.late_s = math.inf
        if waiting := sorted(task.engine for task in late if not task.is_serving):
            logger.warning(
                "engines %s have not joined the search for %g s: something else may run there, such as a cell of "
                "%%%%px --noblock or of another client; they join when it has ended",
                waiting,
                COME_S,
            )

    def _cancel(self, task: _EngineTask) -> None:
        if not task.result.done() and not task.is_cancelled:
            task.is_cancelled = True
            with contextlib.suppress(*NO_ENGINE):
                self._client.abort(task.result, targets=[task.engine], block=False)

    def _signal(self, number: int, engines: Collection[int]) -> None:
        for engine in engines:
            with contextlib.suppress(*NO_ENGINE):
                self._client.send_signal(int(number), targets=[engine], block=False)
