"""Start of a process group: the session of this process, and an engine among the members.

``init_process_group("farandole")`` uses the existing session, or joins the job that ``farandole run``, ``torchrun``,
``srun`` or ``mpirun`` has started, like ``hvd.init()``. Processes that were not started as a job connect through
PyTorch's store.

PyTorch rendezvous through a Farandole job: ``init_process_group(..., init_method="farandole://")``.

    torch.distributed.init_process_group("farandole", init_method="farandole://")

``srun`` and ``mpirun`` do not set the variables that ``env://`` reads. This method finds the rank like ``hvd.init()``,
and rank 0 sends the address of its store over the job's own connections. Works with any backend, for example Gloo.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import weakref
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import torch.distributed as dist

from farandole.cluster.detect import detect
from farandole.cluster.torch_store import GroupProcess
from farandole.control.addresses import own_endpoints
from farandole.errors import StartError, UsageError
from farandole.runtime.coordination.process_groups import ADOPTED, GLOBAL
from farandole.runtime.session.init import current, init, is_initialized
from farandole.runtime.session.session import Session
from farandole.torch.distributed.lane import GroupLane
from farandole.torch.distributed.mailbox import Mailbox
from farandole.torch.distributed.process_group import FarandoleGroup

DIAL_S = 10.0

_made: weakref.WeakKeyDictionary[Session, list[Any]] = weakref.WeakKeyDictionary()
"""Stores of each session, one for each rendezvous; kept, because another rank may connect after this rank failed."""


def farandole_rendezvous(url: str, **_: Any) -> Iterator[tuple[Any, int, int]]:
    """Handler of ``farandole://`` for PyTorch: yields the store, the rank and the number of ranks."""
    if not is_initialized():
        init()
    session = current("init_process_group()")
    told = {name: int(value) for name, value in parse_qsl(urlsplit(url).query) if name in ("rank", "world_size")}
    found = {"rank": session.topology.rank, "world_size": session.topology.size}
    if told.items() - found.items():
        raise UsageError(f"init_process_group with {told} where this process has {found}: leave these out")
    yield _store(session), session.topology.rank, session.topology.size
    raise StartError(f"{url}: ranks meet once; call destroy_process_group(), and init_process_group() again")


def _store(session: Session) -> Any:
    make: Any = dist.TCPStore  # type: ignore[attr-defined]
    rank, size, hosts = session.topology.rank, session.topology.size, session.topology.hosts
    server = make("localhost", 0, size, is_master=True, wait_for_workers=False) if rank == 0 else None
    told: list[str] = []
    if server is not None:
        is_alone = len(set(hosts)) == 1
        listening = f"tcp://localhost:{server.port}"
        told = [listening] if is_alone else own_endpoints(listening, session.settings.network_interface)
    stores = _made.setdefault(session, [])
    stores.append(server)
    key = f"torch.distributed store {len(stores)}"
    endpoints: list[str] = json.loads(session.planned.exchange(GLOBAL, key, json.dumps(told).encode())[0])
    if server is not None:
        return server
    for endpoint in endpoints:
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        host = host.strip("[]")
        with contextlib.suppress(OSError):
            socket.create_connection((host, int(port)), DIAL_S).close()
            return make(host, int(port), size, is_master=False)
    raise StartError(
        f"rank {rank} on {hosts[rank]} cannot reach the store of rank 0 on {hosts[0]} at {', '.join(endpoints)}: a "
        "firewall may be in between, or another network be the right one (FARANDOLE_NETWORK_INTERFACE)"
    )


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
