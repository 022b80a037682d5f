"""Faults that a worker inflicts on itself, because no signal can: each happens once, in the process of its victim.

    faults = FaultInjection(folder, on={"damage": damage, "middle chunk": lambda: take_away(0.5)})

None of them waits, so ``fault_injection`` can trigger them at a phase.
"""

from __future__ import annotations

import ctypes
import mmap
import resource
from typing import Any

from farandole.collective import Array, Reduction
from farandole.control.messages import Blocked, Exchange, Leave, Progress
from farandole.elastic.worker import transfer
from farandole.engines.shm import ShmEngine
from farandole.runtime.session.init import current

PROTECT_NONE = 0
LEAST_BYTES = 2**18
"""Size of an array that the engine reduces in several chunks."""

NO_ROOM_BYTES = 2**16


def take_away(share: float) -> None:
    """Let the next long all-reduce of this process kill it, in the engine, after this ``share`` of its work.

    The memory there becomes inaccessible. Everything before it is reduced, and is in the memory of the others.
    """
    reduce = ShmEngine.allreduce

    def torn(engine: ShmEngine, array: Array, how: Reduction) -> None:
        if array.nbytes >= LEAST_BYTES:
            part = array.nbytes // engine.group.size  # this rank's part
            first = array.address + engine.group.rank * part
            # Rounded down: mprotect takes whole pages, and the last one must not reach beyond the part.
            page = (first + int(share * (part - mmap.PAGESIZE))) // mmap.PAGESIZE * mmap.PAGESIZE
            _protect(page)
        reduce(engine, array, how)

    # In the class: the engine that reduces may belong to any lane, and to a later generation.
    ShmEngine.allreduce = torn  # type: ignore[method-assign, assignment]


def _protect(page: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), PROTECT_NONE):
        raise OSError(ctypes.get_errno(), "mprotect")


def damage() -> None:
    """Flip a bit of the next stripe of state that this process sends, after its checksum was taken."""
    exchange = transfer._exchange

    def damaged(name: str, mine: Array, room: Any) -> int:
        if mine.nbytes:
            transfer._exchange = exchange  # once: the next transfer is to succeed
            last = ctypes.c_ubyte.from_address(mine.address + mine.nbytes - 1)
            last.value ^= 1
        return exchange(name, mine, room)

    transfer._exchange = damaged


def speak_of_the_past() -> None:
    """Resend messages that would have ended or delayed the previous generation."""
    session = current()
    link, past, ranks = session._link, session.generation - 1, list(range(session.topology.size))
    assert link is not None
    for message in (
        Exchange(past, "state", ranks, b"stale"),
        Blocked(past, 0, "optimizer.0", 1, "step 7", 1000.0, 0.0),
        Progress(past, "step 6", "step 7"),
        Leave(past, "it has failed, long ago"),
    ):
        link.up.send(message)
        link.up.send(message)


def leave_no_room() -> None:
    """Let this process get no more memory that it can share.

    A memfd is a file to this limit, and Python ignores SIGXFSZ: ``ftruncate`` fails, and no signal ends the process.
    """
    _limit(NO_ROOM_BYTES)


def make_room() -> None:
    """Lift the limit of ``leave_no_room``."""
    _limit(resource.RLIM_INFINITY)


def _limit(nbytes: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, most))
