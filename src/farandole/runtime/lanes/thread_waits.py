"""Survey of the threads of this process: whether all of them wait in collectives, so that none can begin another one.

    survey(generation, active, lane).waits     # [] if any thread does not wait; else the wait of each thread

From such surveys of several ranks the controller detects a deadlock (``coordination.deadlock``).

Threads. The control thread calls it, while other threads run. So it reads the waits twice, and everything else in
between: if each thread has the same wait both times (every wait has a unique token), all of them waited at the same
time, and the survey is of one moment.

A signal handler runs on top of a wait, and may run any code there: compute, begin a collective of a lane of its own,
raise. Its thread does not count as waiting. So the stack decides: from its top down to the frame that waits there must
be no functions but those that waiting consists of.

A pool thread without a task begins no collective either: the threads that could submit one wait (``idle_pools``).

A thread that waits for another thread to end (``thread_joins``) begins no collective before that: if the other thread
is alive and waits, so does this one. It adds no wait of its own to the survey.

In a notebook the main thread is at ``rest`` between cells, wherever the kernel's event loop is.

Frames of other threads are read in native code, and no frame is ever kept here: a reference would keep alive objects
that the script has dropped meanwhile.

The survey does not see threads that the interpreter does not know: see ``native_threads``.

Idle threads of ``concurrent.futures``, which get no task while all other threads wait.

>>> idle_threads({})        # of these call stacks, by thread
set()
"""

from __future__ import annotations

import signal
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

from farandole.control.messages import ThreadWait, Waits
from farandole.native.core import call_stacks
from farandole.runtime.coordination.agreement import title
from farandole.runtime.lanes.active_collectives import ActiveCollectives
from farandole.runtime.lanes.lane import Lane, PendingCollectives
from farandole.runtime.lanes.native_threads import are_native_threads_expected
from farandole.runtime.lanes.thread_joins import joined

_WAITS = ("concurrent.futures.thread", "_worker")


def idle_threads(stacks: Mapping[int, Sequence[tuple[str | None, str]]]) -> set[int]:
    """Identifiers of the threads of pools without any task; ``stacks`` are calls by thread, innermost first."""
    there: defaultdict[ThreadPoolExecutor, set[int]] = defaultdict(set)
    for thread in threading.enumerate():
        calls = stacks.get(thread.ident or 0)
        if calls and calls[0] == _WAITS and (pool := _pool_of(thread)) is not None:
            there[pool].add(thread.ident or 0)
    found: set[int] = set()
    for pool, threads in there.items():
        idle: Any = getattr(pool, "_idle_semaphore", None)
        # ``_value`` above the number of threads: before Python 3.12 the count is too high after tasks had to wait.
        if idle is not None and len(pool._threads) >= idle._value >= len(threads) and pool._work_queue.empty():
            found |= threads
    return found


def _pool_of(thread: threading.Thread) -> ThreadPoolExecutor | None:
    """Pool that the thread belongs to, if that still exists."""
    arguments = getattr(thread, "_args", ())
    pool = arguments[0]() if arguments and callable(arguments[0]) else None
    return pool if isinstance(pool, ThreadPoolExecutor) else None


Functions: TypeAlias = frozenset[tuple[str, str]]
"""Functions by module and name."""

_SERVANTS = frozenset(
    f"farandole-{work}" for work in ("control", "interrupt", "mailbox", "metrics", "negotiated", "timeline")
)
_ACROSS = "farandole across "
"""Names of threads that begin no collective. The threads of overlap, lag and join do, and count as the script's."""

_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)

_PLANNED: Functions = frozenset(
    {
        ("farandole.runtime.collectives.pairing", "_exchange"),
        ("farandole.runtime.collectives.planned", "allreduce"),
        ("farandole.runtime.collectives.planned", "meet"),
        ("farandole.runtime.session.planned_lanes", "engine"),
        ("farandole.runtime.session.planned_lanes", "meet_in_cell"),
    }
)
_ANYWHERE: Functions = frozenset()
_NAMED: Functions = frozenset({("farandole.runtime.lanes.negotiated", "drive")})
_JOIN: Functions = frozenset({("farandole.runtime.lanes.thread_joins", "join")})
"""Functions, with modules, that wait in planned lanes, in the negotiated lane, and for other threads."""

