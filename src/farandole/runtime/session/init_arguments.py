"""Arguments of ``init``, resolved before any connection: the role of the process, settings, process sets.

    environment = environment_of(comm=None)
    role = part_of(environment, comm=None)
    settings = settings_of(environment, {"engine": "tcp"})

Pure except for reading the environment; errors for invalid arguments name the fix.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from farandole.cluster.detect import detect
from farandole.cluster.environment import Environment
from farandole.cluster.mpi import Communicator
from farandole.errors import SettingsError, UsageError
from farandole.events import logger
from farandole.runtime.session.process_sets import ProcessSet, ProcessSetLike
from farandole.runtime.session.rendezvous import ProcessRole
from farandole.settings import KNOBS, Settings

ANY = 0
"""Size of an elastic job: any number of workers."""

_LEVELS = {"trace": 5, "fatal": logging.CRITICAL}


def environment_of(comm: object) -> Environment:
    """Detect the launcher of this process; ``comm`` overrides it if it is an mpi4py communicator or an environment."""
    if isinstance(comm, Environment):
        return comm
    environment = detect()
    if not _is_communicator(comm):
        return environment
    if environment.launched:
        raise UsageError(
            "init(comm=<MPI communicator>) under farandole run, which has placed the processes itself: pass nothing, "
            "or a list of ranks; or start the job with: mpirun -n N COMMAND"
        )
    return Communicator(comm, os.environ)


def part_of(environment: Environment, comm: object) -> ProcessRole:
    """The role of this process; ``comm`` is a user's argument of ``init``: a list names the ranks that take part."""
    worker_id, expected = environment.worker_id, ANY if environment.is_elastic else environment.size
    if isinstance(environment, Communicator):
        return ProcessRole(worker_id, expected, environment.members)
    if comm is None or isinstance(comm, Environment):
        return ProcessRole(worker_id, expected)
    ranks = _ranks(comm)
    if environment.is_elastic:
        raise UsageError(f"init(comm={ranks}): in an elastic job ranks change; make a process set of these instead")
    alien = [r for r in ranks if not 0 <= r < expected]
    if alien or not ranks or len(set(ranks)) < len(ranks):
        raise UsageError(f"init(comm={ranks}): expected different ranks among 0 to {expected - 1}, and at least one")
    if worker_id not in ranks:
        raise UsageError(
            f"init(comm={ranks}) on rank {worker_id}, which is not among them: call it on those ranks only"
        )
    return ProcessRole(ranks.index(worker_id), len(ranks), _label(ranks, expected))


def settings_of(environment: Environment, overrides: Mapping[str, Any]) -> Settings:
    """The settings of this worker; raises ``SettingsError`` for job-wide settings, which only the launcher can set."""
    settings = Settings.resolve(arguments=overrides)
    if environment.launched:
        told = Settings.resolve()
        changed = [n for n, knob in KNOBS.items() if knob.job_wide and getattr(settings, n) != getattr(told, n)]
        if changed:
            raise SettingsError(
                f"init({changed[0]}={getattr(settings, changed[0])!r}): this is a setting of the whole job, "
                f"and the launcher has started it with {getattr(told, changed[0])!r}: "
                f"set FARANDOLE_{changed[0].upper()} for farandole run"
            )
    return settings if environment.is_elastic else settings.as_static()


def static_sets(process_sets: Sequence[ProcessSetLike] | str | None, size: int) -> list[ProcessSet]:
    """Make the process sets of a user's argument: sets or lists of ranks; ``"dynamic"``: none.

    They must fit a job of ``size``, unless that is ``ANY``: then each set is registered in generations that it fits.
    """
    if process_sets is None or process_sets == "dynamic":
        return []
    if isinstance(process_sets, str):
        raise UsageError(f'init(process_sets={process_sets!r}): give a list of process sets, or "dynamic"')
    sets = [s if isinstance(s, ProcessSet) else ProcessSet(s) for s in process_sets]
    for i, process_set in enumerate(sets):
        if size != ANY:
            process_set.check(size)
        if any(s.ranks == process_set.ranks for s in sets[:i]) or len(process_set.ranks) == size:
            raise UsageError(
                f"init(process_sets=...): ranks {process_set.ranks} are a process set already: list them once"
            )
    return sets


def configure_logging(level: str) -> None:
    """Log Farandole's messages of at least ``level`` to stderr, unless the program has configured logging itself."""
    logger.setLevel(_LEVELS.get(level) or level.upper())
    if not logger.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("farandole: %(levelname)s: %(message)s"))
        logger.addHandler(handler)


def _is_communicator(comm: object) -> bool:
    mpi = sys.modules.get("mpi4py.MPI")  # loaded if the user has a communicator
    return mpi is not None and isinstance(comm, mpi.Comm)


def _ranks(comm: object) -> list[int]:
    if not isinstance(comm, Iterable):
        raise UsageError(f"init(comm={comm!r}): expected None, a list of ranks, or a communicator of mpi4py")
    return [int(r) for r in comm]


def _label(ranks: list[int], size: int) -> str:
    """Label for the job of these ranks, short enough for a file name; "" for all ranks in order."""
    return "" if ranks == list(range(size)) else blake2b(repr(ranks).encode(), digest_size=8).hexdigest()
