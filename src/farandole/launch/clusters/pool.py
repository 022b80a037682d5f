"""Pool of long-running workers in slots of a cluster, which execute one call after another.

    pool = WorkerPool(provider, np=4, env={}, knobs={})
    pool.call(FunctionCall(train, (3,))).result()       # [...], by rank
    pool.close()

Every worker runs ``serve``, the function of one long run, and requests calls from this process.

Threads. One executes that run; another, ``_serve``, owns the router to which workers connect, and makes the calls in
order. Both are daemons, because a program that exits without ``close`` must not wait for them: its workers then notice
the lost connection. The threads share the queue of calls, futures, and ``SlotProvider.is_over``.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, final

import cloudpickle

from farandole.cluster.detect import detect
from farandole.control.addresses import everywhere, own_endpoints
from farandole.control.channel import Dealer, Router
from farandole.control.dial import first_answering
from farandole.control.keys import JobKeys, new_secret
from farandole.control.task_messages import FetchTask, TaskPayload, TaskResult
from farandole.control.task_pieces import ResultPieces, fetch, piece_of, send_result
from farandole.errors import ControlError, UsageError
from farandole.launch.clusters.slot_function import FunctionCall, run_on
from farandole.launch.clusters.slot_provider import SlotProvider
from farandole.launch.function.results import Results, values_of
from farandole.launch.function.task import Task, call
from farandole.settings import Settings

LOOK_S = 0.2
OTHERS_S = 5.0
"""Time for the other ranks to return after one has raised: they may wait for that rank forever."""

END_S = 5.0
"""Time for dismissed workers to return."""


@final
class WorkerPool:
    """Pool of ``np`` workers. The constructor returns at once; the first call waits for the workers."""

    def __init__(self, provider: SlotProvider, np: int, env: Mapping[str, str], knobs: Mapping[str, Any]) -> None:
        self._provider, self._np = provider, np
        self._asked: queue.SimpleQueue[tuple[bytes, Future[list[Any]]] | None] = queue.SimpleQueue()
        self._waiting: dict[int, bytes] = {}
        self._payload, self._pieces = b"", ResultPieces()
        self._last: Future[list[Any]] | None = None
        secret, addresses = new_secret(), Future[list[str]]()
        self._settings = Settings.resolve(arguments=knobs)
        if self._settings.is_elastic:
            raise UsageError("workers that stay for several calls are not elastic: leave min_np and max_np out")
        self._run: Future[Any] = Future()
        self._calls = _in_thread(self._serve, secret, addresses)
        task = FunctionCall(serve, (addresses.result(), secret, self._settings.start_timeout_s))
        _in_thread(lambda: run_on(provider, task, np, env=env, knobs=knobs), future=self._run)

    def call(self, asked: FunctionCall) -> Future[list[Any]]:
        """Queue a call on all workers; its results are in rank order.

        It raises the errors of ``farandole.run``. If a worker raises and another one does not return within
        ``OTHERS_S``, all workers are ended.
        """
        # Pickled here, in the caller's thread: a pickling error is raised there, and later changes have no effect.
        if self._calls.done():
            raise ControlError("the workers have ended")
        pickled = cloudpickle.dumps((asked.func, tuple(asked.args), dict(asked.kwargs or {})))
        results = self._last = Future[list[Any]]()
        self._asked.put((Task(list(sys.path), pickled).encode(), results))
        return results

    def close(self, *, now: bool = False) -> None:
        """Let the workers return after the queued calls; ``now`` ends a call in progress. Idempotent."""
        self._provider.is_over = self._provider.is_over or (now and self._last is not None and not self._last.done())
        self._asked.put(None)
        self._calls.result()

    # -- the thread of the router -------------------------------------------------------------------------------------

    def _serve(self, secret: str, addresses: Future[list[str]]) -> None:
        try:
            self._take_calls(secret, addresses)
        except BaseException as error:
            if not addresses.done():  # the constructor waits for it
                addresses.set_exception(error)
            raise

    def _take_calls(self, secret: str, addresses: Future[list[str]]) -> None:
        with Router(JobKeys.from_secret(secret), everywhere(self._settings.ports)) as router:
            addresses.set_result(own_endpoints(router.address, self._settings.network_interface))
            while True:
                try:
                    asked = self._asked.get_nowait()
                except queue.Empty:
                    self._receive_results(router)  # workers may connect meanwhile
                    continue
                if asked is None:
                    break
                _settle(asked[1], self._make, router, asked[0])
            self._dismiss(router)

    def _make(self, router: Router, payload: bytes) -> list[Any]:
        """Make one call."""
        results, until_s = Results(), float("inf")
        while len(self._waiting) < self._np:
            self._expect_workers()
            self._receive_results(router)
        self._payload = payload
        for worker_id, identity in self._waiting.items():
            router.send(identity, piece_of(payload, FetchTask(worker_id)))
        self._waiting.clear()
        left = self._np
        while left and time.monotonic() < until_s:
            self._expect_workers()
            for result in self._receive_results(router):
                results.add(result.worker_id, result.ok, result.payload)
                left -= 1
                until_s = until_s if result.ok else min(until_s, time.monotonic() + OTHERS_S)
        self._provider.is_over = self._provider.is_over or left > 0
        return values_of(results, self._np, "")

    def _expect_workers(self) -> None:
        """Raise ``ControlError`` if the run is over."""
        if self._run.done():
            self._run.result()
            raise ControlError("the workers have ended")

    def _receive_results(self, router: Router) -> list[TaskResult]:
        """Handle messages that have arrived; return results."""
        router.wait(LOOK_S)
        results = []
        while (got := router.recv()) is not None:
            identity, message = got
            if isinstance(message, FetchTask) and message.begin:
                router.send(identity, piece_of(self._payload, message))
            elif isinstance(message, FetchTask):
                self._waiting[message.worker_id] = identity
            elif isinstance(message, TaskResult) and (whole := self._pieces.add(identity, message)):
                results.append(whole)
        return results

    def _dismiss(self, router: Router) -> None:
        """Let the workers return, or end them if they do not."""
        until_s = time.monotonic() + END_S
        while not self._run.done():
            for identity in self._waiting.values():
                router.send(identity, TaskPayload(b""))
            self._waiting.clear()
            self._receive_results(router)
            self._provider.is_over = self._provider.is_over or time.monotonic() > until_s


def serve(addresses: list[str], secret: str, timeout_s: float) -> None:
    """Execute the calls of the pool at one of these addresses until it dismisses this worker."""
    environment, keys = detect(), JobKeys.from_secret(secret)
    address = first_answering(addresses, keys, timeout_s)
    with Dealer(address, f"pool-{uuid.uuid4().hex}".encode(), keys, timeout_s) as dealer:
        while True:
            asked = fetch(dealer, environment.worker_id, timeout_s)
            if not asked:
                return
            send_result(dealer, environment.worker_id, *call(asked, environment), timeout_s)


def _in_thread(func: Callable[..., Any], *args: Any, future: Future[Any] | None = None) -> Future[Any]:
    """Call ``func`` in a daemon thread."""
    outcome = Future[Any]() if future is None else future
    threading.Thread(target=_settle, args=(outcome, func, *args), name="farandole-pool", daemon=True).start()
    return outcome


def _settle(future: Future[Any], func: Callable[..., Any], *args: Any) -> None:
    try:
        result = func(*args)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
