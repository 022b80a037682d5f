"""Survey of the threads of this process: if all of them wait in collectives, so that none can begin another one.

    survey(generation, active, lane).waits     # [] if some thread is elsewhere; else the wait of each

From such surveys of several ranks the controller tells a deadlock (``coordination.deadlock``).

Threads. The control thread calls it, while others run on. So it looks at the waits twice, and at all that they explain
in between: if each thread has the same wait both times (every wait has a number of its own), all of them waited at the
same time, and what was read is of one moment.

A signal handler runs on top of a wait, and may do there whatever it likes: compute, begin a collective of a lane of its
own, raise. Its thread waits no more than any other that is in the script. So the stack tells: from its top down to the
frame that waits there must be nothing but what waiting consists of.

A thread of a pool that has no task begins nothing either: whoever could give it one waits (``idle_pools``).

A thread that waits for another one to end (``thread_joins``) begins nothing before that: if the other one is alive and
waits, so does it. It is told of by nobody's wait but that one's.

Where a notebook sends cells, the main thread is at ``rest`` between them, wherever the kernel's event loop has it.

Frames of other threads are read in native code, and none is ever held here: it would keep alive what the script has
dropped meanwhile.

A thread that the interpreter does not know is not seen: see ``native_threads``.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from farandole.control.messages import ThreadWait, Waits
from farandole.native.core import call_stacks
from farandole.runtime.coordination.agreement import title
from farandole.runtime.lanes.active_collectives import ActiveCollectives
from farandole.runtime.lanes.idle_pools import idle_threads
from farandole.runtime.lanes.lane import Lane, PendingCollectives
from farandole.runtime.lanes.native_threads import are_native_threads_expected
from farandole.runtime.lanes.thread_joins import joined

Functions: TypeAlias = frozenset[tuple[str, str]]
"""Functions by module and name."""

_SERVANTS = frozenset(
    f"farandole-{work}" for work in ("control", "interrupt", "mailbox", "metrics", "negotiated", "timeline")
)
_ACROSS = "farandole across "
"""Names of threads that begin no collective. Those of overlap, lag and join do, and count as the script's."""

_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)

_PLANNED: Functions = frozenset(
    {
        ("farandole.runtime.collectives.pairing", "_exchange"),
        ("farandole.runtime.collectives.planned", "__init__"),
        ("farandole.runtime.collectives.planned", "allreduce"),
        ("farandole.runtime.collectives.planned", "meet"),
        ("farandole.runtime.session.planned_lanes", "meet_in_cell"),
    }
)
_ANYWHERE: Functions = frozenset()
_NAMED: Functions = frozenset({("farandole.runtime.lanes.negotiated", "drive")})
_JOIN: Functions = frozenset({("farandole.runtime.lanes.thread_joins", "join")})
"""The functions that wait in planned lanes, in the negotiated one, and for other threads, with their modules."""

_MEANS = (
    "contextlib.", "farandole.control.", "farandole.engines.", "farandole.runtime.collectives.divergence.",
    "farandole.runtime.lanes.", "farandole.runtime.session.abort_reason.", "farandole.runtime.session.control_thread.",
    "farandole.runtime.session.engine_pool.", "farandole.runtime.session.planned_lanes.",
    "farandole.runtime.session.session.", "mpi4py.", "threading.",
    "torch.distributed.", "zmq.",
)  # fmt: skip
"""Modules, and packages, of the functions that they wait in."""


_others: set[int] = set()


def count_as_servants(threads: Iterable[int]) -> None:
    """Note threads, by their identifiers, that never begin a collective: those of a kernel."""
    _others.update(threads)


def survey(generation: int, active: ActiveCollectives, lane: Lane, rest: ThreadWait | None = None) -> Waits:
    """The waits of all threads that could begin a collective; none if one of them does not wait.

    ``rest`` stands for the wait of a main thread in which no cell runs: it comes to a collective in a later one only.
    """
    nothing = Waits(generation)
    planned, named = active.waits(), lane.waits()
    # A thread with two waits runs a signal handler, and so does one in a planned collective that is no wait for all.
    waiting = {thread: _PLANNED for thread, _ in planned} | {thread: _NAMED for thread, *_ in named}
    if len(waiting) < len(planned) + len(named) or active.count_planned() > len(planned):
        return nothing
    if rest is not None:
        main = threading.main_thread().ident or 0
        if main in waiting:  # it is a task of the event loop that a cell has left
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
    """True if these threads, each in one of its functions, are all that could begin a collective, and they wait."""
    servants = {each.ident for each in threading.enumerate() if each.name in _SERVANTS or each.name.startswith(_ACROSS)}
    joins = joined()  # before the stacks: who has come to a join since then counts as one that goes on
    stacks = call_stacks()  # of the interpreter: ``threading`` does not know the threads of ``_thread``
    idle = {thread: _JOIN for thread, other in joins.items() if thread not in waiting and other.ident in stacks}
    blocked = {**waiting, **idle}
    if threading.main_thread().ident not in blocked:  # without a frame it is in C++ that has embedded the interpreter
        return False
    if not stacks.keys() - servants - _others - idle_threads(stacks) <= blocked.keys():
        return False
    if not all(_only_waits(stacks.get(thread, []), where) for thread, where in blocked.items() if where):
        return False
    # A timer's handler may raise: then the wait ends by itself.
    return not are_native_threads_expected() and not any(signal.getitimer(each)[0] for each in _TIMERS)


def _only_waits(calls: Sequence[tuple[str | None, str]], functions: Functions) -> bool:
    """True if there is nothing on top of the call of one of ``functions`` but what it waits in: no signal handler."""
    for module, name in calls:
        if (module, name) in functions:
            return True
        if not f"{module}.".startswith(_MEANS):
            return False
    return False


def _wait(token: int, process_set: int, name: str, what: str, flying: PendingCollectives) -> ThreadWait:
    grant = flying.awaiting.get((process_set, name), 0)
    return ThreadWait(token, process_set, what, name, grant=grant, sequence=flying.given.get(grant, 0))
