"""``farandole.run`` on a Dask cluster.

import farandole.dask

farandole.dask.run(train, args=(3,), np=4, client=client)
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, final

import distributed
from distributed.comm import get_address_host

from farandole.errors import UsageError
from farandole.launch.clusters.slot import Ticket, hold
from farandole.launch.clusters.slot_function import FunctionCall, run_on
from farandole.launch.clusters.slot_provider import SlotProvider, last_line

__all__ = ["DaskLender", "run"]

LOOK_AGAIN_S = 0.02


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int | None = None,
    *,
    client: distributed.Client | None = None,
    output_filename: str = "",
    verbose: bool = False,
    env: Mapping[str, str] | None = None,
    **knobs: Any,
) -> list[Any]:
    """Call ``func(*args, **kwargs)`` on ``np`` workers, in tasks of Dask; returns their results by rank.

        client = distributed.Client("tcp://scheduler:8786")
        farandole.dask.run(train, kwargs={"lr": 0.1}, np=8, client=client)

    Each worker occupies a thread of a Dask worker (``nthreads``): first one thread of every Dask worker, then a second
    one of each. ``client`` defaults to the current client. Other arguments and errors are those of ``farandole.run``;
    the knob ``start_timeout_s`` limits the wait for busy threads.
    """
    provider = DaskLender(client or distributed.get_client())
    call = FunctionCall(func, args, kwargs)
    return run_on(provider, call, np, output_filename=output_filename, verbose=verbose, env=env, knobs=knobs)


@final
class DaskLender(SlotProvider):
    """Slots in threads of Dask's workers, each with a task that is bound to its worker."""

    name = "Dask"

    def __init__(self, client: distributed.Client) -> None:
        self._client = client
        self._tasks: list[distributed.Future] = []
        self._places: list[str] = []
        self._failed: dict[int, str] = {}

    def lend(self, slots: range, ticket: Ticket, *, together: bool) -> None:
        """See ``SlotProvider``. Tasks that need not start together run on the Dask workers present at their start."""
        self._places += places(len(slots), self._client.nthreads()) if together else [""] * len(slots)
        run = secrets.token_hex(4)
        for slot in slots:
            address = self._places[slot]
            bound = {"workers": [address], "allow_other_workers": False} if address else {}
            self._tasks.append(
                self._client.submit(
                    _hold, ticket, slot, key=f"farandole-slot-{run}-{slot}", pure=False, retries=0, priority=1, **bound
                )
            )

    def failures(self) -> Mapping[int, str]:
        """See ``SlotProvider``."""
        for slot, task in enumerate(self._tasks):
            if slot not in self._failed and task.status not in ("pending", "finished"):
                is_error = task.status == "error"
                self._failed[slot] = last_line(task.exception(timeout=1)) if is_error else f"its task is {task.status}"
        return dict(self._failed)

    def shortage(self) -> str:
        """See ``SlotProvider``."""
        busy = {address: len(keys) for address, keys in self._client.processing().items() if address in self._places}
        ours = sum(task.status == "pending" for task in self._tasks)
        others = max(0, sum(busy.values()) - ours)
        return f"other tasks keep threads of Dask's workers busy ({others} of them), or a worker is gone"

    def close(self, told: Collection[int], until_s: float) -> None:
        """See ``SlotProvider``."""
        try:
            while any(self._tasks[slot].status == "pending" for slot in told) and time.monotonic() < until_s:
                time.sleep(LOOK_AGAIN_S)
        finally:
            self._client.cancel(self._tasks, force=True)
            self._tasks = []


def _hold(ticket: Ticket, slot: int) -> None:
    hold(ticket, slot, get_address_host(distributed.get_worker().address))


def places(np: int, threads: Mapping[str, int]) -> list[str]:
    """Choose the Dask worker of each slot, by their ``threads``; raises ``UsageError`` if there are too few. Pure.

    >>> places(3, {"a": 2, "b": 1})
    ['a', 'b', 'a']
    """
    rounds = range(max(threads.values(), default=0))
    found = [address for turn in rounds for address, number in threads.items() if turn < number]
    if np > len(found):
        raise UsageError(
            f"np={np} asks for more workers than Dask's workers have threads: {len(threads)} workers with {len(found)} "
            "threads in all; start more of them, or wait for them with client.wait_for_workers()"
        )
    return found[:np]
