"""Pool of a search whose workers are the engines of a notebook: ``farandole.search(train, space, pool=ranks)``.

Each engine runs one task until the search is over: the loop of a warm worker, which joins trial after trial. The
session of its cells is set aside meanwhile, as in any task, and variables of cells stay. An engine belongs to the user
who started it. So the pool interrupts an engine where other pools kill a process, and kills it only if it does not
react; a dead engine is not started again, and the search goes on with the others. If a cell runs, the task waits behind
it; it is cancelled when the search ends, because an interrupt would hit the cell.
"""

# Threads. The search's thread calls everything except ``_ring``, which the client's own thread calls when a task is
# done. ``_lock`` guards ``_bell``: after it is closed, another file may have its descriptor number.

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, final

from ipyparallel.error import NoEnginesRegistered

from farandole.cluster.contact import Contact
from farandole.errors import ControlError, UsageError
from farandole.events import logger
from farandole.notebook.outcome import DIED, read
from farandole.search.engine_worker import BEGUN, serve_in_engine
from farandole.search.pools import END_S, LEAVE_S, MOST_EARLY, Pool, ProcessEnded, own_path

if TYPE_CHECKING:
    from farandole.notebook.guard import EngineReport

COME_S = 10.0
"""Time for an engine to begin its task; after that a warning names the engine as busy."""

HEED_S = 10.0
"""Time for an interrupted engine to end its task; after that it is killed."""

NO_ENGINE = (LookupError, NoEnginesRegistered)
"""Errors of IPython Parallel if an engine has died, possible in every call."""


