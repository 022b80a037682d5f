"""Started by PyTorch's ``torchrun``, on one host or several.

>>> told = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}
>>> Torchrun(told).worker_id, Torchrun(told).spans_hosts
(1, False)

Its store is open to everybody who reaches its port, so the secret of the job never goes there: it is in a file that
only its owner can read. On several hosts that lies in the folder by which tasks of ``srun`` meet, too, if Slurm has
given the hosts or the folder was named; else nobody knows of one that all see, and the job has to be given a secret.

Variables named RANK and WORLD_SIZE alone do not count: many scripts set them by themselves, for other purposes.
"""

from __future__ import annotations

import datetime as dt
import functools
import re
import secrets
import tempfile
from collections.abc import Mapping
from typing import Any, final

from farandole.cluster.allocation import JOB
from farandole.cluster.contact import Contact, Meeting
from farandole.cluster.environment import KEY, Environment, Vocabulary
from farandole.cluster.shared_file import SharedFile
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
FOLDER = "FARANDOLE_RENDEZVOUS_DIR"
"""Variable by which a user names a folder that all hosts see."""
MARK = re.compile(rb"[0-9a-f]{16}")


@final
class Torchrun(Environment):
    """A worker of ``torchrun``."""

    name = "torchrun"
    remedy = "torchrun sets it for every worker: start the job with: torchrun --nproc-per-node N train.py"
    vocabulary = VOCABULARY
    marks = (STORE_HOST, STORE_PORT, RESTARTS)

    def __init__(self, variables: Mapping[str, str]) -> None:
        super().__init__(variables)
        self._mark = secrets.token_hex(8)

    @classmethod
    def recognises(cls, variables: Mapping[str, str]) -> bool:
        """True if torchrun's name for the job is there."""
        return VOCABULARY.job in variables and VOCABULARY.rank in variables

    @property
    def key(self) -> str:
        """The secret; raises ``SettingsError`` if it is missing and would have to travel between hosts."""
        key = super().key
        if not key and self.spans_hosts and not any(self._variables.get(name) for name in (FOLDER, JOB)):
            raise SettingsError(
                f"torchrun started this job on several hosts, and {KEY} is not set: torchrun's store, by which the "
                "ranks could learn the secret of the job, is open to everybody who reaches its port. Name a folder "
                f"that all nodes see, before torchrun: export {FOLDER}=/shared/folder; or give all nodes the same "
                f"secret: export {KEY}=SECRET, where SECRET is what this says once: "
                "python -c 'import secrets; print(secrets.token_hex(32))'"
            )
        return key

    def file(self, meeting: Meeting) -> SharedFile | None:
        """A file with a random name, as runs of torchrun have none of their own; ``None`` where the secret is known."""
        return None if self.key else self._file(self._mark, meeting)

    def share(self, contact: Contact | None, meeting: Meeting) -> Contact:
        """Share by torchrun's store, under a key of this job and attempt; where there is a file, only its name."""
        file = self.file(meeting)
        if contact is not None and file is not None:
            file.share(contact, meeting.timeout_s)
        payload = None if contact is None else self._mark.encode() if file is not None else contact.encode()
        said = self._exchange(payload, meeting)
        if contact is not None:
            return contact
        if file is None:
            return Contact.decode(said)
        if not MARK.fullmatch(said):
            raise StartError(
                f"what torchrun's store says is not from rank 0, as that has no {KEY}: is it set here only?"
            )
        return self._file(said.decode(), meeting).share(None, meeting.timeout_s)

    def _file(self, mark: str, meeting: Meeting) -> SharedFile:
        return SharedFile(meeting.folder if self.spans_hosts else tempfile.gettempdir(), f"torchrun-{mark}")

    def _exchange(self, said: bytes | None, meeting: Meeting) -> bytes:
        """Tell the others what is ``said``, or return what rank 0 tells."""
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
    """The connection to the store, kept; older versions of torchrun let rank 0 serve it."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    patience = dt.timedelta(seconds=timeout_s)
    return TCPStore(host, port, is_master=serve, timeout=patience, wait_for_workers=False, multi_tenant=True)
