"""Start of a process group: the session of this process, and an engine among the members.

``init_process_group("farandole")`` uses the existing session, or joins the job that ``farandole run``, ``torchrun``,
``srun`` or ``mpirun`` has started, like ``hvd.init()``. Processes that were not started as a job connect through
PyTorch's store.
"""

from __future__ import annotations

import os
import weakref
from hashlib import blake2b
from typing import Any

from farandole.cluster.detect import detect
from farandole.cluster.torch_store import GroupProcess
from farandole.errors import UsageError
from farandole.runtime.coordination.process_groups import ADOPTED, GLOBAL
from farandole.runtime.session.init import current, init, is_initialized
from farandole.runtime.session.session import Session
from farandole.torch.distributed.lane import GroupLane
from farandole.torch.distributed.mailbox import Mailbox
from farandole.torch.distributed.process_group import FarandoleGroup

_mailboxes: weakref.WeakKeyDictionary[Session, Mailbox] = weakref.WeakKeyDictionary()


def start_group(options: Any) -> FarandoleGroup:
    """Make a process group for ``torch.distributed``; ``options`` are PyTorch's ``_DistributedBackendOptions``."""
    rank, size, label = options.group_rank, options.group_size, f"torch.distributed {options.group_id}"
    ranks = tuple(options.global_ranks_in_group) or tuple(range(size))
    session = _session(rank, size, options.store) if not options.global_ranks_in_group else current(label)
    number = GLOBAL
    if len(ranks) < session.topology.size:
        number = _number(label, ranks)
        session.planned.adopt(number, ranks)
    engine = session.planned.engine(number, label, deadline_s=options.timeout.total_seconds())
    lane = GroupLane(session, number, label, engine)
    return FarandoleGroup(rank, size, lane, options.store, _mailbox(session, options.store))


def _mailbox(session: Session, store: Any) -> Mailbox | None:
    """Mailbox of this process, made for the first group of a session; ``None`` in a job of one process."""
    if session not in _mailboxes and session.keys is not None:
        _mailboxes[session] = Mailbox(session, session.keys, store)
    return _mailboxes.get(session)


def _session(rank: int, size: int, store: Any) -> Session:
    """Session of a job in which, according to PyTorch, this process is ``rank`` of ``size``."""
    if not is_initialized():
        environment = detect()
        fits = (environment.worker_id, environment.size) == (rank, size)
        init() if fits else init(comm=GroupProcess(store, rank, size, os.environ))
    session = current("init_process_group()")
    found = session.topology.rank, session.topology.size
    if found != (rank, size):
        raise UsageError(
            f"init_process_group(rank={rank}, world_size={size}) in a process that is rank {found[0]} of {found[1]} of "
            "the job: leave rank and world_size out, or pass these"
        )
    return session


def _number(label: str, ranks: tuple[int, ...]) -> int:
    """Unique number of a group, the same on all its members."""
    digest = blake2b(f"{label} {ranks}".encode(), digest_size=6).digest()
    return ADOPTED + int.from_bytes(digest, "big")