_MEANS = (
    "contextlib.", "farandole.control.", "farandole.engines.", "farandole.runtime.collectives.divergence.",
    "farandole.runtime.lanes.", "farandole.runtime.session.session_end.", "farandole.runtime.session.control_thread.",
    "farandole.runtime.session.engine_pool.", "farandole.runtime.session.planned_lanes.",
    "farandole.runtime.session.session.", "mpi4py.", "threading.",
    "torch.distributed.", "zmq.",
)  # fmt: skip
"""Modules and packages whose functions may be on the stack above a waiting function."""


_others: set[int] = set()


def count_as_servants(threads: Iterable[int]) -> None:
    """Register threads, by identifier, that never begin a collective: those of a notebook kernel."""
    _others.update(threads)


def survey(generation: int, active: ActiveCollectives, lane: Lane, rest: ThreadWait | None = None) -> Waits:
    """Waits of all threads that could begin a collective; none if one of them does not wait.

    ``rest`` is the wait of a main thread in which no cell runs: it begins a collective in a later cell only.
    """
    nothing = Waits(generation)
    planned, named = active.waits(), lane.waits()
    # A thread with two waits runs a signal handler; so does a thread in a planned collective without a wait for all.
    waiting = {thread: _PLANNED for thread, _ in planned} | {thread: _NAMED for thread, *_ in named}
    if len(waiting) < len(planned) + len(named) or active.count_planned() > len(planned):
        return nothing
    if rest is not None:
        main = threading.main_thread().ident or 0
        if main in waiting:  # a task of the event loop, which a cell has left behind
            return nothing
        waiting[main] = _ANYWHERE
    if not waiting or not _are_all(waiting):
        return nothing
    reached, flying = active.reached(), lane.in_flight()
    if flying is None or active.waits() != planned or lane.waits() != named:
        return nothing
    waits = [wait for _, wait in planned] + ([] if rest is None else [rest])
    waits += [_wait(token, *a.key, title(a.kind, a.key[1], a.key[0]), flying) for _, token, a in named]
    return Waits(generation, waits, flying.submitted, reached, list(flying.given.items()))


def _are_all(waiting: Mapping[int, Functions]) -> bool:
    """True if no threads but these could begin a collective, and each of these waits in one of its functions."""
    servants = {each.ident for each in threading.enumerate() if each.name in _SERVANTS or each.name.startswith(_ACROSS)}
    joins = joined()  # before the stacks: a thread that begins a join after this call counts as running
    stacks = call_stacks()  # of the interpreter: ``threading`` does not know the threads of ``_thread``
    idle = {thread: _JOIN for thread, other in joins.items() if thread not in waiting and other.ident in stacks}
    blocked = {**waiting, **idle}
    if threading.main_thread().ident not in blocked:  # without a frame it runs C++ that embeds the interpreter
        return False
    if not stacks.keys() - servants - _others - idle_threads(stacks) <= blocked.keys():
        return False
    if not all(_only_waits(stacks.get(thread, []), where) for thread, where in blocked.items() if where):
        return False
    # The handler of a timer may raise: then the wait ends by itself, and it is no deadlock.
    return not are_native_threads_expected() and not any(signal.getitimer(each)[0] for each in _TIMERS)


def _only_waits(calls: Sequence[tuple[str | None, str]], functions: Functions) -> bool:
    """True if only waiting functions are on top of the call of one of ``functions``, and no signal handler."""
    for module, name in calls:
        if (module, name) in functions:
            return True
        if not f"{module}.".startswith(_MEANS):
            return False
    return False


def _wait(token: int, process_set: int, name: str, what: str, flying: PendingCollectives) -> ThreadWait:
    grant = flying.awaiting.get((process_set, name), 0)
    return ThreadWait(token, process_set, what, name, grant=grant, sequence=flying.given.get(grant, 0))
