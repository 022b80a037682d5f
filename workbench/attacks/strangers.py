"""Crowds of foreign connections at the port of a connecting rank: they arrive before its peer, and send nothing.

    attack(20_000, print)       # [] if both ranks were connected each time, and the crowd cost no more than it may

In each round rank 0 makes a ``tcp`` engine and listens. Rank 1 connects 3,500 times as a stranger, keeps these
connections open and goes on connecting from a thread, to that port and to the job's other ports, with a few bytes of
noise; then it connects as the member that it is. The kernel queues 4,096 connections (``net.core.somaxconn``), so all
strangers of a round are in the queue before the member.
"""

# Threads. Rank 0: a thread of ``_Descriptors`` counts while the main thread connects. Rank 1: a thread of ``_knocking``
# connects, too; both threads end with their ``with`` block, before the main thread reads what they counted.

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import final

from farandole.engines import mesh
from farandole.runtime.session.init import current, init, shutdown
from farandole.testing.harness import RanksFailedError
from farandole.testing.rank import RankContext
from workbench.jobs import run_job
from workbench.ports import listening

CROWD = 3500
"""Strangers in a round: fewer than the kernel queues, and more than a process has descriptors by default."""

SPARE = 64
"""Descriptors that rank 0 may need beside those of strangers, and MiB by which it may grow."""

LIMIT = 1024
"""Descriptors that rank 0 may have, as by default."""

SOON_S = mesh.CONNECT_S
TIMEOUT_S = 570.0


def attack(number: int, tell: Callable[[str], object]) -> list[str]:
    """Let ``number`` strangers connect, round by round; returns the errors."""
    crowds = [min(CROWD, number - begin) for begin in range(0, number, CROWD)]
    try:
        (times, most, grown_mib), (knocks,) = run_job(
            _program, 2, crowds, timeout_s=TIMEOUT_S, environment={"FARANDOLE_ENGINE": "tcp"}
        )
    except RanksFailedError as error:
        return [str(error)]
    tell(
        f"{number} strangers stayed and {knocks} made noise: connected in {', '.join(f'{s:.1f}' for s in times)} s, "
        f"{most} descriptors more at most, {grown_mib:.0f} MiB more"
    )
    wrong = [f"rank 0 held {most} connections or other files"] if most > mesh._MOST_UNKNOWN + SPARE else []
    wrong += [f"rank 0 grew by {grown_mib:.0f} MiB"] if grown_mib > SPARE else []
    return wrong + [f"connecting took {seconds:.0f} s" for seconds in times if seconds > SOON_S]


def _program(member: RankContext, crowds: Sequence[int]) -> tuple[object, ...]:
    init()
    rank_0 = int(member.exchange(b"%d" % os.getpid())[0])
    done = _be_called(member, len(crowds)) if member.rank == 0 else _call(member, rank_0, crowds)
    shutdown()
    return done


def _connect(number: int) -> None:
    """Make an engine for this round, and use it."""
    engine = current().planned.engine(0, f"round {number}")
    assert engine.gather_small(b"%d" % engine.group.rank) == [b"0", b"1"]
    engine.close()


def _be_called(member: RankContext, rounds: int) -> tuple[list[float], int, float]:
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    times, most = [], 0
    begin_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(rounds):
        member.exchange(b"the ports are known")
        with _Descriptors() as descriptors:
            _connect(number)
        times.append(float(member.exchange(b"")[1]))
        most = max(most, descriptors.most)
    return times, most, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begin_kb) / 1024


def _call(member: RankContext, rank_0: int, crowds: Sequence[int]) -> tuple[int]:
    knocks: list[int] = []
    for number, crowd in enumerate(crowds):
        before = set(listening([rank_0]))
        member.exchange(b"the ports are known")
        while not (new := set(listening([rank_0])) - before):
            time.sleep(0.01)  # nothing announces what /proc shows
        [port] = new
        with contextlib.ExitStack() as strangers:
            for _ in range(crowd):
                strangers.enter_context(socket.create_connection(("127.0.0.1", port), mesh.CONNECT_S))
            begin_s = time.monotonic()
            with _knocking([*before, port], knocks):
                _connect(number)
            took_s = time.monotonic() - begin_s
        member.exchange(b"%f" % took_s)
    return (len(knocks),)


@contextlib.contextmanager
def _knocking(ports: Sequence[int], knocks: list[int]) -> Iterator[None]:
    """Connect to these ports in turn, with noise; the bytes that each connection took are added to ``knocks``."""
    over = threading.Event()

    def knock() -> None:
        while not over.is_set():
            for port in ports:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.1) as peer:
                    knocks.append(peer.send(os.urandom(100)))

    thread = threading.Thread(target=knock)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@final
class _Descriptors:
    """Counter of this process's descriptors during a ``with`` block: ``most`` is the largest increase."""

    def __enter__(self) -> _Descriptors:
        self._begin = len(os.listdir("/proc/self/fd"))
        self.most, self._over = 0, threading.Event()
        self._thread = threading.Thread(target=self._count)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _count(self) -> None:
        while not self._over.wait(0.01):
            self.most = max(self.most, len(os.listdir("/proc/self/fd")) - self._begin)
