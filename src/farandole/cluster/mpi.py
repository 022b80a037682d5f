"""Environment of processes of an MPI launcher, ``mpirun`` or ``mpiexec``: Open MPI, MPICH, Intel MPI, Cray's PALS.

    >>> hydra = Mpi({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"})
    >>> hydra.worker_id, hydra.size, hydra.spans_hosts
    (1, 2, False)

The processes share the contact by a broadcast with mpi4py, if that loads the MPI that started them; else by a file.
"""

# A broadcast is collective: it runs once, also if ``share`` is called again (``_heard``), because other processes would
# not take part in a second one. It is non-blocking and tested in a loop: a blocking call might wait forever for rank 0.

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping
from typing import Any, final

import msgspec

from farandole.cluster.contact import Contact, Meeting
from farandole.cluster.environment import KEY, Environment, Vocabulary
from farandole.cluster.mpi_library import MpiLibrary, load
from farandole.cluster.shared_file import SharedFile
from farandole.errors import StartError, UnsupportedError, UsageError

logger = logging.getLogger("farandole.cluster")

OPEN_MPI = "Open MPI"
PAYLOAD_BYTES = 4096
"""Size of every broadcast, because receivers do not know the size of the contact, which is far smaller."""
PAUSE_S = 0.002
"""Interval between tests of a broadcast in progress: MPI does not wake waiting threads."""


@final
class Dialect(msgspec.Struct, frozen=True):
    """Variables of a kind of launcher. ``library`` is in the version text of every MPI library that it can start."""

    name: str
    vocabulary: Vocabulary
    library: str = ""


DIALECTS = (
    Dialect(
        "Open MPI's mpirun",
        Vocabulary(
            rank="OMPI_COMM_WORLD_RANK",
            size="OMPI_COMM_WORLD_SIZE",
            local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
            local_size="OMPI_COMM_WORLD_LOCAL_SIZE",
            job="PMIX_NAMESPACE",
        ),
        library=OPEN_MPI,
    ),
    Dialect(
        "Cray's mpiexec (PALS)",
        Vocabulary(
            rank="PALS_RANKID",
            size="PMI_SIZE",
            local_rank="PALS_LOCAL_RANKID",
            local_size="PMI_LOCAL_SIZE",
            job="PALS_APID",
        ),
    ),
    Dialect(
        "the mpiexec of MPICH or Intel MPI",
        Vocabulary(
            rank="PMI_RANK",
            size="PMI_SIZE",
            local_rank="MPI_LOCALRANKID",  # srun --mpi=pmi2 sets the two above, too, but not these
            local_size="MPI_LOCALNRANKS",
        ),
    ),
)
"""Known launchers, distinguished by their variables for rank and local rank."""


@final
class Mpi(Environment):
    """Environment of a process that an MPI launcher has started, whether it calls MPI or not."""

    name = "mpirun"
    remedy = "The MPI launcher sets it for every process: start the job with: mpirun -n N python train.py"

    @classmethod
    def recognises(cls, variables: Mapping[str, str]) -> bool:
        """True if the variables of a known launcher are set."""
        return _dialect(variables) is not None

    def __init__(self, variables: Mapping[str, str]) -> None:
        super().__init__(variables)
        self._heard: Contact | None = None

    @property
    def vocabulary(self) -> Vocabulary:
        return self._dialect.vocabulary

    def file(self, meeting: Meeting) -> SharedFile | None:
        """File named by the job, if the launcher names its jobs, else by the key, if that is set."""
        job = self._variables.get(self.vocabulary.job) or _digest(self._variables.get(KEY, ""))
        return SharedFile(meeting.folder, f"mpi-{job}{meeting.suffix}") if job else None

    def share(self, contact: Contact | None, meeting: Meeting) -> Contact:
        """Share by a broadcast in COMM_WORLD; by a file if that is impossible, or for a job of some processes only."""
        library, trouble = self._world(meeting)
        if library is not None:
            world = library.initialise(meeting.timeout_s).COMM_WORLD
            self._heard = self._heard or broadcast(world, contact, meeting.timeout_s)
            return self._heard
        file = self.file(meeting)
        if file is None:
            raise StartError(
                f"{self._dialect.name} started this job, but {trouble}, and it gives its jobs no name by which the "
                "processes could find each other otherwise. Give them one secret: "
                "export FARANDOLE_KEY=$(python -c 'import secrets; print(secrets.token_hex(32))')"
            )
        if contact is not None:
            logger.info("the processes meet by the file %s: %s", file.path, trouble)
        return file.share(contact, meeting.timeout_s)

    @property
    def _dialect(self) -> Dialect:
        dialect = _dialect(self._variables)
        assert dialect is not None
        return dialect

    def _world(self, meeting: Meeting) -> tuple[MpiLibrary | None, str]:
        """Library, if its COMM_WORLD is this job; otherwise ``None`` and the reason."""
        if meeting.label:
            return None, "only some of its processes meet"
        try:
            library = load()
        except UnsupportedError as error:
            return None, str(error)
        started_by = f"{self._dialect.name} started {self.size} processes"
        if (OPEN_MPI in library.version) != (self._dialect.library == OPEN_MPI):
            return None, self._complain(f"mpi4py loads another MPI than that of the launcher ({library.version})")
        size = library.initialise(meeting.timeout_s).COMM_WORLD.size
        if size != self.size:
            return None, self._complain(f"{started_by} and the MPI that mpi4py loads ({library.version}) sees {size}")
        return library, ""

    def _complain(self, trouble: str) -> str:
        if self.worker_id == 0:
            logger.warning(
                "%s: the engine mpi cannot be used. Name the launcher's library: export MPI4PY_LIBMPI=...", trouble
            )
        return trouble