@final
class NotebookPool(Pool):
    """Engines of ``client``, of IPython Parallel, each a worker; ``engines`` by their numbers in the client."""

    remedy = "start engines in the place of those that have died (ranks.replace()); then the same call goes on"

    def __init__(self, client: Any, engines: Mapping[int, EngineReport]) -> None:
        self._client, self._engines = client, dict(engines)
        self.reaches_out = {it.host for it in engines.values()} != {socket.gethostname()}
        if self.reaches_out and not self._client.curve_serverkey:
            raise UsageError(
                "pool=ranks: some engines are on other hosts, and the secret of the search would travel to them "
                "readable: let IPython Parallel encrypt its connections (c.IPController.enable_curve = True in "
                "ipcontroller_config.py)"
            )
        self._contact: Contact | None = None
        self._tasks: dict[int, Any] = {}
        self._kill_s: dict[int, float] = {}
        """Times at which interrupted engines are killed if they still run their task."""
        self._late_s: dict[int, float] = {}
        """Times at which a warning names engines whose worker has not connected."""
        self._here: set[int] = set()
        """Engines whose worker has connected."""
        self._early = 0
        self._lock = threading.Lock()
        self._bell = -1

    @property
    def size(self) -> int:
        """See ``Pool``."""
        return len(self._engines)

    @property
    def slots(self) -> Mapping[str, int]:
        """See ``Pool``."""
        return Counter(it.host for it in self._engines.values())

    def start(self, contact: Contact) -> None:
        """See ``Pool``."""
        self._contact, self._bell = contact, os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        for engine in list(self._engines):
            self._send(engine)

    @property
    def fds(self) -> Collection[int]:
        """See ``Pool``."""
        return () if self._bell < 0 else (self._bell,)

    @property
    def deadline_s(self) -> float:
        """See ``Pool``."""
        return min([*self._kill_s.values(), *self._late_s.values()], default=math.inf)

    def attend(self, ready: Collection[int]) -> list[ProcessEnded]:
        """See ``Pool``. A living engine gets its task again."""
        if self._bell in ready:
            os.eventfd_read(self._bell)  # before the tasks are checked: a task that ends later rings again
        return [self._ended(engine) for engine, task in list(self._tasks.items()) if task.done()]

    def tick(self, now: float) -> list[ProcessEnded]:
        """See ``Pool``."""
        for engine in [engine for engine, due_s in self._kill_s.items() if due_s <= now]:
            del self._kill_s[engine]
            logger.warning("engine %d is killed: it has not heeded an interrupt for %g s", engine, HEED_S)
            self._signal(signal.SIGKILL, [engine])
        late = {engine for engine, due_s in self._late_s.items() if due_s <= now}
        self._late_s = {engine: due_s for engine, due_s in self._late_s.items() if engine not in late}
        if waiting := sorted(late.difference(self._serving)):
            logger.warning(
                "engines %s have not come to the search for %g s: something else may run there, such as a cell of "
                "%%%%px --noblock or of another client; they come when it has ended",
                waiting,
                COME_S,
            )
        return []

    def came(self, host: str, pid: int) -> bool:
        """See ``Pool``."""
        self._early = 0
        engine = self._engine_of(host, pid)
        if engine is None:
            asked = ", ".join(f"{it.pid} on {it.host}" for it in self._engines.values())
            logger.warning("process %d on %s is none of the engines that the search has asked: %s", pid, host, asked)
            return False
        self._here.add(engine)
        self._late_s.pop(engine, None)
        return True

    def kill(self, host: str, pid: int) -> None:
        """See ``Pool``. The engine is interrupted first."""
        engine = self._engine_of(host, pid)
        if engine is not None and engine not in self._kill_s:
            self._kill_s[engine] = time.monotonic() + HEED_S
            self._signal(signal.SIGINT, [engine])

    def spare(self, host: str, pid: int) -> None:
        """See ``Pool``."""
        engine = self._engine_of(host, pid)
        if engine is not None:
            self._kill_s.pop(engine, None)

    def end_now(self) -> None:
        """See ``Pool``. The engines are interrupted."""
        self._signal(signal.SIGINT, self._serving)

    def close(self) -> None:
        """See ``Pool``. Engines that ignore an interrupt go on, with a warning: their variables may be of value."""
        if self._bell < 0:
            return
        self._take_back()
        begun_s, is_told = time.monotonic(), False
        while self._serving and time.monotonic() < begun_s + END_S:
            if not is_told and time.monotonic() >= begun_s + LEAVE_S:
                is_told = True
                self._signal(signal.SIGINT, self._serving)
            select.select([self._bell], [], [], LEAVE_S)
            self._hush()
        if left := self._serving:
            logger.warning(
                "engines %s still run a trial of the search that has ended: interrupt them by "
                "rc.send_signal('SIGINT', targets=%s)",
                left,
                left,
            )
        with self._lock:
            bell, self._bell = self._bell, -1
            os.close(bell)

    # -- inside -------------------------------------------------------------------------------------------------------

    @property
    def _serving(self) -> list[int]:
        """Engines that run their tasks; other engines with unfinished tasks may run something else."""
        begun = {engine for engine, task in self._tasks.items() if task.metadata["data"].get(BEGUN)}
        return [engine for engine, task in self._tasks.items() if engine in self._here | begun and not task.done()]

    def _engine_of(self, host: str, pid: int) -> int | None:
        found = (engine for engine, it in self._engines.items() if (it.host, it.pid) == (host, pid))
        return next(found, None)

    def _send(self, engine: int) -> None:
        assert self._contact is not None
        self._here.discard(engine)
        try:
            task = self._client[engine].apply_async(serve_in_engine, self._contact.encode(), own_path())
        except NO_ENGINE:
            self._drop(engine)
            self._ring()  # the search then checks which workers are left
            return
        self._tasks[engine], self._late_s[engine] = task, time.monotonic() + COME_S
        task.add_done_callback(self._ring)

    def _ended(self, engine: int) -> ProcessEnded:
        """Handle the end of a task, which the death of its engine may have caused."""
        outcome, it = read(self._tasks.pop(engine)), self._engines[engine]
        self._kill_s.pop(engine, None)
        self._late_s.pop(engine, None)
        if outcome.kind == DIED or engine not in self._client.ids:
            self._drop(engine)
            return ProcessEnded(it.pid, -signal.SIGKILL, f"is lost with its engine {engine}, which has died", it.host)
        self._early += 1
        if self._early > max(MOST_EARLY, self.size):
            raise ControlError(
                f"the workers of the search end before they have begun: the last one, in engine {engine}, by "
                f"{outcome.summary or 'itself'}"
            )
        self._send(engine)
        return ProcessEnded(it.pid, 1, f"has left engine {engine}: {outcome.summary or 'it ended'}", it.host)

    def _drop(self, engine: int) -> None:
        del self._engines[engine]
        logger.warning("the search goes on without engine %d, which has died", engine)

    def _take_back(self) -> None:
        """Cancel the tasks that wait in engines behind something else."""
        serving = self._serving
        for engine, task in self._tasks.items():
            if engine not in serving and not task.done():
                with contextlib.suppress(*NO_ENGINE):
                    self._client.abort(task, targets=[engine], block=False)

    def _signal(self, number: int, engines: Collection[int]) -> None:
        for engine in engines:
            with contextlib.suppress(*NO_ENGINE):
                self._client.send_signal(int(number), targets=[engine], block=False)

    def _ring(self, _task: object = None) -> None:
        with self._lock:
            if self._bell >= 0:
                os.eventfd_write(self._bell, 1)

    def _hush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
