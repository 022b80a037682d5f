"""Environment of processes started by PyTorch's ``torchrun``, on one host or several.

>>> told = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}
>>> Torchrun(told).worker_id, Torchrun(told).spans_hosts
(1, False)

RANK and WORLD_SIZE alone are not enough: many scripts set them for other purposes.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Mapping
from typing import Any, final

from farandole.cluster.contact import Meeting
from farandole.cluster.environment import Vocabulary
from farandole.cluster.torch_store import ByStore
from farandole.errors import SettingsError, StartError

VOCABULARY = Vocabulary(
    rank="RANK",
    size="WORLD_SIZE",
    local_rank="LOCAL_RANK",
    local_size="LOCAL_WORLD_SIZE",
    job="TORCHELASTIC_RUN_ID",
)
STORE_HOST, STORE_PORT, RESTARTS = "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"
AGENT_HAS_STORE = "TORCHELASTIC_USE_AGENT_STORE"


@final
class Torchrun(ByStore):
    """A worker of ``torchrun``."""

    name = "torchrun"
    remedy = "torchrun sets it for every worker: start the job with: torchrun --nproc-per-node N train.py"
    vocabulary = VOCABULARY
    marks = (STORE_HOST, STORE_PORT, RESTARTS)

    @classmethod
    def recognises(cls, variables: Mapping[str, str]) -> bool:
        """True if torchrun's variable for the job name is set."""
        return VOCABULARY.job in variables and VOCABULARY.rank in variables

    def exchange(self, said: bytes | None, meeting: Meeting) -> bytes:
        """See ``ByStore``; uses a key of this job and attempt."""
        host, port = self._variables.get(STORE_HOST, ""), self._number(STORE_PORT)
        if not host:
            raise SettingsError(f"{STORE_HOST} is not set. {self.remedy}")
        key = f"farandole/{self._variables.get(RESTARTS, '0')}{meeting.suffix}"
        serve = self.worker_id == 0 and self._variables.get(AGENT_HAS_STORE) != "True"
        try:
            store = _store(host, port, serve, meeting.timeout_s)
            if said is None:
                return bytes(store.get(key))
            store.set(key, said)
        except RuntimeError as error:
            raise StartError(
                f"rank {self.worker_id} did not learn where rank 0 is from torchrun's store at {host}:{port} within "
                f"{meeting.timeout_s:.3g} s: has rank 0 called init()? If it needs longer: --start-timeout "
                f"(FARANDOLE_START_TIMEOUT_S). The store says: {error}"
            ) from error
        return said


@functools.cache
def _store(host: str, port: int, serve: bool, timeout_s: float) -> Any:
    """Connection to the store, cached; with older versions of torchrun rank 0 serves the store."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    patience = dt.timedelta(seconds=timeout_s)
    return TCPStore(host, port, is_master=serve, timeout=patience, wait_for_workers=False, multi_tenant=True)