@final
class Communicator(Environment):
    """Environment of the processes of an mpi4py communicator, ``init(comm=MPI.COMM_WORLD)``, with any starter."""

    name = "MPI communicator"
    vocabulary = Vocabulary()
    controller = ""  # there may be several jobs

    def __init__(self, comm: Any, variables: Mapping[str, str]) -> None:
        super().__init__(variables)
        from mpi4py import MPI

        if comm == MPI.COMM_NULL:
            raise UsageError("init(comm=MPI.COMM_NULL): this process is not in the communicator, so it cannot join")
        self._comm, self._world = comm, MPI.COMM_WORLD
        self._heard: Contact | None = None

    @classmethod
    def recognises(cls, variables: Mapping[str, str]) -> bool:  # noqa: ARG003
        """Always false: ``init`` requests it."""
        return False

    @property
    def worker_id(self) -> int:
        return int(self._comm.rank)

    @property
    def size(self) -> int:
        return int(self._comm.size)

    @property
    def members(self) -> str:
        """Ranks of its processes in COMM_WORLD, separated by commas."""
        group, world = self._comm.group, self._world.group
        try:
            return ",".join(map(str, group.Translate_ranks(list(range(self.size)), world)))
        finally:
            group.Free()
            world.Free()

    def share(self, contact: Contact | None, meeting: Meeting) -> Contact:
        """Share by a broadcast in the communicator."""
        self._heard = self._heard or broadcast(self._comm, contact, meeting.timeout_s)
        return self._heard


def broadcast(comm: Any, contact: Contact | None, timeout_s: float) -> Contact:
    """Broadcast the contact from the communicator's rank 0; raises ``StartError`` if not all ranks call it in time."""
    buffer = bytearray((contact.encode() if contact is not None else b"").ljust(PAYLOAD_BYTES))
    if len(buffer) > PAYLOAD_BYTES:
        raise StartError(f"the controller has too many addresses; choose among them: --network-interface ({contact})")
    request = comm.Ibcast(buffer, 0)
    deadline = time.monotonic() + timeout_s
    while not request.Test():
        if time.monotonic() > deadline:
            raise StartError(
                f"rank {comm.rank} waited {timeout_s:.3g} s in MPI's broadcast for the address of rank 0: has "
                f"every one of the {comm.size} ranks called init()? If some need longer: --start-timeout "
                "(FARANDOLE_START_TIMEOUT_S)"
            )
        time.sleep(PAUSE_S)
    return Contact.decode(bytes(buffer))


def _dialect(variables: Mapping[str, str]) -> Dialect | None:
    for dialect in DIALECTS:
        if dialect.vocabulary.rank in variables and dialect.vocabulary.local_rank in variables:
            return dialect
    return None


def _digest(key: str) -> str:
    return hashlib.blake2b(key.encode(), digest_size=16).hexdigest() if key else ""
