"""The three end events in a job, each under one name from its detection to the error that a user reads.

>>> WorkerExited(3, -9, "rank 3 on hostA was killed by SIGKILL").code
-9

An agent detects ``WorkerExited``, and the launcher adds the description. The controller and its formation pass it to
the exit policy of a static job, or to the membership of an elastic job and its journal. A ``GenerationEnded`` follows
from ``WorkerExited``, from ``HostLost``, from an engine failure or from a stalled call. All are events; the orders that
follow from them have names of their own: ``AbortGeneration`` and ``EndNow`` to the controller, ``Abort`` to the
workers.
"""

from __future__ import annotations

from typing import final

import msgspec


@final
class WorkerExited(msgspec.Struct, frozen=True, tag=True, omit_defaults=True, repr_omit_defaults=True):
    """The process of a worker exited (or could not be started): ``code`` as ``waitpid`` returns it.

    ``description`` is a text for users; it stays empty until the launcher, which names workers, sets it. ``tail`` are
    the last lines of standard error; ``error`` says why the process could not be started. ``out_of_memory``: the worker
    was killed, and the kernel has just killed a process of that host because memory ran out.
    """

    worker_id: int
    code: int
    description: str = ""
    host: str = ""
    pid: int = -1
    tail: str = ""
    error: str = ""
    out_of_memory: bool = False


@final
class GenerationEnded(msgspec.Struct, frozen=True, tag=True, omit_defaults=True, repr_omit_defaults=True):
    """The generation has ended for all ranks, though their processes may live: an engine failed, a call stalled."""

    generation: int
    reason: str


@final
class HostLost(msgspec.Struct, frozen=True, tag=True):
    """A host is silent, or its agent has exited. Its workers no longer count, even if the host answers again."""

    host: str
    reason: str
