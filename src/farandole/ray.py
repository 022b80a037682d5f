"""``farandole.run`` on a Ray cluster.

import farandole.ray

farandole.ray.run(train, args=(3,), np=4, gpus_per_worker=1)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, final

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from farandole.errors import UsageError
from farandole.launch.clusters.slot import Ticket, hold
from farandole.launch.clusters.slot_function import FunctionCall, run_on
from farandole.launch.clusters.slot_provider import SlotProvider, last_line

__all__ = ["RayLender", "run"]


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int | None = None,
    *,
    cpus_per_worker: float = 1,
    gpus_per_worker: float = 0,
    resources_per_worker: Mapping[str, float] | None = None,
    strategy: str = "PACK",
    output_filename: str = "",
    verbose: bool = False,
    env: Mapping[str, str] | None = None,
    **knobs: Any,
) -> list[Any]:
    """Call ``func(*args, **kwargs)`` on ``np`` workers, in tasks of Ray; returns their results by rank.

        ray.init("auto")
        farandole.ray.run(train, kwargs={"lr": 0.1}, np=8, gpus_per_worker=1)

    Each worker gets a bundle of a placement group with these CPUs, GPUs and ``resources_per_worker``, laid out by
    Ray's ``strategy`` (``PACK``, ``SPREAD``, ``STRICT_PACK``, ``STRICT_SPREAD``). Workers on one node see all GPUs of
    their bundles there, and each uses the GPU of its local rank. Other arguments and errors are those of
    ``farandole.run``; the knob ``start_timeout_s`` limits the wait for resources.
    """
    bundle = {"CPU": cpus_per_worker, "GPU": gpus_per_worker, **(resources_per_worker or {})}
    provider = RayLender({name: amount for name, amount in bundle.items() if amount}, strategy)
    call = FunctionCall(func, args, kwargs)
    return run_on(provider, call, np, output_filename=output_filename, verbose=verbose, env=env, knobs=knobs)


@final
class RayLender(SlotProvider):
    """Slots in the bundles of a placement group, with a task in each. ``bundle`` are the resources of a slot.

    With ``slots_per_bundle`` each bundle of the group has room for that many slots, which are then on one node.
    """

    name = "Ray"

    def __init__(self, bundle: Mapping[str, float], strategy: str = "PACK", slots_per_bundle: int = 1) -> None:
        self._bundle, self._strategy, self._each = dict(bundle), strategy, slots_per_bundle
        self._group: PlacementGroup | None = None
        self._tasks: list[ray.ObjectRef[None]] = []
        self._outcomes: dict[int, str] = {}
        """Why each task failed that has ended, "" if it has not, by its slot."""

    def lend(self, slots: range, ticket: Ticket, *, together: bool) -> None:
        """See ``SlotProvider``: Ray starts all tasks at once, or, without ``together``, each when it has resources."""
        if not together and self._strategy.startswith("STRICT"):
            raise UsageError(
                f"strategy={self._strategy!r} places all workers at once: elastic jobs take PACK or SPREAD"
            )
        if together:
            whole = {name: amount * self._each for name, amount in self._bundle.items()}
            self._group = placement_group([whole] * (-(-len(slots) // self._each)), strategy=self._strategy)
        needed = {name: amount for name, amount in self._bundle.items() if name not in ("CPU", "GPU")}
        task = ray.remote(_hold)
        for slot in slots:
            place: Any = "SPREAD" if "SPREAD" in self._strategy else "DEFAULT"
            if self._group is not None:
                place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=slot // self._each)
            placed = task.options(
                name=f"farandole slot {slot}",
                num_cpus=self._bundle.get("CPU", 0),
                num_gpus=self._bundle.get("GPU", 0),
                resources=needed or None,
                scheduling_strategy=place,
                max_retries=0,
            )
            self._tasks.append(placed.remote(ticket, slot))

    def failures(self) -> Mapping[int, str]:
        """See ``SlotProvider``."""
        running = {task: slot for slot, task in enumerate(self._tasks) if slot not in self._outcomes}
        if running:
            ended, _ = ray.wait(list(running), num_returns=len(running), timeout=0, fetch_local=False)
            self._outcomes |= {running[task]: _failure(task) for task in ended}
        return {slot: why for slot, why in self._outcomes.items() if why}

    def shortage(self) -> str:
        """See ``SlotProvider``."""
        free = {name: amount for name, amount in ray.available_resources().items() if ":" not in name}
        wanted = ", ".join(f"{amount:g} {name}" for name, amount in self._bundle.items())
        have = ", ".join(f"{free.get(name, 0):g} {name}" for name in self._bundle)
        return f"each needs {wanted}, and Ray has {have} free in all"

    def close(self, told: Collection[int], until_s: float) -> None:
        """See ``SlotProvider``."""
        try:
            self._running([self._tasks[slot] for slot in told], until_s - time.monotonic())
            for task in self._running(self._tasks, 0.0):  # no others: cancelling an ended task kills this process
                ray.cancel(task, force=True)
        finally:
            if self._group is not None:
                remove_placement_group(self._group)

    def _running(self, tasks: list[ray.ObjectRef[None]], timeout_s: float) -> list[ray.ObjectRef[None]]:
        """Tasks that still run after ``timeout_s``; returns as soon as none runs."""
        if not tasks:
            return []
        _, running = ray.wait(tasks, num_returns=len(tasks), timeout=max(0.0, timeout_s), fetch_local=False)
        return list(running)


def _hold(ticket: Ticket, slot: int) -> None:
    hold(ticket, slot, ray.get_runtime_context().get_node_id())


def _failure(task: ray.ObjectRef[None]) -> str:
    """Reason why an ended task has failed; "" if it succeeded."""
    try:
        ray.get(task, timeout=0)
    except Exception as error:
        return last_line(error)
    return ""
