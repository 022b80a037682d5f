"""Detection of a ``farandole run`` job by ``jax.distributed.initialize()`` without arguments.

    import farandole.jax        # or this module alone
    import jax
    jax.distributed.initialize()

JAX calls all subclasses of its private class ``ClusterEnv``. ``FarandoleCluster`` must be the first: a worker in a
Slurm allocation also has Slurm's variables, which describe the launcher and not the worker.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, ClassVar, final

from farandole.cluster.environment import LAUNCHED

_ClusterEnv: Any = object
with contextlib.suppress(ImportError):  # in a JAX version without this module, initialize() needs arguments
    from jax._src.clusters import ClusterEnv

    _ClusterEnv = ClusterEnv


@final
class FarandoleCluster(_ClusterEnv):  # type: ignore[misc]
    """Ranks as numbered by the launcher; the coordinator is in the process of rank 0."""

    name: ClassVar[str] = "farandole"

    @classmethod
    def is_env_present(cls) -> bool:
        """True in a worker of a static job, which gets rank 0's address in its environment."""
        return os.environ.get(LAUNCHED) == "1" and "MASTER_PORT" in os.environ

    @classmethod
    def get_coordinator_address(cls, *_: Any, override_coordinator_port: str | None = None, **__: Any) -> str:
        """Address and port of rank 0."""
        return f"{os.environ['MASTER_ADDR']}:{override_coordinator_port or os.environ['MASTER_PORT']}"

    @classmethod
    def get_process_count(cls) -> int:
        """Number of workers."""
        return int(os.environ["WORLD_SIZE"])

    @classmethod
    def get_process_id(cls) -> int:
        """Rank of this worker."""
        return int(os.environ["RANK"])

    @classmethod
    def get_local_process_id(cls) -> int:
        """Local rank on this host, which is the number of its GPU."""
        return int(os.environ["LOCAL_RANK"])


_known: list[Any] = getattr(_ClusterEnv, "_cluster_types", [])
if FarandoleCluster in _known:
    _known.insert(0, _known.pop(_known.index(FarandoleCluster)))
