"""``horovod.ray.RayExecutor``, on ``farandole.launch.clusters.pool``."""

# One thread calls all functions here; the pool has two threads, and makes calls in order. The ``run_remote`` callback
# runs on one of these, or on the caller's thread if the call has ended: it sends the outcome, and never waits.

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, final

import ray

from farandole.errors import UnsupportedError, UsageError
from farandole.launch.clusters import executable
from farandole.launch.clusters.pool import WorkerPool
from farandole.launch.clusters.slot_function import FunctionCall
from farandole.ray import RayLender

ELASTIC_CALL = "call farandole.ray.run(train, min_np=2, max_np=8)"

_ELASTIC = (
    "min_workers",
    "max_workers",
    "reset_limit",
    "cooldown_range",
    "elastic_timeout",
    "override_discovery",
)


@final
@dataclass(frozen=True)
class MiniSettings:
    """Settings made by ``RayExecutor.create_settings``: timeouts to start, in seconds, and networks."""

    timeout_s: float = 30.0
    placement_group_timeout_s: float = 100.0
    nics: Sequence[str] = ()


@final
class RayExecutor:
    """Executor of functions on workers that live from ``start`` to ``shutdown``, each in a Ray bundle.

        executor = RayExecutor(RayExecutor.create_settings(timeout_s=30), num_workers=4, use_gpu=True)
        executor.start()
        executor.run(train, args=[3])       # [...], by rank
        executor.shutdown()

    Takes ``num_workers``, or ``num_hosts`` with ``num_workers_per_host`` on each. The executor makes its own placement
    group. Raises ``UnsupportedError`` for the arguments of elastic jobs.
    """

    @classmethod
    def create_settings(
        cls,
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,  # noqa: ARG003
        ssh_str: str | None = None,  # noqa: ARG003
        placement_group_timeout_s: float = 100,
        nics: Sequence[str] | None = None,
    ) -> MiniSettings:
        """Make settings; the ssh arguments have no effect."""
        return MiniSettings(timeout_s, placement_group_timeout_s, tuple(nics or ()))

    def __init__(
        self,
        settings: MiniSettings | None = None,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: int = 1,
        use_gpu: bool = False,
        gpus_per_worker: int | None = None,
        use_current_placement_group: bool = True,
        **elastic: Any,
    ) -> None:
        if unknown := sorted(elastic.keys() - set(_ELASTIC)):
            raise TypeError(f"RayExecutor() got unexpected arguments: {', '.join(unknown)}")
        if given := [name for name in ("min_workers", "max_workers") if elastic.get(name)]:
            raise UnsupportedError(f"{', '.join(given)}: RayExecutor is not elastic; {ELASTIC_CALL}")
        if (num_workers is None) == (num_hosts is None):
            raise UsageError("RayExecutor takes either num_workers, or num_hosts with num_workers_per_host")
        if gpus_per_worker and not use_gpu:
            raise UsageError("gpus_per_worker is given, and use_gpu is not: pass use_gpu=True")
        self._settings = settings or MiniSettings()
        self._np = num_workers or (num_hosts or 0) * num_workers_per_host
        bundle = {"CPU": float(cpus_per_worker), "GPU": float(gpus_per_worker or 1) if use_gpu else 0.0}
        self._bundle = {name: amount for name, amount in bundle.items() if amount}
        self._strategy, self._each = ("PACK", 1) if num_workers else ("STRICT_SPREAD", num_workers_per_host)
        self._pool: WorkerPool | None = None

    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, str] | None = None,
    ) -> None:
        """Start the workers, and make an instance of ``executable_cls`` on each, for ``execute``."""
        if self._pool is not None:
            raise UsageError("the executor has been started; call shutdown() first")
        start_s = max(self._settings.timeout_s, self._settings.placement_group_timeout_s)
        interface = ",".join(self._settings.nics) or None
        knobs = {"horovod": True, "start_timeout_s": start_s, "network_interface": interface}
        provider = RayLender(self._bundle, self._strategy, self._each)
        self._pool = WorkerPool(provider, self._np, dict(extra_env_vars or {}), knobs)
        try:
            self._call(executable.make, executable_cls, executable_args or (), executable_kwargs or {}).result()
        except BaseException:  # also Ctrl-C: otherwise Ray would keep the bundles of unreachable workers
            self.shutdown()
            raise

    def run(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Call ``fn(*args, **kwargs)`` on every worker; returns the results by rank."""
        return self._call(fn, *(args or ()), **(kwargs or {})).result()

    def run_remote(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Like ``run``, without waiting; returns references for ``ray.get``, one for each rank."""
        box = ray.remote(executable.ResultBox).options(num_cpus=0).remote()
        references = [box.result_of.remote(rank) for rank in range(self._np)]
        self._call(fn, *(args or ()), **(kwargs or {})).add_done_callback(
            lambda done: box.fill.remote(*executable.outcome(done))
        )
        return references

    def execute(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Call ``fn(executable, *args, **kwargs)`` on every worker; returns the results by rank."""
        return self._call(executable.execute, fn, args or (), kwargs or {}, -1).result()

    def execute_single(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call ``fn(executable, *args, **kwargs)`` on rank 0; returns its result."""
        return self._call(executable.execute, fn, args or (), kwargs or {}, 0).result()[0]

    def shutdown(self) -> None:
        """Kill the workers, even during a call."""
        # Reset first: after a second Ctrl-C in ``close``, the executor can still be started again.
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close(now=True)

    def _call(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[list[Any]]:
        if self._pool is None:
            raise UsageError("the executor has no workers: call start() first")
        return self._pool.call(FunctionCall(fn, args, kwargs))


@final
class ElasticRayExecutor:
    """Unsupported: the constructor raises ``UnsupportedError``."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise UnsupportedError(f"ElasticRayExecutor is not there; {ELASTIC_CALL}")
