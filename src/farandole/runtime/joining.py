"""What ``init`` needs to know before it contacts anybody: this process's seat, its settings, its process sets.

    seat = seat_of(detect(), comm=None)
    settings = settings_of(detect(), {"engine": "gloo"})

Pure but for reading the environment; raises for what cannot be, with what to type.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from farandole.cluster.environment import Environment, Launched
from farandole.errors import SettingsError, UnsupportedError, UsageError
from farandole.events import logger
from farandole.runtime.link import Seat
from farandole.runtime.process_sets import ProcessSet, ProcessSetLike
from farandole.settings import Settings

JOB_WIDE = (
    "engine",
    "fusion_threshold_bytes",
    "stall_check",
    "stall_warning_s",
    "stall_shutdown_s",
    "dynamic_process_sets",
    "on_failure",
    "grace_s",
)
"""Settings that the controller reads, so that one worker cannot change them."""

_LEVELS = {"trace": 5, "fatal": logging.CRITICAL}


def seat_of(environment: Environment, comm: object) -> Seat:
    """The seat of this process; ``comm`` is what a user gave to ``init``: ``None`` or the ranks that take part."""
    place, expected = environment.place, environment.size
    if comm is not None:
        ranks = _ranks(comm)
        alien = [r for r in ranks if not 0 <= r < expected]
        if alien or not ranks or len(set(ranks)) < len(ranks):
            raise UsageError(
                f"init(comm={ranks}): expected different ranks among 0 to {expected - 1}, and at least one"
            )
        if place not in ranks:
            raise UsageError(
                f"init(comm={ranks}) on rank {place}, which is not among them: call it on those ranks only"
            )
        place, expected = ranks.index(place), len(ranks)
    return Seat(place, expected, environment.host, environment.controller, environment.key)


def settings_of(environment: Environment, overrides: Mapping[str, Any]) -> Settings:
    """The settings of this worker; refuses what only the launcher can set."""
    settings = Settings.resolve(arguments=overrides)
    if isinstance(environment, Launched):
        told = Settings.resolve()
        changed = [name for name in JOB_WIDE if getattr(settings, name) != getattr(told, name)]
        if changed:
            raise SettingsError(
                f"init({changed[0]}={getattr(settings, changed[0])!r}): this is a setting of the whole job, "
                f"and the launcher has started it with {getattr(told, changed[0])!r}: "
                f"set FARANDOLE_{changed[0].upper()} for farandole run"
            )
    return settings


def static_sets(process_sets: Sequence[ProcessSetLike] | str | None, size: int) -> list[ProcessSet]:
    """What a user gave to ``init`` as ``process_sets``: sets or lists of ranks; ``"dynamic"`` asks for none."""
    if process_sets is None or process_sets == "dynamic":
        return []
    if isinstance(process_sets, str):
        raise UsageError(f'init(process_sets={process_sets!r}): give a list of process sets, or "dynamic"')
    sets = [s if isinstance(s, ProcessSet) else ProcessSet(s) for s in process_sets]
    for i, process_set in enumerate(sets):
        process_set.check(size)
        if any(s.ranks == process_set.ranks for s in sets[:i]) or len(process_set.ranks) == size:
            raise UsageError(
                f"init(process_sets=...): ranks {process_set.ranks} are a process set already: list them once"
            )
    return sets


def configure_logging(level: str) -> None:
    """Let Farandole's messages of at least this level out on stderr, unless the program has set up logging itself."""
    logger.setLevel(_LEVELS.get(level) or level.upper())
    if not logger.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("farandole: %(levelname)s: %(message)s"))
        logger.addHandler(handler)


def _ranks(comm: object) -> list[int]:
    if hasattr(comm, "Get_rank"):
        raise UnsupportedError(
            "init(comm=<MPI communicator>): jobs are not started from MPI communicators yet: pass a list of ranks, "
            "or nothing, and start the job with: farandole run -np N COMMAND"
        )
    if not isinstance(comm, Iterable):
        raise UsageError(f"init(comm={comm!r}): expected None or a list of ranks")
    return [int(r) for r in comm]
