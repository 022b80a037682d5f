"""Environments with a store of PyTorch: workers of ``torchrun``, and processes that call ``init_process_group``.

Every process that reaches its port can read a store, so the job's secret is never stored there: it is in a file that
only its owner can read, and the store has the file's name. On several hosts the file is in a shared folder.

PyTorch is not imported here: the caller passes the store to ``GroupProcess``.
"""

from __future__ import annotations

import re
import secrets
import socket
import tempfile
from abc import abstractmethod
from collections.abc import Mapping
from typing import Protocol, final

from farandole.cluster.allocation import JOB
from farandole.cluster.contact import Contact, Meeting
from farandole.cluster.environment import KEY, Environment, Vocabulary
from farandole.cluster.shared_file import SharedFile
from farandole.errors import SettingsError, StartError

FOLDER = "FARANDOLE_RENDEZVOUS_DIR"
"""Variable by which a user names a folder that all hosts share."""

MARK = re.compile(rb"[0-9a-f]{16}")


class ByStore(Environment):
    """Environment of processes that all reach one store."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        super().__init__(variables)
        self._mark = secrets.token_hex(8)

    @abstractmethod
    def exchange(self, said: bytes | None, meeting: Meeting) -> bytes:
        """Publish ``said`` in the store (on rank 0), or return what rank 0 has published."""

    @property
    def key(self) -> str:
        """Secret of the job; raises ``SettingsError`` if it is missing and would have to be sent between hosts."""
        key = super().key
        if not key and self.spans_hosts and not any(self._variables.get(name) for name in (FOLDER, JOB)):
            raise SettingsError(
                f"{self.name} started this job on several hosts, and {KEY} is not set: the store, by which the "
                "ranks could learn the secret of the job, is open to everybody who reaches its port. Name a folder "
                f"that all nodes see, before {self.name}: export {FOLDER}=/shared/folder; or give all nodes the same "
                f"secret: export {KEY}=SECRET, where SECRET is what this says once: "
                "python -c 'import secrets; print(secrets.token_hex(32))'"
            )
        return key

    def file(self, meeting: Meeting) -> SharedFile | None:
        """File with a random name, because these jobs have no name; ``None`` if the secret is known already."""
        return None if self.key else self._file(self._mark, meeting)

    def share(self, contact: Contact | None, meeting: Meeting) -> Contact:
        """Share by the store; if there is a file, the store holds only its name."""
        file = self.file(meeting)
        if contact is not None and file is not None:
            file.share(contact, meeting.timeout_s)
        payload = None if contact is None else self._mark.encode() if file is not None else contact.encode()
        said = self.exchange(payload, meeting)
        if contact is not None:
            return contact
        if file is None:
            return Contact.decode(said)
        if not MARK.fullmatch(said):
            raise StartError(
                f"the value in the store is not from rank 0, because rank 0 has no {KEY}: is it set here only?"
            )
        return self._file(said.decode(), meeting).share(None, meeting.timeout_s)

    def _file(self, mark: str, meeting: Meeting) -> SharedFile:
        return SharedFile(meeting.folder if self.spans_hosts else tempfile.gettempdir(), f"store-{mark}")


class Store(Protocol):
    """Interface of PyTorch's stores that is used here."""

    def set(self, key: str, value: str) -> None:
        """Store a value."""

    def get(self, key: str) -> bytes:
        """Wait for a value and return it."""


@final
class GroupProcess(ByStore):
    """Environment of a process that called ``init_process_group`` with its own rank, size and store."""

    name = "init_process_group"
    remedy = "Every process passes its own rank and the same world_size, or has RANK and WORLD_SIZE in its environment."
    vocabulary = Vocabulary()
    controller = ""  # a process may be in several groups, one after the other

    def __init__(self, store: Store, rank: int, size: int, variables: Mapping[str, str]) -> None:
        super().__init__(variables)
        self._store, self._rank, self._size = store, rank, size
        store.set(f"host.{rank}", socket.gethostname())
        if rank == 0:
            store.set("mark", self._mark)
        self._job = self._told("mark").decode()
        hosts = [self._told(f"host.{each}") for each in range(size)]
        self._spans_hosts = len(set(hosts)) > 1

    @classmethod
    def recognises(cls, variables: Mapping[str, str]) -> bool:  # noqa: ARG003
        """Always false: the backend of ``torch.distributed`` makes this environment."""
        return False

    @property
    def worker_id(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._size

    @property
    def identity(self) -> tuple[str, ...]:
        """See ``Environment``."""
        return (self.name, self._job, str(self._rank))

    @property
    def spans_hosts(self) -> bool:
        return self._spans_hosts

    def exchange(self, said: bytes | None, meeting: Meeting) -> bytes:
        """See ``ByStore``."""
        if said is None:
            return self._told(f"contact{meeting.suffix}")
        self._store.set(f"contact{meeting.suffix}", said.decode())
        return said

    def _told(self, key: str) -> bytes:
        try:
            return bytes(self._store.get(key))
        except RuntimeError as error:
            raise StartError(
                f"rank {self._rank} of {self._size} did not learn {key!r} from the store of init_process_group: have "
                f"all ranks called it with the backend farandole? The store says: {error}"
            ) from error
