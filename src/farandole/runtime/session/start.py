"""Start of a session: from the launcher's environment to a rank of the job.

session = start(comm=None, process_sets=None, overrides={}, past=PreviousSession(), withdrawal=CancelledJoin())
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import metadata
from itertools import pairwise
from typing import Any, NamedTuple, final

from farandole import events
from farandole.cluster.mpi_library import heed
from farandole.control.messages import Hello
from farandole.control.watch_messages import EXPECTED_S, SendMetrics
from farandole.engines.candidates import usable
from farandole.engines.choose import choose
from farandole.engines.factory import load
from farandole.errors import StartError, UsageError
from farandole.runtime.coordination import forked_children
from farandole.runtime.coordination.process_groups import fitting
from farandole.runtime.session.init_arguments import (
    ANY,
    configure_logging,
    environment_of,
    part_of,
    settings_of,
    static_sets,
)
from farandole.runtime.session.link import Assignment, CancelledJoin, ControllerLostError, Link
from farandole.runtime.session.process_sets import ProcessSet, ProcessSetLike
from farandole.runtime.session.rendezvous import find_controller
from farandole.runtime.session.session import Session
from farandole.runtime.session.tracebacks import stack_dump
from farandole.settings import Settings
from farandole.topology import Topology

MOST_REFUSALS = 3
"""Number of failed handshakes in a row after which the start fails: a controller may die once during one."""


@final
class PreviousSession(NamedTuple):
    """Data of the previous session for ``Hello``; ``step_s`` is ``None`` if this process has had no session."""

    step_s: float | None = None
    state: str = ""
    state_step: int = 0


def start(
    comm: object,
    process_sets: Sequence[ProcessSetLike] | str | None,
    overrides: Mapping[str, Any],
    past: PreviousSession,
    withdrawal: CancelledJoin,
) -> Session:
    """Start a session, see ``init.init``; ``withdrawal`` ends the wait for the other ranks."""
    require_gil()
    environment = environment_of(comm)
    settings = settings_of(environment, overrides)
    part = part_of(environment, comm)
    sets = static_sets(process_sets, part.expected)
    configure_logging(settings.log_level)
    has_viewers = environment.is_interactive or environment.is_watched
    is_watched = has_viewers and bool(environment.controller)  # a lone watched process has a controller, too
    if part.expected > 1 or is_watched or environment.is_elastic or (environment.launched and environment.size > 1):
        forked_children.require_no_ancestor(environment)
        forked_children.hold(environment)
        try:
            session = _persistently(find_controller(environment, part, settings), settings, sets, past, withdrawal)
        except BaseException:
            forked_children.release()
            raise
        if environment.is_watched:  # the order may arrive after the script's first metrics
            session.watch(SendMetrics(session.generation, EXPECTED_S))
        heed(lambda: session.broken)
        return session
    host = environment.host
    engine, reason = choose(settings.engine, [host], [usable()], settings.across)
    return Session(settings, Topology.of(0, (host,), 1), engine, reason, sets)


def require_gil() -> None:
    """Refuse a free-threaded interpreter: neither the native core nor the lanes, which share fields, support it."""
    is_enabled: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    if not is_enabled():
        raise UsageError(
            "init() was called in a Python that runs without its global interpreter lock, which Farandole needs: "
            "type PYTHON_GIL=1 python ..., or use a Python that is not built for free threading"
        )


def _persistently(
    assignment: Assignment,
    settings: Settings,
    sets: Sequence[ProcessSet],
    past: PreviousSession,
    withdrawal: CancelledJoin,
) -> Session:
    """Join; if the controller is lost, join the next one. ``StartError`` after ``MOST_REFUSALS`` refusals in a row."""
    refusals = 0
    while True:
        try:
            return _among_others(assignment, settings, sets, past, withdrawal)
        except ControllerLostError as error:
            refusals = refusals + 1 if error.refused else 0
            if refusals == MOST_REFUSALS:
                raise StartError(str(error)) from error
            events.logger.info("%s; looking for the next one", error)


def _among_others(
    assignment: Assignment,
    settings: Settings,
    sets: Sequence[ProcessSet],
    past: PreviousSession,
    withdrawal: CancelledJoin,
) -> Session:
    moments = [time.monotonic()]
    is_elastic = assignment.expected == ANY
    link = Link(
        assignment, settings.start_timeout_s, settings.host_timeout_s, replaced=is_elastic, withdrawal=withdrawal
    )
    try:
        moments.append(time.monotonic())
        welcome = link.join(_hello(link, assignment, sets, past), settings.elastic_timeout_s if is_elastic else 0)
        moments.append(time.monotonic())
        offset_s = welcome.sent.offset_s(moments[-1]) if welcome.sent is not None else 0.0
        topology = Topology.of(welcome.rank, tuple(welcome.hosts), welcome.generation)
        if not welcome.generation:
            link.close()
            load(welcome.engine)  # import it now, while the others train
            return Session(settings, topology, "solo", welcome.reason, [])
        _tell_phases(welcome.generation, ("dial", "form"), moments)
        if is_elastic:
            there = fitting([s.ranks for s in sets], topology.size)
            sets = [s for s in sets if s.ranks in there]
        session = Session(settings, topology, welcome.engine, welcome.reason, sets, link, offset_s)
    except BaseException:
        link.close()
        raise
    _tell_phases(welcome.generation, ("connect",), [moments[-1], time.monotonic()])
    return session


def _tell_phases(generation: int, phases: Sequence[str], moments: Sequence[float]) -> None:
    if events.subscribers:
        for phase, (begin_s, end_s) in zip(phases, pairwise(moments), strict=True):
            events.emit(events.Phase("generation", f"generation {generation}", "init", phase, begin_s, end_s))


def _hello(link: Link, assignment: Assignment, sets: Sequence[ProcessSet], past: PreviousSession) -> Hello:
    fd, number = stack_dump()
    return Hello(
        worker=link.worker,
        worker_id=assignment.worker_id,
        expected=assignment.expected,
        host=assignment.host,
        pid=os.getpid(),
        version=_version(),
        engines=usable(),
        stack_fd=fd,
        stack_signal=number,
        process_sets=[s.ranks for s in sets],
        ready=past.step_s is not None,
        step_s=past.step_s or 0.0,
        state=past.state,
        state_step=past.state_step,
    )


@cache
def _version() -> str:
    """The installed version. Cached: reading it takes 3 ms, a tenth of the time in which a generation forms."""
    try:
        return metadata.version("farandole")
    except metadata.PackageNotFoundError:  # run from the sources
        return "sources"
